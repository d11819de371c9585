"""``make catalogue``: try the harness on the whole catalogue, and write the table ``results/catalogue.md``."""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import torch

from pytest_fx.records.baseline import describe
from pytest_fx.records.records import describe_machine, write_atomically

from . import Right, Wrong, first_tries
from .rows import EXAMPLES, EXAMPLES_KEPT
from .trial import ROWS, SECONDS, SEEDS, Trial, try_named

SEEN = "## Seen"
"""The heading above the figures that each run measures anew."""


def table(trials: list[Trial], seed: int, seeds: int) -> str:
    """The trials as a page of Markdown."""
    wrong = [trial for trial in trials if isinstance(ROWS[trial.name], Wrong)]
    right = [trial for trial in trials if isinstance(ROWS[trial.name], Right)]
    flagged = {trial.name for trial in right if trial.law}
    machine = describe(describe_machine())
    lines = [
        "# The harness, tried on wrong and right passes",
        "",
        *first_tries.section(),
        "",
        SEEN,
        "",
        f"`make catalogue` on {machine}, {torch.get_num_threads()} thread(s), seed {seed}. Each wrong pass has",
        f"{EXAMPLES} random programs and {SECONDS:g} s of a processor in which to be caught; the time is",
        f"that until it is, without the shrinking of the failure. Each right pass has {EXAMPLES_KEPT} programs",
        f"for each of {seeds} seed(s). Passes of the rounds are among them, with the defaults of `pytest --fx-check`:",
        f"{EXAMPLES_KEPT} programs, both modes, and not judged where they change too few.",
        "",
        f"**Seen: {sum(trial.caught for trial in wrong)} of {len(wrong)} wrong passes caught, "
        f"{len(flagged)} of {len({trial.name for trial in right})} right passes flagged.**",
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
        flagged = laws if any(trial.judged for trial in of_pass) and changed else "*nothing judged*"
        lines.append(f"| `{name}` | {ROWS[name].does} | {programs} | {changed} | {flagged} |")
    return "\n".join(lines) + "\n"


def _is_tried(kind: type[Wrong | Right], row: Wrong | Right, names: list[str]) -> bool:
    """Return whether a row is of this kind and is named, or needs no more programs than usual."""
    most = EXAMPLES if kind is Wrong else EXAMPLES_KEPT
    return isinstance(row, kind) and (row.name in names if names else 0 < row.programs <= most)


def _is_good(trial: Trial) -> bool:
    return trial.caught if isinstance(ROWS[trial.name], Wrong) else not trial.law


def _read(path: Path) -> dict[tuple[str, int], Trial]:
    """Return the trials of an earlier run by pass and seed."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    trials = [Trial(**json.loads(line)) for line in lines]
    return {(trial.name, trial.seed): trial for trial in trials}


def main() -> int:
    """Try every pass, or those that are named; 1 if one is not caught or flagged."""
    parser = argparse.ArgumentParser(prog="python -m catalogue", description=__doc__)
    parser.add_argument("names", nargs="*", help="passes to try; by default all")
    parser.add_argument("--round", type=int, default=0, help="try the passes of one blind round")
    parser.add_argument("--seed", type=int, default=0, help="of the programs for wrong passes")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many of them right passes have ({SEEDS})")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (1)")
    parser.add_argument("--to", type=Path, default=Path("results/catalogue.md"), help="where the table goes")
    parser.add_argument("--first-tries", action="store_true", help="write the figures of the rounds alone anew")
    parser.add_argument(
        "--resume", metavar="FILE", type=Path, help="write each trial to this file, and skip the trials that it has"
    )
    options = parser.parse_args()
    if options.first_tries:
        head, _, _ = table([], 0, 0).partition(SEEN)
        _, _, tail = options.to.read_text().partition(SEEN)
        write_atomically(options.to, f"{head}{SEEN}{tail}")
        return 0
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
    finished = _read(options.resume) if options.resume else {}
    torch.set_num_threads(1)  # as in the other processes
    pool = ProcessPoolExecutor(options.jobs, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,))
    with pool:
        running = [pool.submit(try_named, row.name, seed) for row, seed in jobs if (row.name, seed) not in finished]
        for future in as_completed(running):
            trial = future.result()
            finished[trial.name, trial.seed] = trial
            fields = {key: value for key, value in asdict(trial).items() if key not in ("message", "expected")}
            print("ok  " if _is_good(trial) else "BAD ", fields, flush=True)
            if options.names and trial.message:
                print(trial.message)
            if options.resume:
                with options.resume.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(trial)) + "\n")
    trials = [finished[row.name, seed] for row, seed in jobs]
    if not options.names:
        options.to.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.to, table(trials, options.seed, options.seeds))
    return int(not all(map(_is_good, trials)))


if __name__ == "__main__":
    sys.exit(main())
