"""Documents of the measurements: Markdown and CSV for each table, and one page with a row for each claim."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_fx.tables.measurements import MACHINE, Measurements, is_of_this_code
from pytest_fx.tables.table import Claim, Entry, Row, Scale, Table, get_table, list_tables

NOTHING = "-"
"""The text of a cell without a number."""
NOT_YET = "not measured yet"
"""The reason that a row without a record shows."""
OLDER = "**Older than the code**"
"""The beginning of the paragraph on rows that were measured on other code than today's."""
_MOST_GROUPS = 8
"""Groups of rows that are listed by name."""
_ADDRESS = re.compile("0x[0-9a-f]{6,}")
OVERVIEW = "README.md"
"""The page with a row for each claim."""


PAGES_OF_MAKE = {
    "catalogue.md": ("Which wrong passes does the search find, and which right ones does it flag?", "catalogue"),
    "mutants.md": ("Which small faults in our own passes does it find?", "mutants"),
    "verdicts.md": ("Are passes and models that were once judged wrongly judged right?", "verdicts"),
    "looseness.md": ("How far may outputs be off before a verdict is *wrong*?", "looseness"),
    "candidates.md": ("Does `judge` refuse kernels that cheat, and accept others?", "candidates"),
    "models.md": ("Which models of libraries can be captured?", "models"),
    "engines.md": ("Which of sixteen architectures become one engine?", "engines"),
    "machines.md": ("What do 8 bits keep and gain with the instructions of other processors?", "machines"),
    "faults.md": ("Which faults of released software did the harness find?", "museum"),
}
"""Pages of the same folder that make writes, each with its question and the target of make."""


def read_results(folder: Path) -> dict[str, str]:
    """Return the results of the pages in ``folder`` that make writes: bold beginnings of lines outside of tables."""
    pages = {page: path.read_text(encoding="utf-8") for page in PAGES_OF_MAKE if (path := folder / page).is_file()}
    beginning = re.compile(r"^(?:- )?\*\*(.+?)\.?\*\*", re.MULTILINE)
    return {page: "; ".join(beginning.findall(text)) for page, text in pages.items()}


@dataclass(frozen=True, slots=True)
class Section:
    """The measurements of one table on one machine."""

    table: Table
    """The table."""
    machine: str
    """The machine, in words."""
    entries: tuple[Entry, ...]
    """Its rows, in the table's order."""
    records: tuple[Mapping[str, Any], ...]
    """The records behind the entries."""

    @property
    def figure(self) -> str:
        """The name of its figure's file."""
        return f"{self.table.name}-{re.sub('[^a-z0-9]+', '-', self.machine.lower()).strip('-')}.svg"

    @property
    def timeline(self) -> tuple[str, str, Mapping[str, Any]] | None:
        """The file, the row and the events of the timeline figure; None without one."""
        timeline = self.table.timeline
        for row in timeline.rows if timeline is not None else ():
            for record in self.records:
                events: Any = (record["values"] or {}).get("timeline")
                if record["row"] == row and _are_events(events):
                    return self.figure.replace(self.table.name, f"{self.table.name}-timeline", 1), row, events
        return None

    @property
    def measured(self) -> bool:
        """True if any row has numbers, so that there is something to draw."""
        return any(entry.numbers for entry in self.entries)

    @property
    def older(self) -> list[str]:
        """The rows with numbers whose code has changed since they were measured."""
        return [str(record["row"]) for record in self.records if record["values"] and not is_of_this_code(record)]

    def entry(self, name: str) -> Entry | None:
        """Return the row called ``name``, or None."""
        return next((entry for entry in self.entries if entry.name == name), None)


def _are_events(programs: Any) -> bool:
    """Return whether a record's value has the events of a timeline."""
    if (
        not isinstance(programs, dict)
        or not programs
        or not all(isinstance(timeline, list) for timeline in programs.values())
    ):
        return False
    events: list[Any] = [event for timeline in programs.values() for event in timeline]
    return bool(events) and all(
        isinstance(event, list) and [type(part) in (str, int, float) for part in event] == [True] * 3
        for event in events
    )


def read_sections(folder: Path) -> dict[str, list[Section]]:
    """Return the recorded sections under ``folder``, by table, without rows of old names and tables without records."""
    measurements = Measurements(folder / "raw")
    sections: dict[str, list[Section]] = {}
    for name in list_tables():
        table = get_table(name)
        by_machine: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
        for record in measurements.read(table):
            by_machine.setdefault(tuple(record[part] for part in MACHINE), {})[record["row"]] = record
        elsewhere = {name for machine, records in by_machine.items() if _has_gpu(machine) for name in records}
        machine_sections = [
            _section(table, machine, records, set() if _has_gpu(machine) else elsewhere)
            for machine, records in by_machine.items()
        ]
        if table_sections := [section for section in machine_sections if section.entries]:
            sections[name] = table_sections
    return sections


def _has_gpu(machine: tuple[Any, ...]) -> bool:
    return machine[-1] is not None


