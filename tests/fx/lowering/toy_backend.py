"""A backend for tests: it runs relu, neg and linear layers, counts its engines, and fails on request."""

from __future__ import annotations

import operator
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx.graph_module import GraphModule
from fx.lowering import Backend, Converter, Converters, build_region
from fx.lowering.support import has_constant
from fx.node import Node


class Tape(nn.Module):
    """The engine of the toy: a list of steps over a list of values."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, tuple[Any, ...]]] = []
        self.inputs = 0
        self.outputs: tuple[int, ...] = ()
        self.is_single = True

    def begin(self, node: Node) -> None:
        pass

    def add_input(self, node: Node) -> int:
        self.inputs += 1
        return self.inputs - 1

    def add(self, function: Any, *args: Any) -> int:
        self.steps.append((function, args))
        return self.inputs + len(self.steps) - 1

    def finish(self, outputs: tuple[Any, ...], is_single: bool) -> None:
        self.outputs, self.is_single = outputs, is_single

    def forward(self, *inputs: Tensor) -> Any:
        values = list(inputs)
        for function, args in self.steps:
            values.append(function(*(values[argument] if isinstance(argument, int) else argument for argument in args)))
        results = tuple(values[output] for output in self.outputs)
        return results[0] if self.is_single else results


def make_converters() -> Converters:
    converters = Converters("toy")
    converters.register(Converter(F.relu, lambda tape, input, inplace: tape.add(torch.relu, input)))
    converters.register(Converter(operator.neg, lambda tape, value: tape.add(torch.neg, value), counts=0))
    converters.register(
        Converter(
            F.linear,
            lambda tape, input, weight, bias: tape.add(F.linear, input, weight, bias),
            has_constant("weight", "bias"),
        )
    )
    return converters


class Toy(Backend):
    __slots__ = ("built", "missing")

    name: ClassVar[str] = "toy"
    converters: ClassVar[Converters] = make_converters()
    min_size: ClassVar[int] = 1

    def __init__(self, missing: str | None = None) -> None:
        self.missing = missing
        self.built: list[Tape] = []

    def why_unavailable(self) -> str | None:
        return self.missing

    def build(self, region: GraphModule) -> nn.Module:
        tape = Tape()
        build_region(region, self.converters, tape)
        self.built.append(tape)
        return tape
