"""Facts for the report of a pass that is wrong on a model: both programs, the node, the differing values, a drawing."""

from __future__ import annotations

import contextlib
import re
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from fx import GraphModule, draw
from fx.drawing import Figure, record_passes
from fx.interpreter import positional
from fx.passes import Close, Contract
from pytest_fx.errors import LawViolation
from pytest_fx.failures.explanation import FailureExplanation
from pytest_fx.failures.gradient_localization import GradientError
from pytest_fx.failures.node_error import NodeError
from pytest_fx.harness.contracts import Comparison
from pytest_fx.harness.equality import Leaf, Mismatch, pair_leaves
from pytest_fx.harness.heat_map import HeatMap
from pytest_fx.harness.pass_run import PassRun

LARGEST_DRAWING = 400_000
"""The most characters of a drawing that is kept; ``--fx-draw`` draws programs of any size."""


def failure_facts(
    pass_run: PassRun,
    comparison: Comparison,
    violation: LawViolation,
    wrong: NodeError | GradientError | None,
    lines: Sequence[str],
    explanation: FailureExplanation | None = None,
) -> dict[str, Any]:
    """Return the facts of a failure, as JSON can hold them. A fact whose computation raises is left out.

    ``wrong`` is the first wrong node, and ``lines`` are the lines of its explanation.
    """
    facts: dict[str, Any] = {
        "model": pass_run.subject.name,
        "program": pass_run.name,
        "law": violation.law,
        "message": str(violation).partition("\n")[0],
        "reason": reason_of(violation, wrong),
        "why": "\n".join([textwrap.dedent(str(violation).partition("\n")[2]), *lines]).strip("\n"),
    }

    def attempt(name: str, find: Callable[[], Any]) -> None:
        with contextlib.suppress(Exception):  # the failure itself must not be lost
            if (value := find()) is not None:
                facts[name] = value

    attempt("before", lambda: (pass_run.before or pass_run.subject.captured).code.strip("\n"))
    attempt("after", lambda: _code_after(pass_run))
    attempt("output_map", lambda: _output_map(comparison, pass_run.contract))
    if wrong is not None:
        facts["node"] = str(wrong).partition("\n")[0]
        attempt("where", lambda: {name: getattr(wrong.where, name) for name in ("file", "line", "function", "text")})
        attempt("before_line", lambda: line_of(facts["before"], wrong.original))
        attempt("after_line", lambda: line_of(facts["after"], wrong.node.partition(" ")[0].lstrip("%")))
        attempt("node_map", lambda: _as_data(getattr(wrong, "heat_map", None), wrong.original))
    if explanation is not None:
        attempt("drawing", lambda: _drawing(explanation, facts))
    return facts


def reason_of(violation: LawViolation, wrong: NodeError | GradientError | None = None) -> str:
    """Return one line with the law that a program breaks, the size of the error, and the first wrong node.

    >>> reason_of(LawViolation("contract", "it differs", why="they are 6 apart, SQNR -1.2 dB"))
    'contract: they are 6 apart, SQNR -1.2 dB'
    """
    what, *lines = str(violation).split("\n")
    labelled = dict(line.split(maxsplit=1) for line in reversed(lines) if len(line.split(maxsplit=1)) == 2)
    distance = labelled.get("why") or labelled.get("value") or what.partition(": ")[2]
    if wrong is None:
        return f"{violation.law}: {distance}"
    node, where = wrong.node.partition(" ")[0], wrong.where
    line = "" if where is None else f" ({Path(where.file).name}:{where.line})"
    return f"{violation.law}: {distance}; first wrong at {node}{line}"


def line_of(code: str, name: str) -> int | None:
    """Return the number of the line in generated code that computes the node of this name; None if no line does.

    >>> line_of("def forward(self, x):\\n    relu = x.relu();  x = None\\n    return relu\\n", "relu")
    2
    """
    pattern = re.compile(rf"\s*{re.escape(name)}\s*(:[^=]*)?=[^=]")
    return next((number for number, line in enumerate(code.splitlines(), 1) if pattern.match(line)), None)


def _code_after(pass_run: PassRun) -> str | None:
    if pass_run.after is not None:
        return pass_run.written.strip("\n")
    program = pass_run.program
    return program.code.strip("\n") if isinstance(program, GraphModule) else None


def _as_data(heat_map: HeatMap | None, what: str) -> dict[str, Any] | None:
    return None if heat_map is None else {"of": what, **asdict(heat_map)}


def _output_map(comparison: Comparison, contract: Contract) -> dict[str, Any] | None:
    """Return a map of the worst output's errors against eager in float64, for the first inputs that have wrong ones."""
    for expected, actual in zip(comparison.eager64, comparison.actual, strict=False):
        pairs = pair_leaves(expected, actual, same_dtype=False)
        if isinstance(pairs, Mismatch):
            continue
        worst = max(
            filter(attrgetter("is_float"), pairs),
            key=lambda leaf: leaf.largest_error / (leaf.scale or 1.0),
            default=None,
        )
        if worst is not None and bool((wrong := _is_wrong(worst, contract)).any()):
            return _as_data(HeatMap.of(worst.errors, wrong), f"output{worst.path}")
    return None


def _is_wrong(leaf: Leaf, contract: Contract) -> torch.Tensor:
    """Return a mask of the elements beyond the tolerance of a ``close`` contract; for others, of all differences."""
    return leaf.errors > (leaf.limits(contract.rtol, contract.atol) if isinstance(contract, Close) else 0.0)


def _drawing(explanation: FailureExplanation, facts: dict[str, Any]) -> str | None:
    """Draw the program before and after the pass, side by side, coloured by the error that each node adds."""
    failure = explanation.failure
    program = failure.subject.capture(leaves=failure.leaves, pass_=failure.pass_)
    arguments = failure.subject.arguments().copies()
    history = record_passes(program, [failure.pass_], positional(program, arguments.args, arguments.kwargs))
    if len(history.states) == 1:
        return None
    facts["difference"] = history.difference().summary()
    added: dict[str, float] = {}
    for _, localization in explanation.compared:
        for error in localization.errors:
            if error.wrong:
                added[error.node.partition(" ")[0].lstrip("%")] = error.made
    figures = [Figure("error added by the node", "", added)] if added else []
    with tempfile.TemporaryDirectory() as folder:
        path = draw(
            history, Path(folder, "difference.svg"), figures=figures, color=figures[0].name if figures else "opcode"
        )
        text = path.read_text(encoding="utf-8")
    return text if len(text) <= LARGEST_DRAWING else None
