"""Campaigns: a search for faults of one compiler that goes on for minutes or hours, and loses nothing if it is killed.

A child process judges the programs. This process writes the journal, a file of JSON lines with a line for each batch
of programs and for each fault. A later campaign of the same name continues behind the last batch, and knows the faults.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fx.errors import FxError
from fx.passes import contract_of, pass_name
from pytest_fx.compilers import Compiler
from pytest_fx.forms import unwrapped
from pytest_fx.generation.strategy import Bias, campaign_bias
from pytest_fx.harness.pass_run import LARGEST_TIME, may_change
from pytest_fx.laws import choose_laws
from pytest_fx.loading import load_pass
from pytest_fx.processes.child import Channel, Child, ChildEnded, Ending, Limits, unavailable
from pytest_fx.records.records import append_record, read_records
from pytest_fx.search.campaign_child import FaultSearch, laws_of_hunts, run_batches
from pytest_fx.search.fault import Fault, operations_of
from pytest_fx.search.isolated_search import Crash, answer_by, received_from, send_to
from pytest_fx.search.plain_reproducer import write_reproducer
from pytest_fx.search.references import references_of

LONGEST = 300.0
"""Seconds for one group of programs with all checks on it, before the child counts as hanging: on a loaded machine
Inductor takes minutes for some programs."""
MINUTES_OF_CHILD = 10.0
"""The minutes after which a child is replaced: compilers keep what they made."""


@dataclass
class HuntReport:
    """The state of a campaign: its counts and its faults."""

    name: str
    """The name of the compiler."""
    folder: Path
    """The folder with the journal and the reproducers."""
    programs: int = 0
    """Judged programs."""
    refused: int = 0
    """Refused programs."""
    unjudged: int = 0
    """Programs that break a law without the compiler, too."""
    batches: int = 0
    """The number of finished batches, in this campaign and in earlier ones of the name."""
    seconds: float = 0.0
    """The time of this run of the campaign."""
    faults: list[Fault] = field(default_factory=list[Fault])
    """All faults, those of earlier runs first."""
    count_before: int = 0
    """The number of faults that were known before this run."""
    repeated: Counter[str] = field(default_factory=Counter[str])
    """The number of further programs that show known faults, by law."""
    reproducers: dict[str, str] = field(default_factory=dict[str, str])
    """By key of a new fault, its reproducer, or the reason why it has none."""

    @property
    def new_faults(self) -> list[Fault]:
        """The faults that were not known before this run."""
        return self.faults[self.count_before :]

    def __str__(self) -> str:
        rate = f", {self.programs / self.seconds:.1f} a second" if self.seconds else ""
        head = f"{self.name}: {self.programs} programs{rate}, {self.refused} refused, {self.unjudged} not judged"
        new = self.new_faults
        lines = [
            f"{len(new)} new faults, {self.count_before} known, {self.repeated.total()} programs with known faults"
        ]
        lines += [f"{fault.key}: {self.reproducers.get(fault.key, 'no reproducer yet')}" for fault in new]
        return "\n  ".join([head, *lines, f"journal: {self.folder / 'journal.jsonl'}"])

    @property
    def progress(self) -> str:
        """The counts in a few words."""
        return f"{self.programs} programs, {self.refused} refused, {len(self.faults)} faults"


def hunt(
    pass_: Any,
    minutes: float,
    folder: Path,
    *,
    seed: int = 0,
    timeout: float | None = None,
    memory: int | None = None,
    known: Path | None = None,
    on_progress: Callable[[str], object] = lambda text: None,
) -> HuntReport:
    """Search for faults of a pass or compiler for some minutes, and return all of them.

    Args:
        pass_: a compiler, or any pass that ``check_pass`` takes.
        minutes: the time of the campaign.
        folder: the folder of the campaign; it continues if the folder has a journal.
        seed: makes the programs the same.
        timeout: seconds for a group of programs; by default 300.
        memory: MiB for the child process.
        known: a file with keys of faults to skip, one a line; ``#`` starts a comment.
        on_progress: called with the counts and the time left.

    Raises:
        FxError: the pass is unknown or unavailable, or there can be no child process.
    """
    if (why := unavailable()) is not None:
        raise FxError("a campaign needs child processes", why=why, remedy="use --fx-check")
    loaded = load_pass(pass_)
    compiler = unwrapped(loaded)
    name, limits = pass_name(loaded), Limits(timeout or LONGEST, memory)
    is_named = isinstance(compiler, Compiler)
    modes = compiler.modes if is_named else ("eval", "train")
    bias = campaign_bias(
        keeps_state=is_named and compiler.keeps_state, keeps_blocks=not is_named or compiler.keeps_blocks
    )
    report = _resumed(HuntReport(name, folder))
    report.faults += [_listed(key) for key in _keys_in(known)]
    report.count_before = len(report.faults)
    journal, started = folder / "journal.jsonl", time.monotonic()
    end = started + 60 * minutes
    while time.monotonic() < end:
        search = _search(loaded)
        until = min(end, time.monotonic() + 60 * MINUTES_OF_CHILD)
        work = partial(_work, search, bias, modes, seed, report, until)
        source = mode = ""
        try:
            with Child(work) as child:
                while (message := received_from(child, limits))[0] != "done":
                    report.seconds = time.monotonic() - started
                    match message:
                        case "trying", source, mode:
                            pass
                        case "begins", number:
                            report.batches = number
                        case "fault", record:
                            _take(report, Fault.of_record(record), compiler, journal)
                        case "batch", number, counted:
                            _count(report, number, counted)
                            append_record(journal, {"batch": number, **counted})
                        case _:
                            raise AssertionError(message)
                    on_progress(f"{report.progress}, {max(0.0, end - time.monotonic()) / 60:.1f} min left")
        except ChildEnded as ended:
            for fault in _crash(search, ended.ending, limits, source, mode):
                if not any(each.key == fault.key for each in report.faults):
                    _take(report, fault, compiler, journal)
            counted = {"programs": 0, "refused": 0, "unjudged": 0, "repeated": {}, "ended": ended.ending.kind}
            append_record(journal, {"batch": report.batches, **counted})
            report.batches += 1  # the batch would end the next child as well
    report.seconds = time.monotonic() - started
    return report


def _search(loaded: Any) -> FaultSearch:
    compiler = unwrapped(loaded)
    without = compiler.not_promised if isinstance(compiler, Compiler) else ()
    laws = laws_of_hunts(choose_laws(without, (), may_change(loaded)))
    return FaultSearch(loaded, contract_of(loaded), laws, set[str](), 6 * LARGEST_TIME, references_of(loaded))


def _work(
    search: FaultSearch,
    bias: Bias,
    modes: tuple[str, ...],
    seed: int,
    report: HuntReport,
    until: float,
    channel: Channel,
) -> None:
    first, faults, send = report.batches, report.faults, partial(send_to, channel)
    answer_by(lambda: run_batches(search, bias, modes, seed, first, faults, send, until), channel)


def _crash(search: FaultSearch, ending: Ending, limits: Limits, source: str, mode: str) -> Iterator[Fault]:
    """Yield the fault of a program that ended the child, unless it ends a child without the compiler, too."""
    if not source:
        return
    crash = Crash(search, ending, limits, source, mode)
    if crash.needs_the_pass():
        crash.shrink()
        law = "terminates" if crash.ending.kind == "time" else "process untouched"
        shape = (crash.ending.kind, *operations_of(crash.source))
        yield Fault(law, shape, crash.source, crash.mode, f"the process {crash.ending.cause}")


def _take(report: HuntReport, fault: Fault, compiler: Any, journal: Path) -> None:
    """Record a new fault on disk, then its reproducer."""
    report.faults.append(fault)
    append_record(journal, {"fault": fault.as_record()})
    recipe = compiler.recipe if isinstance(compiler, Compiler) else None
    text = write_reproducer(fault, recipe, report.name, report.folder / "faults")
    report.reproducers[fault.key] = text
    append_record(journal, {"reproducer": text, "key": fault.key})


def _count(report: HuntReport, number: int, counted: dict[str, Any]) -> None:
    report.batches = number + 1
    report.programs += counted["programs"]
    report.refused += counted["refused"]
    report.unjudged += counted["unjudged"]
    report.repeated.update(counted["repeated"])


def _resumed(report: HuntReport) -> HuntReport:
    """Read the journal of earlier runs: the next batch, and the faults."""
    path = report.folder / "journal.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    for record in read_records(path) if path.exists() else ():
        if "fault" in record:
            report.faults.append(Fault.of_record(record["fault"]))
        elif "batch" in record:
            report.batches = max(report.batches, record["batch"] + 1)
    return report


def _keys_in(known: Path | None) -> list[str]:
    lines = known.read_text(encoding="utf-8").splitlines() if known is not None else []
    return [line for each in lines if (line := each.partition("#")[0].strip())]


def _listed(key: str) -> Fault:
    """Return the fault of a line in a file of known faults: the law, with dashes, then its operations."""
    law, *shape = key.split()
    return Fault(law.replace("-", " "), tuple(shape), "", "eval", "listed as known")
