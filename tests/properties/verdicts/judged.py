"""Passes and programs, judged in this process: rows of the catalogue once judged wrongly, and others."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import torch
import torch.fx
from catalogue import RIGHT, WRONG, fooling
from catalogue.on_models import model
from catalogue.rows import EXAMPLES, Case, Right, Wrong
from catalogue.rows import case as program
from catalogue.verdict import verdict
from torch.fx.experimental.optimization import fuse, remove_dropout

from fx.interop import adapt, is_for_torch
from pytest_fx import LawViolation, NothingJudged, check_pass
from pytest_fx.errors import TimedOutputError
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import with_data
from pytest_fx.timing.contents import Contents
from pytest_fx.timing.outputs import OutputCheck
from pytest_fx.timing.paired import time_pairs

from . import case

THEMES = ("fooling", "on_models", "made_elsewhere", "folding", "training")
"""Files of the catalogue whose passes are judged on their witnesses."""


def found(pass_: Any, **options: Any) -> str:
    """Return the verdict of ``check_pass`` on a pass, on random programs."""
    options = {"settings": hypothesis.settings(database=None), "max_examples": EXAMPLES, "seed": 0, **options}
    with tempfile.TemporaryDirectory() as folder:
        try:
            check_pass(pass_, folder=Path(folder), **options)
        except NothingJudged:
            return "nothing judged"
        except LawViolation as violation:
            return f"red: {violation.law}"
    return "green"


def said_of(row: Wrong | Right) -> str:
    """Return the sentence of the table on a pass."""
    sentence = row.wrong if isinstance(row, Wrong) else row.does
    return f"{sentence[:1].lower()}{sentence[1:]}".removesuffix(".")


def _enter(row: Wrong | Right, witness: Any) -> None:
    right = f"red: {', '.join(row.laws)}" if isinstance(row, Wrong) else "green"

    @case(row.kind, said_of(row), right)
    def _() -> str:
        return verdict(row, witness())


def _enter_found(row: Wrong | Right, more: str = "") -> None:
    @case(row.kind, said_of(row) + more, "red" if isinstance(row, Wrong) else "green")
    def _() -> str:
        return found(row.pass_, min_changed=0, max_examples=row.programs or EXAMPLES)


_ROWS = [row for row in [*WRONG.values(), *RIGHT.values()] if row.theme in (*THEMES, "formulas")]
_KINDS = list(dict.fromkeys(row.kind for row in _ROWS))
for _row in sorted(_ROWS, key=lambda row: _KINDS.index(row.kind)):  # right ones beside the wrong ones of their kind
    if _row.theme == "formulas":
        _enter_found(_row)
    else:
        for _witness in (_row.witness,) if isinstance(_row, Wrong) else _row.witnesses:
            _enter(_row, _witness)
_enter_found(WRONG["erase_checks"], ", on random programs")


# Passes of torch.fx itself, and passes that cannot be judged.


def _sets_an_item(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    y[0] = 2
    return y


def judged(pass_: Any, witness: Case) -> str:
    """Return the verdict of the suite on a pass that is no row of the catalogue."""
    return verdict(Right("", "", "", "", pass_, ()), witness)


def _enter_theirs(pass_: Any, right: str) -> None:
    @case("torch.fx", f"its own {pass_.__name__}, on random programs in evaluation mode", right)
    def _() -> str:
        return found(adapt(pass_), min_changed=0, modes=("eval",))

    @case("torch.fx", f"its own {pass_.__name__}, where an element is set", "unjudged")
    def _() -> str:
        return judged(adapt(pass_), program(_sets_an_item, torch.randn(2, 3)))


_enter_theirs(remove_dropout, "green")
_enter_theirs(fuse, "red")  # it forgets second calls of a layer, and folds norms of more features than a layer has


class _Calibrated:
    """A pass for torch.fx that wants data, and is written with names that only this class imports."""

    def __init__(self, samples: int = 0) -> None:
        self.samples = samples

    def with_data(self, data: Any) -> _Calibrated:
        return _Calibrated(len(list(data)))

    def __call__(self, graph_module: Any) -> Any:
        from torch.fx import GraphModule

        assert isinstance(graph_module, GraphModule), "written for torch.fx"
        assert self.samples, "no data was given"
        return graph_module


@case("torch.fx", "a class for torch.fx, by a local import, that is given data", "green")
def _() -> str:
    calibrated = with_data(adapt(_Calibrated()), lambda: [Arguments((torch.ones(2, 3, 8, 8),))])
    return judged(calibrated, model()) if is_for_torch(_Calibrated) else "taken for one of ours"


@case("nothing to judge", "a pass that never matches", "nothing judged")
def _() -> str:
    return found(lambda graph_module: None, min_changed=5)


def _finds_nothing_and_cleans_up(graph_module: Any) -> None:
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
        if len(node.users) > 99:
            node.target = torch.tanh
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()


def _cleans_up(graph_module: Any) -> None:
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()


@case("nothing to judge", "a pass that never matches, and calls eliminate_dead_code()", "nothing judged")
def _() -> str:
    return found(_finds_nothing_and_cleans_up, min_changed=0.05)


@case("nothing to judge", "a pass that only calls eliminate_dead_code()", "green")
def _() -> str:
    return found(_cleans_up, min_changed=0.05)


class _Turned(torch.nn.Module):
    """A model with two methods in a row that no random program has where a pass does not mention the first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.roll(3, 1).flip(1).tanh() + x


def _turn(amount: int | None) -> Callable[[torch.fx.GraphModule], None]:
    def turn(graph_module: torch.fx.GraphModule) -> None:
        for flip in graph_module.graph.find_nodes(op="call_method", target="flip"):
            roll: Any = flip.args[0]
            if str(roll.target)[::-1] == "llor" and len(roll.args) == 3:
                by = roll.args[1] if amount is None else amount
                with graph_module.graph.inserting_before(flip):
                    other = graph_module.graph.call_function(torch.flip, (roll.args[0], flip.args[1:]))
                    other = graph_module.graph.call_function(torch.roll, (other, -by, roll.args[2]))
                flip.replace_all_uses_with(other)
                graph_module.graph.erase_node(flip)
        graph_module.graph.eliminate_dead_code()
        graph_module.recompile()

    return turn


def _enter_place(says: str, amount: int | None, right: str) -> None:
    @case("places of models", f"a roll before a flip, which becomes one after it{says}", right)
    def _() -> str:
        model = _Turned(), torch.arange(10.0).reshape(2, 5)
        return found(_turn(amount), models=[model], max_examples=10, min_changed=1)


_enter_place("", None, "green")
_enter_place(", by one place whatever the first did", 1, "red: contract")


def _enter_timed(says: str, key: Callable[[torch.Tensor], Any], right: str) -> None:
    @case("times", f"a program that looks answers up by {says}", right)
    def _() -> str:
        subject = fooling.given().subject()
        program, outputs = fooling.Remembers(subject.fresh(), key), OutputCheck("program", "mlp")
        try:
            time_pairs(subject.fresh(), program, rounds=12, contents=Contents(subject.arguments), outputs=outputs)
        except TimedOutputError:
            return "red"
        return "green"


_enter_timed("address", torch.Tensor.data_ptr, "red")
_enter_timed("identity", id, "red")
_enter_timed("contents, which it never sees again", lambda x: x.numpy().tobytes(), "green")
