"""Our passes run inside torch.compile, and the example of it runs."""

from __future__ import annotations

import operator
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint

import fx
from fx.interop import compile_backend

EXAMPLE = Path(__file__).parents[3] / "examples" / "compile_backend.py"


@pytest.fixture(autouse=True)
def forget_compiled_code() -> Any:
    """Compile anew in each test."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_compiled_model_computes_and_learns_like_eager() -> None:
    seen: list[fx.GraphModule] = []

    def edit(graph_module: fx.GraphModule) -> None:
        seen.append(graph_module)
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
            node.target = torch.tanh
        graph_module.recompile()

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    x = torch.linspace(-1.0, 1.0, 6).reshape(2, 3)
    compiled = torch.compile(
        lambda value: torch.relu(model(value)), backend=compile_backend(fx.passes.RemoveDeadCode(), edit)
    )
    result = compiled(x)
    result.sum().backward()
    weight = model[0].weight
    learned, weight.grad = weight.grad, None
    expected = torch.tanh(model(x))
    expected.sum().backward()
    assert type(seen[0]).__mro__[1] is fx.GraphModule
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(learned, weight.grad)
    assert int(model[1].num_batches_tracked) == 2
    lines = [node.source.text for node in seen[0].graph.nodes if node.op.startswith("call") and node.source]
    assert any("torch.relu(model(value))" in line for line in lines)


def test_the_example_computes_what_eager_does() -> None:
    example = runpy.run_path(str(EXAMPLE))
    x, y = torch.linspace(0.0, 1.0, 5), torch.linspace(3.0, -1.0, 5)
    assert torch.equal(example["distance"](x, y), ((x - y) ** 2).sum().sqrt())

    program = fx.symbolic_trace(lambda x: (x**2, x**3))
    assert "pow_1 = x * x" in example["MultiplyInsteadOfPow"]()(program).code
    assert "pow_2 = x ** 3" in program.code


def test_a_pass_that_returns_no_program_is_named() -> None:
    def wrong(graph_module: fx.GraphModule) -> Any:
        return 3

    theirs = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(fx.PassError, match=r"pass 'wrong' .* returned a int, which is no program"):
        compile_backend(wrong)(theirs, [])


def test_passes_are_given_as_in_a_pipeline_and_refused_before_anything_is_compiled() -> None:
    theirs = torch.fx.symbolic_trace(lambda x: (x + 1, torch.relu(x))[0])
    for given in ("remove-dead-code", fx.passes.RemoveDeadCode):
        assert len(compile_backend(given)(theirs, []).graph.nodes) == 3
    with pytest.raises(fx.PassError, match="a int is no pass"):
        compile_backend(3)
    with pytest.raises(fx.PassError, match="did you mean 'remove-dead-code'"):
        compile_backend("remove-ded-code")


class Twice(torch.autograd.Function):
    """Has a gradient of its own, so that Dynamo makes programs of both directions."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 5


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by Dynamo itself
def test_higher_order_operators_run_their_bodies() -> None:
    def checkpointed(x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(lambda y: y.sin(), x, use_reentrant=False)

    for function in (checkpointed, Twice.apply):
        x, copy = (torch.linspace(-1.0, 1.0, 4).requires_grad_() for _ in range(2))
        result = torch.compile(lambda value, call=function: call(value) + 1, backend=compile_backend())(x)
        result.sum().backward()
        expected = function(copy) + 1
        expected.sum().backward()
        assert torch.equal(result, expected) and torch.equal(x.grad, copy.grad)


def test_a_pass_that_leaves_old_code_behind_is_named() -> None:
    def forgetful(graph_module: fx.GraphModule) -> None:
        for node in graph_module.graph.find_nodes(op="call_function", target=operator.add):
            node.target = operator.sub

    theirs = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(fx.PassError, match="recompile"):
        compile_backend(forgetful)(theirs, [])
