"""The time of Python around kernels on this machine, by the module, function or method that is called."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from fx.analysis.kernel_calls import record_calls
from fx.capture.tracer import symbolic_trace
from fx.graph_module import GraphModule
from fx.passes.canonicalize import Canonicalize
from fx.simulation.measured_times import Replay, seconds_of
from fx.simulation.run_times import PARAMETRIZATION, name_of_function

_GET_ATTR = 1e-7
"""Seconds to fetch a parameter; nearly nothing, at any depth of modules."""
_REPEATED = 8
"""Calls of a module or function in the program that times its Python."""
_TURNS = 3
_FLAT, _IMAGE, _PLACES = torch.ones(1, 4), torch.ones(1, 2, 2, 2), torch.zeros(1, 1, dtype=torch.int64)

MODULES: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "Linear": lambda: (nn.Linear(4, 4), _FLAT),
    "Conv2d": lambda: (nn.Conv2d(2, 2, 1), _IMAGE),
    "ConvTranspose2d": lambda: (nn.ConvTranspose2d(2, 2, 1), _IMAGE),
    "BatchNorm2d": lambda: (nn.BatchNorm2d(2), _IMAGE),
    "LayerNorm": lambda: (nn.LayerNorm(4), _FLAT),
    "Embedding": lambda: (nn.Embedding(8, 4), _PLACES),
    "EmbeddingBag": lambda: (nn.EmbeddingBag(8, 4), _PLACES),
    "ReLU": lambda: (nn.ReLU(), _FLAT),
    "GELU": lambda: (nn.GELU(), _FLAT),
    "SiLU": lambda: (nn.SiLU(), _FLAT),
    "Sigmoid": lambda: (nn.Sigmoid(), _FLAT),
    "Softmax": lambda: (nn.Softmax(-1), _FLAT),
    "Dropout": lambda: (nn.Dropout(), _FLAT),
    "Flatten": lambda: (nn.Flatten(), _FLAT),
    "MaxPool2d": lambda: (nn.MaxPool2d(1), _IMAGE),
    "AvgPool2d": lambda: (nn.AvgPool2d(1), _IMAGE),
    "AdaptiveAvgPool2d": lambda: (nn.AdaptiveAvgPool2d(2), _IMAGE),
    "PixelShuffle": lambda: (nn.PixelShuffle(1), _IMAGE),
    "LSTM": lambda: (nn.LSTM(4, 4), torch.ones(1, 1, 4)),
}
"""Modules whose Python is timed, with inputs so small that their kernels take nearly no time."""

FUNCTIONS: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = (
    (F.relu, ()),
    (torch.split, ([2, 2], -1)),
    (cast("Any", torch)._weight_norm, (torch.ones(1, 1), 0)),
)
"""Further functions to time besides those that modules call, with their arguments after the first one."""


def measure_overheads(replay: Replay) -> Iterable[tuple[str, float]]:
    """Yield the seconds of Python for a call of each kind, without its kernels.

    The time of a module is the time of its function plus a difference: that of a program with modules and a program
    with functions, timed alternately. Passes that replace modules by functions save this difference.
    """
    measured = _Overheads(replay)
    yield "program", measured.fixed
    yield "get_attr", _GET_ATTR
    builtin = measured.of_calls(torch.neg, _FLAT)
    yield "call_function", builtin
    yield "call_method", measured.of_calls(operator.methodcaller("neg"), _FLAT)
    yield "operator", measured.of_calls(operator.neg, _FLAT)
    functions = {
        name_of_function(function): measured.of_calls(lambda x, f=function, r=rest: f(x, *r), _FLAT)
        for function, rest in FUNCTIONS
    }
    calls: list[float] = []
    modules: dict[str, float] = {}
    for name, make in MODULES.items():
        modules[name], call, function_times = measured.of_module(*make(), builtin)
        functions |= function_times
        calls += [call] if function_times else []
    yield from functions.items()
    yield from modules.items()
    yield "python function", statistics.median(functions.values())
    yield "call_module", builtin + statistics.median(calls)
    convolution, image = MODULES["Conv2d"]()
    whole = measured.of_calls(parametrizations.weight_norm(convolution).eval(), image)
    yield PARAMETRIZATION, max(whole - modules["Conv2d"], 0.0)


class _Overheads:
    """A timer of Python in programs whose kernels take nearly no time."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        empty = symbolic_trace(lambda x: x)
        self.fixed = seconds_of(lambda: empty(_FLAT))
        """Seconds of Python around a whole program."""

    def of_calls(self, function: Callable[..., Any], tensor: torch.Tensor) -> float:
        """Return the seconds of Python per call, measured with a program that repeats the call."""
        return self._beside_kernels(symbolic_trace(_Repeated(function)), tensor)

    def _beside_kernels(self, program: GraphModule, tensor: torch.Tensor) -> float:
        calls = record_calls(program, tensor).calls
        timed = {key: self._replay.seconds(call) for key, call in {call.key: call for call in calls}.items()}
        kernels = sum(timed[call.key] for call in calls)
        return max((seconds_of(lambda: program(tensor)) - self.fixed - kernels) / _REPEATED, 0.0)

    def of_module(
        self, module: nn.Module, tensor: torch.Tensor, builtin: float
    ) -> tuple[float, float, dict[str, float]]:
        """Return the seconds of a module, those that its function saves, and the function's name with its seconds.

        The last is empty if the canonical form of the module calls no function.
        """
        program, canonical = (symbolic_trace(_Repeated(module.eval())) for _ in range(2))
        Canonicalize()(canonical)
        nodes = canonical.graph.find_nodes(op="call_function")
        if not nodes:
            return self._beside_kernels(program, tensor), 0.0, {}
        turns = [(seconds_of(lambda: program(tensor)), seconds_of(lambda: canonical(tensor))) for _ in range(_TURNS)]
        as_module, as_function = (min(seconds) for seconds in zip(*turns, strict=True))
        call = max((as_module - as_function) / _REPEATED, 0.0)
        whole = self._beside_kernels(canonical, tensor)
        checks = (len(nodes) // _REPEATED - 1) * builtin
        fetched = len(canonical.graph.find_nodes(op="get_attr")) / _REPEATED * _GET_ATTR
        return whole + call, call, {name_of_function(nodes[-1].target): whole - checks - fetched}


class _Repeated(nn.Module):
    """A module that calls a module or function several times on the same input."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        result: Any = None
        for _ in range(_REPEATED):
            result = self.function(x)
        return result
