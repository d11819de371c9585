"""Programs with ``torch.cond``: analyses of kernels include those of its branches."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

import fx
from fx.analysis.cost import estimate_cost
from fx.analysis.memory import activation_memory
from fx.analysis.symbolic_shapes import symbolic_shapes
from fx.errors import AnalysisError
from fx.quantize.work import WORK, WorkCounter
from pytest_fx.harness.layouts import LayoutIndependent
from pytest_fx.timing.memory import peak_memory

X = torch.ones(250)  # 1000 bytes


@pytest.fixture
def program() -> fx.GraphModule:
    """Takes one of two branches by the sum of the input's elements."""
    root = torch.nn.Module()
    root.then = fx.symbolic_trace(lambda x: ((x + 1) * 2,))
    root.otherwise = fx.symbolic_trace(lambda x: (x.bernoulli(0.5),))
    graph = fx.Graph()
    x = graph.placeholder("x")
    call = graph.call_function(torch.gt, (graph.call_method("sum", (x,)), 0))
    parts = graph.get_attr("then"), graph.get_attr("otherwise")
    chosen = graph.call_function(torch.ops.higher_order.cond, (call, *parts, (x,)))
    graph.output(graph.call_function(operator.getitem, (chosen, 0)))
    return fx.GraphModule(root, graph)


def test_memory_of_the_part_that_runs_is_counted(program: fx.GraphModule) -> None:
    plain = peak_memory(lambda: (X + 1) * 2)
    assert plain == 2000 and 0 <= peak_memory(lambda: program(X)) - plain <= 8  # a sum, and whether it is positive


def test_random_numbers_of_a_part_do_not_depend_on_the_layout(program: fx.GraphModule) -> None:
    drawn = []
    for x in (-torch.ones(4, 6), -torch.ones(6, 4).t()):
        torch.manual_seed(0)
        with torch.no_grad(), LayoutIndependent():
            drawn.append(program(x))
    assert torch.equal(*drawn)


def test_sizes_are_followed_through_it(program: fx.GraphModule) -> None:
    assert symbolic_shapes(program, ("rows", 4)).shape_of("output") == ("rows", 4)


def test_its_work_is_not_known(program: fx.GraphModule) -> None:
    WorkCounter(program).propagate(X)
    work = {node.name: node.meta[WORK] for node in program.graph.nodes if node.op.startswith("call")}
    assert work == {"sum_1": 0, "gt": 0, "cond": None, "getitem": 0}


@pytest.mark.parametrize("analysis", [estimate_cost, activation_memory])
def test_analyses_that_depend_on_the_branch_taken_are_refused(analysis: Any, program: fx.GraphModule) -> None:
    with pytest.raises(AnalysisError) as caught:
        analysis(program, X)
    first, value, why, remedy, *_ = str(caught.value).splitlines()
    assert first == "the kernels that cond calls are not known without a run"
    assert value.startswith("  value  %cond = call_function[torch.ops.higher_order.cond](")
    assert why == "  why    values and sizes decide how many times it calls each of its parts"
    assert remedy == "  try    analyze its parts, which are programs themselves"


@pytest.mark.thorough
def test_a_model_that_calls_torch_cond_itself_which_compiles_is_watched_again_and_again() -> None:
    def choose(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: (x + 1) * 2, lambda x: x - 1, (x,))

    for x in (X, -X, X):
        choose(x)
        assert peak_memory(lambda x=x: choose(x)) >= 1000
