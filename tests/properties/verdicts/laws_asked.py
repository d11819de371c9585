"""Every law by every kind of subject: checked, or the reason why not."""

from __future__ import annotations

import string
from collections.abc import Callable

import torch
from torch import nn

from fx import GraphModule
from fx.passes import Contract, approximate, close
from pytest_fx.harness.capture import Tracing
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import TABLE, affordable, broken_laws, laws_not_asked
from pytest_fx.search.search import ONE_IN

ASKED, NOT_ABOUT = "checked", "-"


def _model(width: int = 8, how: str = "symbolic") -> Subject:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))
    return Subject("model", module, Arguments((torch.randn(4, 8),)).for_input_set, tracing=Tracing(how=how))


def _cast_twice(program: GraphModule) -> None:
    """Change the program, and nothing that it computes."""
    output = program.graph.output_node()
    with program.graph.inserting_before(output):
        output.args = (program.graph.call_method("contiguous", (output.args[0],)),)
    program.recompile()


def _passed(subject: Subject, *, leaves: bool = True, contract: Contract = close) -> PassRun:
    return PassRun(subject, _cast_twice, leaves=leaves, contract=contract)


_WIDE = 2**17
"""A width that makes a model of full size."""
KINDS: dict[str, Callable[[], PassRun]] = {
    "pass": lambda: _passed(_model()),
    "pass, full size": lambda: _passed(_model(_WIDE)),
    "pass, full size, functions": lambda: _passed(_model(_WIDE), leaves=False),
    "pass, exported": lambda: _passed(_model(how="export")),
    "pass, approximate": lambda: _passed(_model(), contract=approximate(sqnr_db=40)),
    "random program": lambda: _passed(_model()),
    "given program": lambda: PassRun.given(subject := _model(), subject.capture()),
    "opaque module": lambda: PassRun.given(subject := _model(), subject.fresh()),
    "copies of the suite": lambda: PassRun.given(subject := _model(), subject.capture(), input_set_count=1),
}
"""Makes a run of each kind; copies of the suite are programs with a set number of input sets."""


def laws_asked() -> dict[str, dict[str, str]]:
    """Return, for each kind of subject, the entry of each law that applies without a request."""
    by_kind: dict[str, dict[str, str]] = {}
    for kind, make in KINDS.items():
        pass_run = make()
        laws = [law for law in TABLE if law.kind != "demanded"]
        broken = broken_laws(affordable(laws, pass_run), pass_run)
        if broken:
            raise broken[0]
        reasons = laws_not_asked(pass_run)
        about = ("programs", "all") if pass_run.before is None else ("passes", "transforms", "all")
        by_kind[kind] = {law.name: reasons.get(law.name, ASKED) if law.of in about else NOT_ABOUT for law in laws}
        if kind == "random program":
            by_kind[kind] |= {law.name: f"checked on one program in {ONE_IN}" for law in laws if law.kind == "sampled"}
    return by_kind


def laws_asked_table() -> str:
    """Return the table in Markdown, with a letter for each reason."""
    columns = laws_asked()
    reasons = dict.fromkeys(reason for column in columns.values() for reason in column.values())
    others = [reason for reason in reasons if reason not in (ASKED, NOT_ABOUT)]
    letters = {ASKED: ASKED, NOT_ABOUT: NOT_ABOUT, **dict(zip(others, string.ascii_lowercase, strict=False))}
    lines = [f"| law | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for law in next(iter(columns.values())):
        lines.append(f"| {law} | {' | '.join(letters[column[law]] for column in columns.values())} |")
    lines += ["", f"{NOT_ABOUT}: the law does not apply to this kind of program"]
    lines += [f"{letters[reason]}: {reason}" for reason in others]
    return "\n\n".join(["\n".join(lines[: -len(others) - 1]).rstrip(), "  \n".join(lines[-len(others) - 1 :])]) + "\n"
