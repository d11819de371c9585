"""The time that Python takes around kernels: its measurement, and the share of a node in a program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import fx
from fx.simulation import python_overheads
from fx.simulation.measured_times import Replay
from fx.simulation.python_overheads import FUNCTIONS, MODULES, measure_overheads
from fx.simulation.run_times import name_of_function, python_around


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A clock on which each call of a module takes a second, and nothing else takes any."""
    calls: list[object] = []
    hook = torch.nn.modules.module.register_module_forward_pre_hook(lambda module, _: calls.append(module))

    def seconds_of(call: Callable[[], Any], **_: float) -> float:
        calls.clear()
        call()
        return float(len(calls))

    monkeypatch.setattr(python_overheads, "seconds_of", seconds_of)
    monkeypatch.setattr(Replay, "seconds", lambda self, call: 0.0)
    yield
    hook.remove()


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("names", [("Conv2d", "ReLU", "LSTM"), pytest.param(MODULES, marks=pytest.mark.thorough)])
def test_the_overhead_of_a_module_is_its_time_beyond_its_function(
    names: Iterable[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_overheads, "MODULES", {name: MODULES[name] for name in names})
    with torch.no_grad():
        seconds = dict(measure_overheads(Replay()))
    assert {name: seconds.pop(name) for name in names} == dict.fromkeys(names, 1.0)
    assert (seconds.pop("program"), seconds.pop("call_module")) == (1.0, 1.0)
    assert seconds.pop("parametrization") == 2.0, "one for the list, one for what is in it"
    assert seconds.pop("get_attr") == 1e-7
    functions = {name for name in seconds if name.startswith("function ")}
    assert {name_of_function(function) for function, _ in FUNCTIONS} | {name_of_function(torch.conv2d)} <= functions
    assert seconds == pytest.approx(dict.fromkeys(seconds, 0.0), abs=1e-6)


OVERHEADS = {
    "Linear": 10.0, "call_module": 20.0, "parametrization": 100.0, "get_attr": 1e-3,
    "call_function": 3.0, "call_method": 4.0, "operator": 5.0, "python function": 6.0,
    name_of_function(torch.tanh): 7.0,
}  # fmt: skip


class Wide(nn.Linear):
    """A module whose class is recognized by its base class."""


@pytest.mark.parametrize(
    "module, seconds",
    [
        (nn.Linear(2, 2), 10.0),
        (Wide(2, 2), 10.0),
        (nn.Softplus(), 20.0),
        (parametrizations.weight_norm(nn.Linear(2, 2)), 110.0),
        (parametrizations.weight_norm(parametrizations.weight_norm(nn.Linear(2, 2)), "bias", 0), 210.0),
    ],
)
def test_a_module_is_known_by_its_class_and_parametrizations_come_on_top(module: nn.Module, seconds: float) -> None:
    program = _program(module)
    (node,) = program.graph.find_nodes(op="call_module")
    assert python_around(node, program, OVERHEADS) == seconds


def _program(module: nn.Module) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.call_module("module", (graph.placeholder("x"),)))
    return fx.GraphModule(nn.ModuleDict({"module": module}), graph)


@pytest.mark.parametrize(
    "function, seconds",
    [
        (lambda x: torch.tanh(x), 7.0),
        (lambda x: torch.neg(x), 3.0),
        (lambda x: x.sum(0), 4.0),
        (lambda x: operator.add(x, 1), 5.0),
        (lambda x: F.softmax(x, -1), 6.0),
    ],
)
def test_a_function_is_known_by_itself_or_else_by_its_kind(function: Callable[..., Any], seconds: float) -> None:
    program = fx.symbolic_trace(function)
    (node,) = (node for node in program.graph.nodes if node.op in ("call_function", "call_method"))
    assert python_around(node, program, OVERHEADS) == seconds


def test_devices_that_know_no_more_are_asked_by_the_kind_of_node() -> None:
    program = fx.symbolic_trace(lambda x: torch.tanh(x) + F.softmax(x, -1))
    seconds = [python_around(node, program, {"call_function": 1.0}) for node in program.graph.nodes]
    assert seconds == [0.0, 1.0, 1.0, 1.0, 0.0]
