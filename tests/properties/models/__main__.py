"""``make models``: capture each model of the libraries, and write the table ``results/models.md``.

What is known of a model is kept in ``.pytest_fx/models.jsonl``, a line each, and not found out again.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from models import trial
from models.factories import PACKAGES, by_attribute
from models.libraries import LIBRARIES, LibraryModel
from pytest_fx.records.baseline import describe
from pytest_fx.records.records import describe_machine, write_atomically

RESULT = Path("results/models.md")
KEPT = Path(".pytest_fx/models.jsonl")

Known = dict[str, trial.Record]
"""What was found out of models, by the names of their factories."""


def read() -> Known:
    """What was found out in runs before."""
    known: Known = {}
    for line in KEPT.read_text().splitlines() if KEPT.exists() else ():
        record = json.loads(line)
        known.setdefault(record["model"], {}).update(record)
    return known


def keep(model: LibraryModel, record: trial.Record, known: Known) -> None:
    """Note what was found out, at once."""
    KEPT.parent.mkdir(exist_ok=True)
    record = {"model": model.attribute, **record}
    with KEPT.open("a") as file:
        file.write(json.dumps(record) + "\n")
    known.setdefault(model.attribute, {}).update(record)
    print(json.dumps(record)[:400], flush=True)


def page(models: Sequence[LibraryModel], known: Known) -> str:
    """The table: each model with the way it came in, or why it stays out."""
    models = [model for model in models if model.attribute in known]
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES if any(m.library == name for m in models))
    lines = [
        "# Models of libraries",
        "",
        f"`make models` on {describe(describe_machine())}; {versions}.",
        'Each is captured with `fx.capture(model, how="auto")` for two samples, on one thread, and called with two and',
        "with three; seconds may be those of a busy machine. *Suite* is what `pytest --fx-model` says of all passes,",
        "without timings, of models that are exported, those that it was run on. Of torchvision the four smallest of",
        "each file are tried, up to 140 million parameters, of timm a small one of each file (the largest of them cut",
        "to two layers), of transformers tiny ones.",
        "",
    ]
    for name in LIBRARIES:
        tried = [model for model in models if model.library == name]
        lines.append(
            f"- **{name}: {sum(_is_in(known[m.attribute]) for m in tried)} of {len(tried)}** ({_ways(tried, known)})"
        )
    lines += [
        "",
        "| model | family | way | nodes | capture, s | batch 2 | batch 3 | suite | why no earlier way, why out |",
    ]
    lines.append("|---|---|---|--:|--:|---|---|---|---|")
    return "\n".join([*lines, *(_row(model, known[model.attribute]) for model in models)]) + "\n"


def _is_in(record: trial.Record) -> bool:
    return record.get("way") is not None and record.get("batch 2") == "same"


def _ways(models: Sequence[LibraryModel], known: Known) -> str:
    ways = [known[model.attribute].get("way") or "out" for model in models]
    return ", ".join(f"{ways.count(way)} {way}" for way in ("symbolic", "guided", "export", "out") if way in ways)


def _row(model: LibraryModel, record: trial.Record) -> str:
    batch = record.get("batch")
    third = record.get("batch 3", "")
    cells = (
        f"{model.library} {model.name}",
        model.family,
        record["way"] or "out",
        record.get("nodes", ""),
        record.get("seconds", ""),
        record.get("batch 2", ""),
        third if batch in (None, "free") else batch,
        "; ".join([record.get("suite", ""), *record.get("failed", ())]),
        "; ".join([*record.get("why", ()), record.get("note") or ""]).removesuffix("; "),
    )
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(value: object) -> str:
    """A cell of the table, without what folders are called on this machine."""
    text = re.sub(r"/\S*/site-packages/", "", str(value).replace(f"{PACKAGES}/", ""))
    return text.replace("|", "\\|").replace("\n", " ")


def main() -> int:
    """Try the models that are not known yet, and write the page; 1 if a program does not do what its model does."""
    parser = argparse.ArgumentParser(prog="make models", description=__doc__)
    parser.add_argument("--only", default="", help="only models in whose names this is")
    parser.add_argument("--again", action="store_true", help="try also those that are known")
    parser.add_argument("--seconds", type=float, default=120, help="how long a model may take (120)")
    parser.add_argument("--suite", action="store_true", help="run the built-in suite on those that are exported, too")
    chosen = parser.parse_args()
    known = read()
    models = list(by_attribute().values())
    for model in models:
        if chosen.only in model.attribute and (chosen.again or model.attribute not in known):
            keep(model, trial.capture(model, chosen.seconds), known)
    for model in models if chosen.suite else ():
        record = known[model.attribute] if chosen.only in model.attribute else {}
        if record.get("way") in ("guided", "export") and (chosen.again or "suite" not in record):
            keep(model, trial.suite(model, 5 * chosen.seconds), known)
    write_atomically(RESULT, page(models, known))
    return int(any(record.get("way") and record["batch 2"] != "same" for record in known.values()))


if __name__ == "__main__":
    sys.exit(main())