def _section(
    table: Table, machine: tuple[Any, ...], records: Mapping[str, Mapping[str, Any]], elsewhere: set[str]
) -> Section:
    """Return the rows of every size that has records. Other rows of these sizes are listed as not measured yet.

    Rows without a record are left out in two cases: GPU rows that another machine measured, and CPU rows of a machine
    with a GPU.
    """
    entries: list[Entry] = []
    for size in ("full", "small"):
        rows = table.rows(Scale(size=size))
        if any(row.name in records for row in rows):
            own = [row for row in rows if not (row.on_gpu and row.name in elsewhere)]
            relevant = [row for row in own if row.name in records or row.on_gpu or not _has_gpu(machine)]
            entries += [_entry(table, row, records.get(row.name)) for row in relevant]
    by_name = {entry.name: entry for entry in entries}
    used = tuple(records[name] for name in by_name if name in records)
    reported = tuple(by_name.values())
    return Section(table, _machine_in_words(*machine), (*reported, *(table.totals(reported) if reported else ())), used)


def _entry(table: Table, row: Row, record: Mapping[str, Any] | None) -> Entry:
    values = None if record is None else record.get("values")
    numbers = {} if values is None else table.numbers(values)
    reason = None if values is not None else NOT_YET if record is None else str(record["reason"])
    return Entry(row.name, numbers, table.paper.get(row.name, {}), reason, row.stands_for)


def _machine_in_words(machine: str, cores: int, device: str | None) -> str:
    return f"{machine}, {cores} core{'s' * (cores != 1)}" + (f", {device}" if device else "")


