"""``make models``: capture each model of the libraries, and write the table ``results/models.md``.

What is known of a model is kept in ``.pytest_fx/models.jsonl``, a line each, and not found out again.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from fx.interop.capturing import WAYS
from models import trial
from models.factories import PACKAGES, by_attribute
from models.libraries import LIBRARIES, LibraryModel
from pytest_fx.records.baseline import describe
from pytest_fx.records.records import describe_machine, write_atomically

RESULT = Path("results/models.md")
KEPT = Path(".pytest_fx/models.jsonl")

_EXPLANATION = """\
Each model is captured with `fx.capture` for two samples, on one thread, and called with two and with three samples.

- *auto*: the way by which `fx.capture(model, args)` captures the model (`docs/models.md`).
- *symbolic*, *guided*: that way alone, with the number of nodes, the milliseconds of a second capture, and the batch.
  The batch is *free* if the program computes the same as the model with two and with three samples. It is *fixed* if
  this holds with two, and a guard refuses three. The cell is empty if the model is refused; the last column has the
  reason.
- *export*: the same, in seconds, for models that auto exports.
- *suite*: the result of `pytest --fx-model` with all passes, without timings, for one model of each family. Images are
  96 pixels wide if the model accepts that.

Times may be those of a busy machine. From torchvision the four smallest models of each file are tried, up to 140
million parameters. From timm it is a small one of each file (the largest of them cut to two layers). From transformers
they are tiny ones, with a mask that leaves out tokens of the third sample only."""

Known = dict[str, trial.Record]
"""Results for models, by the names of their factories."""


def read() -> Known:
    """Return the results of earlier runs."""
    records_by_model: Known = {}
    for line in KEPT.read_text().splitlines() if KEPT.exists() else ():
        record = json.loads(line)
        records_by_model.setdefault(record["model"], {}).update(record)
    return records_by_model


def keep(model: LibraryModel, record: trial.Record, known: Known) -> None:
    """Write a result to the file at once."""
    KEPT.parent.mkdir(exist_ok=True)
    record = {"model": model.attribute, **record}
    with KEPT.open("a") as file:
        file.write(json.dumps(record) + "\n")
    known.setdefault(model.attribute, {}).update(record)
    print(json.dumps(record)[:400], flush=True)


def page(models: Sequence[LibraryModel], known: Known) -> str:
    """The table: each model with the ways that take it, or why they do not."""
    models = [model for model in models if model.attribute in known]
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES if any(m.library == name for m in models))
    lines = [
        "# Models of libraries",
        "",
        f"`make models` on {describe({**describe_machine(), 'host': None})}; {versions}.",
        _EXPLANATION,
        "",
        *_totals(models, known),
        "",
        "| model | family | auto | symbolic | guided | export | suite | refused |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(_row(model, known[model.attribute]) for model in models)]) + "\n"


def _totals(models: Sequence[LibraryModel], known: Known) -> Iterator[str]:
    groups: dict[str, list[trial.Record]] = {}
    for model in models:
        kind = model.family.partition(".")[0]
        name = f"{model.library}, detection" if kind == "detection" else model.library
        groups.setdefault(name, []).append(known[model.attribute])
    for name, records in groups.items():
        ways = [record.get("way") or "out" for record in records]
        summary = ", ".join(f"{ways.count(way)} {way}" for way in (*WAYS, "out") if way in ways)
        alone = {way: {n for n, record in enumerate(records) if _is_in(record.get(way, {}))} for way in trial.ALONE}
        counts = ", ".join(f"{len(models)} {way}" for way, models in alone.items())
        either = len(set[int]().union(*alone.values()))
        inside = sum(map(_is_in, records))
        yield f"- **{name}: {inside} of {len(records)}** ({summary}); alone {counts}, one or the other {either}"


def _is_in(record: trial.Record) -> bool:
    """Return whether a way takes a model: the program does what the model does, or refuses other samples."""
    third = record.get("batch 3", "")
    return (
        record.get("way") is not None
        and record["batch 2"] == "same"
        and (third == "same" or third.startswith(trial.GUARDED) or record.get("batch") not in (None, "free"))
    )


def _row(model: LibraryModel, record: trial.Record) -> str:
    exported = record if record["way"] == "export" else {}
    cells = (
        f"{model.library} {model.name}",
        model.family,
        record["way"] or "out",
        *(_program(record.get(way, {}), 1000, "ms") for way in trial.ALONE),
        _program(exported, 1, "s"),
        "; ".join([record.get("suite", ""), *record.get("failed", ())]),
        "; ".join([*map(_short, _refusals(record)), *filter(None, [record.get("note")])]),
    )
    return f"| {' | '.join(map(_cell, cells))} |"


def _program(record: trial.Record, scale: int, unit: str) -> str:
    """Return a description of a program: its size, the time of its capture, its batch; or its fault."""
    if record.get("way") is None:
        return ""
    third = record["batch 3"]
    batch = record.get("batch") or "free"
    if third.startswith(trial.GUARDED):
        batch = "fixed"
    elif third != "same" and batch == "free":
        batch = f"3: {third}"
    if record["batch 2"] != "same":
        batch = f"2: {record['batch 2']}"
    return f"{record['nodes']}, {record['seconds'] * scale:.{int(unit == 's')}f} {unit}, {batch}"


def _refusals(record: trial.Record) -> list[str]:
    """Return the reasons of the ways that refuse a model, each once."""
    causes = [*record.get("why", ()), *(why for way in trial.ALONE for why in record.get(way, {}).get("why", ()))]
    return list(dict.fromkeys(causes))


def _short(why: str) -> str:
    """A refusal with the file and line alone of where it was: the code of that line is long."""
    return re.sub(r"\(([^()]*\.py:\d+), in .*\)$", r"(\1)", why, flags=re.DOTALL)


def _cell(value: object) -> str:
    """Return a cell of the table, without the names of folders on this machine."""
    text = re.sub(r"/\S*/(site-packages|\.venv-models)/", "", str(value).replace(f"{PACKAGES}/", ""))
    return text.replace("|", "\\|").replace("\n", " ")


def _one_of_each_family(models: Sequence[LibraryModel], known: Known) -> Iterable[LibraryModel]:
    """Return the smallest model of each family among those that come in, or the one that the suite was run on."""
    chosen: dict[tuple[str, str], LibraryModel] = {}
    captured = [model for model in models if known.get(model.attribute, {}).get("way") is not None]
    for model in sorted(
        captured, key=lambda model: ("suite" not in known[model.attribute], known[model.attribute]["nodes"])
    ):
        chosen.setdefault((model.library, model.family), model)
    return chosen.values()


def main() -> int:
    """Try the models without a result, and write the page; 1 if a program differs from its model."""
    parser = argparse.ArgumentParser(prog="make models", description=__doc__)
    parser.add_argument("--only", default="", help="only models in whose names this is")
    parser.add_argument("--again", action="store_true", help="try also those that are known")
    parser.add_argument("--seconds", type=float, default=120, help="how long a model may take (120)")
    parser.add_argument("--suite", action="store_true", help="run the built-in suite on one model of each family, too")
    chosen = parser.parse_args()
    records_by_model = read()
    models = list(by_attribute().values())
    for model in models:
        if chosen.only in model.attribute and (chosen.again or model.attribute not in records_by_model):
            keep(model, trial.capture(model, chosen.seconds), records_by_model)
    for model in _one_of_each_family(models, records_by_model) if chosen.suite else ():
        if chosen.only in model.attribute and (chosen.again or "suite" not in records_by_model[model.attribute]):
            keep(model, trial.suite(model, 5 * chosen.seconds), records_by_model)
    write_atomically(RESULT, page(models, records_by_model))
    tried = [
        attempt
        for record in records_by_model.values()
        for attempt in (record, *(record.get(way, {}) for way in trial.ALONE))
    ]
    return int(any(record.get("way") is not None and not _is_in(record) for record in tried))


if __name__ == "__main__":
    sys.exit(main())
