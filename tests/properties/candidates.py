"""``make candidates``: judge kernels that cheat, and right ones of another form; writes ``results/candidates.md``.

They are those of :mod:`catalogue.candidates`, whose authors knew the code of the judge.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

import torch
from catalogue.candidates import RIGHT, WITHOUT_EFFECT, WRONG, CandidateCase

from pytest_fx import judge
from pytest_fx.candidates.verdict import Verdict
from pytest_fx.records.baseline import describe
from pytest_fx.records.records import describe_machine, write_atomically

RESULT = Path(__file__).parents[2] / "results" / "candidates.md"
ACCEPTED = {**WITHOUT_EFFECT, **RIGHT}


def judged(name: str, case: CandidateCase) -> Verdict:
    """Judge one candidate, in an empty folder, since a wrong one leaves a test there."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            verdict = judge(case.reference, case.make(), case.inputs, forward_only=case.forward_only)
        finally:
            os.chdir(before)
    print(f"{name}: {verdict.verdict} {verdict.law} {verdict.seconds:.1f} s", flush=True)
    return verdict


def page(wrong: dict[str, Verdict], right: dict[str, Verdict]) -> str:
    """Return the verdicts as a page of Markdown."""
    refused = sum(verdict.verdict == "wrong" for verdict in wrong.values())
    accepted = sum(verdict.verdict == "right" for verdict in right.values())
    seconds = statistics.median(verdict.seconds for verdict in (*wrong.values(), *right.values()))
    lines = [
        "# Kernels that cheat, before the judge",
        "",
        f"`make candidates` on {describe(describe_machine())}, {torch.get_num_threads()} thread.",
        "Each candidate takes the place of a reference (`docs/judge.md`). The authors of these knew the judge's code.",
        "",
        f"**{refused} of {len(wrong)} wrong candidates are refused, {accepted} of {len(right)} right ones accepted; "
        f"the median verdict takes {seconds:.1f} s.**",
        "",
    ]
    for title, verdicts in (("Wrong", wrong), ("Right", right)):
        lines += [f"## {title}", "", "| candidate | verdict | law | speed-up | seconds |", "|---|---|---|--:|--:|"]
        for name, verdict in verdicts.items():
            speedup = "" if verdict.speedup is None else f"{verdict.speedup:.2f}"
            lines.append(f"| {name} | {verdict.verdict} | {verdict.law} | {speedup} | {verdict.seconds:.1f} |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Judge all candidates, write the page, and return 1 if a verdict is not right."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    wrong, right = ({name: judged(name, case) for name, case in cases.items()} for cases in (WRONG, ACCEPTED))
    write_atomically(RESULT, page(wrong, right))
    verdicts = [verdict.verdict for verdict in (*wrong.values(), *right.values())]
    return int(verdicts != ["wrong"] * len(wrong) + ["right"] * len(right))


if __name__ == "__main__":
    sys.exit(main())
