"""Lowering to TensorRT keeps the laws of passes on random programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import hypothesis
import pytest
import torch
from torch import nn

import fx
from fx.graph_module import GraphModule
from fx.lowering import TensorRT
from fx.lowering.known_program import Operation
from fx.lowering.tensorrt.library import find_library
from fx.pipelines.contract import Contract, close
from pytest_fx.search.pass_check import check_pass

EXAMPLES = 40 if hypothesis.settings().max_examples > 100 else 15  # 100 is Hypothesis's own default
"""The number of programs that are tried: more if ``make properties`` asks for them."""


class TakesAll(TensorRT):
    """The backend, which also takes small regions, but no operations that round to few digits."""

    __slots__ = ()
    min_size: ClassVar[int] = 1

    def supports(self, operation: Operation) -> str | None:
        values = (operation.node, *operation.node.all_input_nodes)
        if any(operation.subject.dtype(value) in (torch.float16, torch.bfloat16) for value in values):
            return "it rounds"
        return TensorRT.supports(self, operation)

    def build(self, region: GraphModule) -> nn.Module:
        return OfOneType(region, TensorRT.build(self, region))


class OfOneType(nn.Module):
    """A network for inputs of its own types; engines refuse other types, which the laws use to measure rounding."""

    _leaf_reason: ClassVar[str] = "it stands for an engine"
    _is_impure: ClassVar[bool] = False

    def __init__(self, region: GraphModule, network: Any) -> None:
        super().__init__()
        self.region, self.reference = region, network

    def forward(self, *inputs: Any) -> Any:
        wanted = [binding.dtype for binding in self.reference.inputs]
        return (self.reference if [tensor.dtype for tensor in inputs] == wanted else self.region)(*inputs)


@dataclass(frozen=True)
class LowerAndReadBack:
    """Lower to networks that PyTorch computes."""

    inputs: tuple[Any, ...] | None = None

    name: ClassVar[str] = "lower-and-read-back"
    contract: ClassVar[Contract] = close

    def with_data(self, data: Sequence[Any]) -> LowerAndReadBack:
        args, kwargs = data[0]
        return dataclasses.replace(self, inputs=None if kwargs else args)

    def __call__(self, graph_module: GraphModule) -> GraphModule:
        return fx.lower(graph_module, TakesAll(emulate=True), self.inputs)


@pytest.mark.thorough
@pytest.mark.skipif(find_library() is None, reason="neither tensorrt nor tensorrt_rtx is installed")
def test_random_programs_compute_the_same_as_their_networks(tmp_path: Path) -> None:
    report = check_pass(
        LowerAndReadBack(),
        modes=("eval",),
        max_examples=EXAMPLES,
        min_changed=0.2,
        without=("gradients", "batch sizes", "checks", "round trips"),
        seed=1,
        folder=tmp_path,
    )
    assert report.name == "lower-and-read-back"
