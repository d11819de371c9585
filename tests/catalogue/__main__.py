"""``make catalogue``: try the harness on the whole catalogue, and write the table ``results/catalogue.md``."""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path

import torch

from pytest_fx.records.baseline import describe
from pytest_fx.records.records import append_record, describe_machine, read_records, write_atomically

from . import Right, Wrong, first_tries
from .rows import EXAMPLES, EXAMPLES_KEPT
from .trial import ROWS, SECONDS, SEEDS, Trial, try_named

SEEN = "## Seen"
"""The heading above the figures that each run measures anew."""
RECORDS = Path("results/raw/catalogue.jsonl")
"""The file of all trials, each with its commit."""


def table(trials: list[Trial], untried: int) -> str:
    """The trials as a page of Markdown; ``untried`` is the number of passes without a trial."""
    wrong = [trial for trial in trials if isinstance(ROWS[trial.name], Wrong)]
    right = [trial for trial in trials if isinstance(ROWS[trial.name], Right)]
    suspected = {trial.name for trial in right if trial.law}
    flagged = {name for name in suspected if not ROWS[name].fault}
    commits = Counter(trial.commit for trial in trials)
    ages = ", ".join(f"{commit} ({number} trials)" for commit, number in commits.most_common())
    machine = describe({**describe_machine(), "commit": ages})
    lines = [
        "# The harness, tried on wrong and right passes",
        "",
        *first_tries.section(),
        "",
        SEEN,
        "",
        f"`make catalogue` on {machine}, {torch.get_num_threads()} thread(s). Each wrong pass has",
        f"{EXAMPLES} random programs and {SECONDS:g} s of a processor in which to be caught; the time is",
        f"that until it is, without the shrinking of the failure. Each right pass has {EXAMPLES_KEPT} programs",
        "for each of its seeds. Passes of the rounds are among them, with the defaults of `pytest --fx-check`:",
        f"{EXAMPLES_KEPT} programs, both modes, and not judged where they change too few.",
        "",
        *([f"**{untried} passes have not been tried yet.**", ""] if untried else []),
        f"**Seen: {sum(trial.caught for trial in wrong)} of {len(wrong)} wrong passes caught, "
        f"{len(flagged)} of {len({trial.name for trial in right})} right passes flagged.**",
        "",
        f"In {len(suspected - flagged)} passes that their authors thought right, the search found a mistake. They are",
        "among the right ones, and the table names the mistake.",
        "",
        "### Wrong",
        "",
        "| pass | what is wrong | caught by the law | programs | changed | seconds |",
        "|---|---|---|--:|--:|--:|",
    ]
    for trial in wrong:
        row = ROWS[trial.name]
        words = f"{trial.kind}: {row.wrong[:1].lower()}{row.wrong[1:]}"
        verdict = trial.law if trial.judged else "*none: it changes nothing*"
        missed = "not caught in time" if trial.law else "not caught" if trial.judged else "not judged"
        law = verdict if trial.caught else f"**{missed}**"
        lines.append(f"| `{trial.name}` | {words} | {law} | {trial.programs} | {trial.changed} | {trial.seconds:.1f} |")
    lines += ["", "### Right", "", "| pass | what it does | programs | changed | flagged |", "|---|---|--:|--:|---|"]
    for name in dict.fromkeys(trial.name for trial in right):
        of_pass = [trial for trial in right if trial.name == name]
        laws = ", ".join(f"**{trial.law}** (seed {trial.seed})" for trial in of_pass if trial.law) or "no"
        programs, changed = (sum(counts) for counts in zip(*((t.programs, t.changed) for t in of_pass), strict=True))
        laws += f": {ROWS[name].fault}" if ROWS[name].fault else ""
        flagged = laws if any(trial.judged for trial in of_pass) and changed else "*nothing judged*"
        lines.append(f"| `{name}` | {ROWS[name].does} | {programs} | {changed} | {flagged} |")
    return "\n".join(lines) + "\n"


def _is_tried(kind: type[Wrong | Right], row: Wrong | Right, names: list[str]) -> bool:
    """Return whether a row is of this kind and is named, or needs no more programs than usual."""
    most = EXAMPLES if kind is Wrong else EXAMPLES_KEPT
    return isinstance(row, kind) and (row.name in names if names else 0 < row.programs <= most)


def _is_good(trial: Trial) -> bool:
    row = ROWS[trial.name]
    return trial.caught if isinstance(row, Wrong) else not trial.law or bool(row.fault)


def _read() -> dict[tuple[str, int], Trial]:
    """Return the latest trial of each pass and seed, of passes that the catalogue has."""
    trials = [Trial(**record) for record in read_records(RECORDS)]
    return {(trial.name, trial.seed): trial for trial in trials if trial.name in ROWS}


def main() -> int:
    """Try every pass, or those that are named; 1 if one is not caught or flagged."""
    parser = argparse.ArgumentParser(prog="python -m catalogue", description=__doc__)
    parser.add_argument("names", nargs="*", help="passes to try; by default all")
    parser.add_argument("--round", type=int, default=0, help="try the passes of one blind round")
    parser.add_argument("--seed", type=int, default=0, help="of the programs for wrong passes")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many of them right passes have ({SEEDS})")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (1)")
    parser.add_argument("--to", type=Path, default=Path("results/catalogue.md"), help="where the table goes")
    parser.add_argument("--table", action="store_true", help="write the table of the trials so far, and try nothing")
    parser.add_argument("--keep", action="store_true", help=f"skip what {RECORDS} has a trial of, of whatever commit")
    options = parser.parse_args()
    is_named = bool(options.names)
    if options.round:
        options.names += [row.name for row in ROWS.values() if row.round == options.round]
    searched = {row.name for row in ROWS.values() if row.programs}
    unknown = [name for name in options.names if name not in searched]
    if unknown:
        parser.error(f"the catalogue has no pass {unknown[0]!r} for random programs")
    jobs: list[tuple[Wrong | Right, int]] = []
    jobs += [(row, options.seed) for row in ROWS.values() if _is_tried(Wrong, row, options.names)]
    right = [row for row in ROWS.values() if _is_tried(Right, row, options.names)]
    jobs += [(row, seed) for row in right for seed in range(options.seeds)]
    finished = _read()
    commit = describe_machine()["commit"]
    to_skip = {key for key, trial in finished.items() if not is_named and (options.keep or trial.commit == commit)}
    torch.set_num_threads(1)  # as in the other processes
    pool = ProcessPoolExecutor(options.jobs, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,))
    new: list[Trial] = []
    with pool:
        keys = [] if options.table else [(row.name, seed) for row, seed in jobs if (row.name, seed) not in to_skip]
        random.Random(0).shuffle(keys)  # so that a run that is cut has tried a sample of all passes
        running = [pool.submit(try_named, *key) for key in keys]
        for future in as_completed(running):
            trial = replace(future.result(), commit=commit)
            new.append(trial)
            finished[trial.name, trial.seed] = trial
            append_record(RECORDS, {key: value for key, value in asdict(trial).items() if key != "message"})
            print("ok  " if _is_good(trial) else "BAD ", trial.in_words, flush=True)
            if options.names and trial.message:
                print(trial.message)
    trials = [finished[row.name, seed] for row, seed in jobs if (row.name, seed) in finished]
    if not options.names:
        options.to.parent.mkdir(parents=True, exist_ok=True)
        untried = {row.name for row, _ in jobs} - {trial.name for trial in trials}
        write_atomically(options.to, table(trials, len(untried)))
    return int(not all(map(_is_good, new)))


if __name__ == "__main__":
    sys.exit(main())