def write_documents(
    sections: Mapping[str, Sequence[Section]], files: frozenset[str], results: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Return the text of every document by the name of its file.

    Args:
        sections: the measurements, by table.
        files: names of files in the folder; only figures among them are linked.
        results: the results of pages that other commands write there, by the names of their files.
    """
    texts = {OVERVIEW: _overview(sections, results)}
    for name, table_sections in sections.items():
        texts[f"{name}.md"] = _page(table_sections, files)
        texts[f"{name}.csv"] = _csv(table_sections)
    return texts


def _overview(sections: Mapping[str, Sequence[Section]], results: Mapping[str, str]) -> str:
    rows = [
        [claim.sentence, claim.paper, _findings(claim, table_sections), f"[{table_sections[0].table.title}]({name}.md)"]
        for name, table_sections in sections.items()
        for claim in table_sections[0].table.claims
    ]
    others = [
        [f"[{question}]({page})", results[page], f"`make {target}`"]
        for page, (question, target) in PAGES_OF_MAKE.items()
        if page in results
    ]
    return _join(
        "# The evaluation",
        "This page is for readers of the paper on torch.fx who want to know which of its results hold here. It has a "
        "row for each claim, with the paper's number and the number that `pytest --fx-tables` measured. The records "
        "are in `raw/`, a line for each measurement of a row; the tables and figures are generated from them.",
        _older_rows(sections),
        _markdown_table(["the paper says", "its number", "here", "table"], rows),
        "## Beyond the paper" if others else "",
        _markdown_table(["question", "result", "measured by"], others) if others else "",
    )


def _findings(claim: Claim, sections: Sequence[Section]) -> str:
    """Return the results of each machine, with the names of the machines if there are several."""
    several = len(sections) > 1
    by_machine = [(section.machine, _finding(claim, section)) for section in sections]
    lines = [(f"{machine}: " if several else "") + finding for machine, finding in by_machine if finding is not None]
    return "<br>".join(lines) or "not measured"


def _finding(claim: Claim, section: Section) -> str | None:
    parts: list[str] = []
    for name, template in claim.found.items():
        entry = section.entry(name) or next((each for each in section.entries if each.stands_for == name), None)
        if entry is None:
            continue
        part = entry.format(template)
        if part and entry.name != name:
            part += f" (measured: {entry.name})"
        part = part or (entry.reason and _brief(entry.reason))
        if part and part not in parts:
            parts.append(part)
    return "; ".join(parts) or None


def _page(sections: Sequence[Section], files: frozenset[str]) -> str:
    table = sections[0].table
    claims = [f"> {claim.sentence}" for claim in table.claims]
    blocks = [f"# {table.title}", f"Paper: {table.section}.", _older_rows({table.name: sections}), _age(sections)]
    blocks += ["\n>\n".join(claims), table.protocol]
    for section in sections:
        blocks += [f"## {section.machine}", _entries_table(section)]
        if section.figure in files:
            blocks.append(f"![{table.chart.title}]({section.figure})")
        if table.timeline is not None and (drawn := section.timeline) is not None and drawn[0] in files:
            blocks.append(f"![{table.timeline.title}: {drawn[1]}]({drawn[0]})")
        blocks.append(_circumstances(section))
    return _join(*blocks)


def _older_rows(sections: Mapping[str, Sequence[Section]]) -> str:
    """Return a paragraph with the number of rows of each table that are older than the code, or an empty text."""
    counts: dict[str, tuple[int, int]] = {}
    for name, table_sections in sections.items():
        rows = sum(bool(record["values"]) for section in table_sections for record in section.records)
        counts[name] = sum(len(section.older) for section in table_sections), rows
    listed = ", ".join(f"{older} of {rows} of `{name}`" for name, (older, rows) in counts.items() if older)
    again = " ".join(f"--fx-tables={name}" for name in sections) if len(sections) == 1 else "--fx-tables"
    if not listed:
        return ""
    return (
        f"{OLDER}: {listed}. The files that these rows use have changed since their measurement. `pytest {again}` "
        "measures such rows again, and no others."
    )


def _age(sections: Sequence[Section]) -> str:
    """Return a paragraph on the versions of the code that the rows were measured on."""
    records = [record for section in sections for record in section.records if record.get("values") is not None]
    commits = dict.fromkeys(str(record["commit"]) for record in records if record.get("commit"))
    if not commits:
        return ""
    days = sorted(record["measured"][:10] for record in records)
    dirty = sum(str(record.get("commit")).endswith("-dirty") for record in records)
    return (
        f"Measured {' to '.join(dict.fromkeys((days[0], days[-1])))}, at {len(commits)} "
        f"commit{'s' * (len(commits) != 1)}"
        + (f"; {dirty} of {len(records)} rows with uncommitted changes" * bool(dirty))
        + "."
    )


def _entries_table(section: Section) -> str:
    columns = section.table.columns
    rows: list[list[str]] = []
    for entry in section.entries:
        cells = [entry.format(column.template) or NOTHING for column in columns]
        if entry.reason is not None:
            cells[0] = entry.reason
        rows.append([entry.name, *cells])
    return _markdown_table(["", *(column.heading for column in columns)], rows)


def _circumstances(section: Section) -> str:
    """Return a paragraph with the dates, commits, versions, hosts and load averages of the measurements."""
    records = section.records
    days = sorted({record["measured"][:10] for record in records})
    versions = sorted({f"{name} {version}" for record in records for name, version in record["versions"].items()})
    pythons = sorted({f"Python {record['python']}" for record in records if record.get("python")})
    commits = sorted({str(record["commit"]) for record in records if record.get("commit")})
    capabilities = sorted({str(record["cpu_capability"]) for record in records if record.get("cpu_capability")})
    loads = [record["load"] for record in records if record.get("load") is not None]
    parts = [
        f"Measured {' and '.join(dict.fromkeys((days[0], days[-1])))}",
        f"at commit {', '.join(commits)}" if commits else "",
        f"with {', '.join((*pythons, *versions, *capabilities))}",
    ]
    rows_of: dict[str, list[str]] = {}
    for record in records:
        rows_of.setdefault(str(record.get("host") or "not named"), []).append(str(record["row"]))
    *others, most = sorted(rows_of, key=lambda host: len(rows_of[host])) if rows_of else [""]
    hosts = "; ".join([*(f"{host}: {_groups(rows_of, host)}" for host in others), f"{most}: all other rows"])
    shared = (
        f" Each row was measured on one host; times of other hosts do not compare. {hosts}." if len(rows_of) > 1 else ""
    )
    span = " to ".join(dict.fromkeys(f"{load:.1f}" for load in (min(loads), max(loads)))) if loads else ""
    busy = f" The load average before each row, which includes the load of earlier rows, was {span}." if loads else ""
    return " ".join(part for part in parts if part) + "." + busy + shared


def _groups(rows_of: Mapping[str, Sequence[str]], host: str) -> str:
    """Return the names of a host's rows, or the first parts of names that no other host's rows have.

    If these are many, return their number.
    """
    others = {row.partition(",")[0] for other, rows in rows_of.items() if other != host for row in rows}
    first_parts = [(row, row.partition(",")[0]) for row in rows_of[host]]
    groups = dict.fromkeys(row if part in others else part for row, part in first_parts)
    return ", ".join(groups) if len(groups) <= _MOST_GROUPS else f"{len(first_parts)} rows, which `raw/` names"


def _csv(sections: Sequence[Section]) -> str:
    """Return every number of every row as CSV; the paper's have names that begin with ``paper_``."""
    entries = [entry for section in sections for entry in section.entries]
    names = list(dict.fromkeys(name for entry in entries for name in entry.numbers))
    names += list(dict.fromkeys(f"paper_{name}" for entry in entries for name in entry.paper))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["machine", "row", "reason", *names])
    for section in sections:
        for entry in section.entries:
            numbers = entry.all_numbers
            cells = [numbers.get(name, "") for name in names]
            writer.writerow([section.machine, entry.name, _ADDRESS.sub("0x…", entry.reason or ""), *cells])
    return text.getvalue()


def _markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Return a text as a cell: without new lines, and without addresses, which differ in each process."""
    return _ADDRESS.sub("0x…", text.replace("|", "\\|").replace("\n", " "))


def _brief(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"


def _join(*blocks: str) -> str:
    return "\n\n".join(block for block in blocks if block) + "\n"
