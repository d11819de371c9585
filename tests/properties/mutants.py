"""The number of mutants of our own passes that ``check_pass`` kills: ``make mutants`` writes ``results/mutants.md``."""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path

from fx.passes import get_pass, list_passes
from pytest_fx.records.baseline import describe
from pytest_fx.records.records import describe_machine, write_atomically
from pytest_fx.search.mutation import FATES, Fate, MutationReport, Outcome, mutate_pass

RESULT = Path(__file__).parents[2] / "results" / "mutants.md"
MUTANTS = 20
"""Mutants of each pass, drawn from all that there are."""
EXAMPLES = 60
"""Programs of each search."""
WITHOUT = {"quantize": ("contract", "batch sizes", "non-contiguous inputs", "non-finite inputs")}
"""Laws that are not checked for a pass, as in ``test_passes.py``."""
EXPLAINED = {
    "fold_constants.py: condition negated: `is_tensor` → `not is_tensor`":
        "a folded tensor is an argument of its users, and no buffer, with the same values",
    "fuse_conv_bn.py: comparison swapped: `layer.module is not None` → `layer.module is None`":
        "of a functional layer the folded buffers become parameters, with the same values",
}  # fmt: skip
"""Reasons for which surviving mutants break no law, by their texts without the numbers of lines."""


def table(reports: Iterable[MutationReport]) -> str:
    """The reports as a page of Markdown."""
    reports = list(reports)
    columns = " | ".join(FATES)
    lines = [
        "# Mutants of our own passes",
        "",
        f"`make mutants` on {describe(describe_machine())}. A mutant is a pass with one",
        "small fault: a condition is negated, an operand, an argument, a guard or an edit is left out, a constant or a",
        f"comparison is another one. Of each pass at most {MUTANTS} are tried, the same ones in each run, by",
        f"`check_pass(pass_, max_examples={EXAMPLES}, seed=0)` and nothing else.",
        "",
        *(f"- {fate}: {words}." for fate, words in FATES.items()),
        "",
        f"**{_part(reports)}**",
        "",
        f"| pass | mutants | tried | {columns} | by raising or changing too little |",
        f"|---|--:|--:|{'--:|' * len(FATES)}--:|",
    ]
    for report in reports:
        counts = " | ".join(str(len(report.of(fate))) for fate in FATES)
        plainly = sum(outcome.by in ("raises", "changes too few programs") for outcome in report.of("killed"))
        lines.append(f"| `{report.name}` | {report.total} | {len(report.outcomes)} | {counts} | {plainly} |")
    for fate in ("survived", "acts less", "not told apart"):
        lines += ["", f"## {fate.capitalize()}", ""]
        lines += [f"- {_line(outcome)}" for report in reports for outcome in report.of(fate)] or ["None."]
    return "\n".join(lines) + "\n"


def _line(outcome: Outcome) -> str:
    text = f"{outcome.mutant} ({outcome.by})" if outcome.by else str(outcome.mutant)
    reason = EXPLAINED.get(re.sub(r":\d+: ", ": ", str(outcome.mutant), count=1))
    return text if reason is None else f"{text}: {reason}"


def _part(reports: list[MutationReport]) -> str:
    counts: dict[Fate, int] = {fate: sum(len(report.of(fate)) for report in reports) for fate in FATES}
    judged = counts["killed"] + counts["survived"]
    every = sum(counts.values()) - counts["acts less"]
    return (
        f"Killed are {counts['killed']} of the {judged} mutants that do something else than the pass on some program, "
        f"{counts['killed'] / judged:.0%}, and {counts['killed'] / every:.0%} of these and those not told apart."
    )


def main() -> int:
    """Try the mutants of each pass, or of those that are named; 1 if fewer than nine in ten are killed."""
    parser = argparse.ArgumentParser(prog="python tests/properties/mutants.py", description=__doc__)
    parser.add_argument("names", nargs="*", help="passes; by default all of ours, into results/mutants.md")
    parser.add_argument("--mutants", type=int, default=MUTANTS, help="mutants of each")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    reports: list[MutationReport] = []
    for name in arguments.names or list_passes():
        if (why := getattr(get_pass(name), "why_unavailable", lambda: None)()) is not None:
            print(f"{name}: {why}")
            continue
        start = time.perf_counter()
        without = WITHOUT.get(name, ())
        reports.append(mutate_pass(name, mutants=arguments.mutants, max_examples=EXAMPLES, without=without))
        print(reports[-1], f"\n  {time.perf_counter() - start:.0f} s", flush=True)
    if not arguments.names:
        write_atomically(RESULT, table(reports))
    return int(any(report.killed_part < 0.9 for report in reports))


if __name__ == "__main__":
    sys.exit(main())
