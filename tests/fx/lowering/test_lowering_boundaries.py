"""Values that cannot cross the boundary of a region are computed on both sides of it."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from building import body
from torch import Tensor, nn
from toy_backend import Toy, make_converters

import fx
from fx.errors import LoweringError
from fx.graph_module import GraphModule
from fx.lowering import Converter, Converters
from fx.node import Node


def make_with_sizes() -> Converters:
    converters = make_converters()
    converters.register(Converter(Tensor.size, lambda tape, value, dim: tape.add(Tensor.size, value)))
    converters.register(Converter(F.dropout, lambda tape, input, p, training, inplace: tape.add(torch.neg, input)))
    return converters


class TakesTensors(Toy):
    """A toy whose regions are given tensors, and return tensors, except for those of ``dropout``."""

    __slots__ = ()

    converters: ClassVar[Converters] = make_with_sizes()

    def can_cross(self, node: Node) -> bool:
        return node.target not in (Tensor.size, F.dropout)

    def describe(self, built: nn.Module) -> str | None:
        return f"{len(getattr(built, 'steps'))} steps"  # noqa: B009


def lower(function: Any) -> GraphModule:
    return fx.lower(fx.symbolic_trace(function), TakesTensors(), (torch.ones(2, 3),))


def test_a_size_that_python_uses_is_requested_in_python() -> None:
    lowered = lower(lambda x: torch.cumsum(torch.relu(-x), 0) * torch.relu(-x).size(0))
    assert body(lowered) == [
        "toy_0 = self.toy_0(x)",
        "getitem = toy_0[0]",
        "getitem_1 = toy_0[1]",
        "cumsum = torch.cumsum(getitem, 0)",
        "size_1 = getitem_1.size(dim = 0)",
        "mul = cumsum * size_1",
        "return mul",
    ]


def test_values_for_one_side_alone_stay_on_that_side() -> None:
    lowered = lower(lambda x: torch.relu(F.dropout(torch.relu(x), training=False)).exp())
    assert body(lowered)[0] == "toy_0 = self.toy_0(x)"
    assert body(lowered)[-2:] == ["exp = toy_0.exp()", "return exp"]
    assert len(lowered.toy_0.steps) == 3


def test_a_value_that_python_has_and_cannot_hand_over_keeps_its_users_in_python() -> None:
    program = fx.symbolic_trace(lambda x: torch.relu(F.dropout(torch.relu(x), training=False)))
    coverage = fx.lower(program, TakesTensors(), (torch.ones(2, 3),), dry_run=True, veto=["dropout"])
    assert {refusal.node: refusal.reason for refusal in coverage.refused} == {
        "dropout": "vetoed by the caller: dropout",
        "relu_1": "it uses `%dropout`, which stays in eager Python and cannot be handed over",
    }


def test_a_report_has_the_backends_notes_on_a_region() -> None:
    lowered = lower(lambda x: torch.relu(torch.relu(x)))
    (part,) = lowered.meta["lowering"].parts
    assert part.note == "2 steps"
    assert "24 B in, 24 B out; 2 steps" in str(lowered.meta["lowering"])


def test_a_backend_can_study_the_program() -> None:
    recorded: list[Any] = []

    class Studies(Toy):
        __slots__ = ()

        def study(self, program: GraphModule, example_inputs: Any) -> None:
            recorded.append([tuple(node.meta["tensor_meta"].shape) for node in program.graph.nodes])
            if example_inputs[0].dim() == 1:
                raise LoweringError("it takes matrices")

    program = fx.symbolic_trace(lambda x: torch.relu(x))
    fx.lower(program, Studies(), (torch.ones(2, 3),))
    fx.lower(program, Studies())
    assert recorded == [[(2, 3)] * 3]
    with pytest.raises(LoweringError, match="it takes matrices"):
        fx.lower(program, Studies(), (torch.ones(3),))
