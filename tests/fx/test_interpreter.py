"""Running a program node by node, and rebuilding it on the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from building import Calling
from torch import nn

import fx


@fx.wrap
def leaf(x: Any) -> Any:
    return x if x is None else [x]


def program(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    return {"out": [torch.cat([x, y], dim=0), (x + y).sum()], "shape": x.shape}


def test_listeners_see_every_node_with_its_value() -> None:
    traced = fx.symbolic_trace(lambda x: torch.relu(x) * 2)
    recorded: list[tuple[str, float]] = []
    result = fx.Interpreter(traced, listeners=[lambda node, value: recorded.append((node.name, value.item()))]).run(
        torch.tensor([3.0])
    )
    assert recorded == [("x", 3.0), ("relu", 3.0), ("mul", 6.0), ("output", 6.0)]
    assert result.item() == 6


def test_containers_reach_operations_as_plain_ones() -> None:
    received: list[Any] = []
    traced = fx.symbolic_trace(program)
    graph = traced.graph
    cat = graph.find_nodes(op="call_function", target=torch.cat)[0]

    class Looking(fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            received.extend(type(arg) for arg in args if target is cat.target)
            return super().call_function(target, args, kwargs)

    x, y = torch.ones(1, 2), torch.zeros(1, 2)
    result = Looking(traced).run(x, y)
    assert received == [list]
    assert type(result) is dict
    assert torch.equal(result["out"][0], torch.cat([x, y]))
    assert result["shape"] == (1, 2)


def test_an_error_keeps_its_type_and_gets_a_note_with_node_and_line() -> None:
    traced = fx.symbolic_trace(Calling(lambda self, x: self.linear(torch.relu(x)), linear=nn.Linear(3, 4)))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as info:
        fx.Interpreter(traced).run(torch.ones(2, 5))
    (note,) = info.value.__notes__
    assert "While executing %linear" in note
    assert "self.linear(torch.relu(x))" in note
    assert type(info.value) is RuntimeError


def test_a_missing_input_is_named() -> None:
    traced = fx.symbolic_trace(program)
    with pytest.raises(RuntimeError, match="Expected positional argument for parameter y, but one was not passed in!"):
        fx.Interpreter(traced).run(torch.ones(1))


def test_a_missing_attribute_is_named() -> None:
    graph = fx.Graph()
    graph.output(graph.get_attr("layer.weight"))
    with pytest.raises(RuntimeError, match=r"(?s)nonexistent target layer.weight.*no attribute 'layer'"):
        fx.Interpreter(nn.Module(), graph=graph).run()


def test_a_module_without_a_graph_is_refused() -> None:
    with pytest.raises(fx.GraphError, match=r"(?s)Linear does not have.*symbolic_trace"):
        fx.Interpreter(nn.Linear(1, 1))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_boxed_inputs_of_another_number_are_refused_and_left(count: int) -> None:
    traced = fx.symbolic_trace(lambda x, y=2: x + y)
    inputs = [torch.ones(1)] * count
    with pytest.raises(fx.errors.GraphError) as failure:
        fx.Interpreter(traced).boxed_run(inputs)
    text = str(failure.value)
    assert text.startswith(
        f"boxed_run was given {count} value{'s' if count != 1 else ''}, and the program has 2 inputs"
    )
    assert "inputs: x, y" in text
    assert len(inputs) == count


def test_boxed_inputs_have_a_list_for_a_starred_parameter() -> None:
    traced = fx.symbolic_trace(lambda x, *rest: rest[1] + x)
    assert fx.Interpreter(traced).boxed_run([1, [2, 3]]) == 4


def test_boxed_inputs_are_the_parts_of_structures() -> None:
    class Structured(nn.Module):
        def forward(self, named: Any, listed: Any) -> Any:
            return {"sum": named["a"] + listed[0]}

    traced = fx.symbolic_trace(Structured(), concrete_args={"named": {"a": fx.PH}, "listed": [fx.PH]})
    interpreter = fx.Interpreter(traced)
    assert interpreter.boxed_run([1, 2]) == {"sum": 3} == interpreter.run({"a": 1}, [2])
    nested: list[Any] = [{"a": 1}, [2]]
    with pytest.raises(fx.errors.GraphError, match="takes their parts one by one") as failure:
        interpreter.boxed_run(nested)
    assert "call run(*inputs)" in str(failure.value)
    assert len(nested) == 2
    assert interpreter.boxed_run(traced.graph.process_inputs(*nested)) == {"sum": 3}


def test_a_transformer_changes_overridden_calls_and_keeps_the_rest() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor, shift: float = 0.5) -> torch.Tensor:
            return torch.sigmoid(self.linear(x)).mul(2) + shift

    class Swap(fx.Transformer):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            return super().call_function(torch.tanh if target is torch.sigmoid else target, args, kwargs)

        def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
            return super().call_method("div" if target == "mul" else target, args, kwargs)

    module = Small()
    traced = fx.symbolic_trace(module)
    before = traced.code
    swapped = Swap(traced).transform()
    x = torch.randn(1, 2)
    assert torch.equal(swapped(x), torch.tanh(module.linear(x)) / 2 + 0.5)
    assert traced.code == before
    assert "x : torch.Tensor, shift : float = 0.5" in swapped.code
    linear, original = (gm.graph.find_nodes(op="call_module")[0] for gm in (swapped, traced))
    assert linear.source == original.source
    assert linear.meta["nn_module_stack"] == original.meta["nn_module_stack"]


def test_a_transformer_of_a_program_that_writes_to_a_buffer_leaves_no_mode_on() -> None:
    counts = Calling(lambda self, x: self.count.lerp_(x, 0.5))
    counts.register_buffer("count", torch.zeros(1))
    transformed = fx.Transformer(fx.symbolic_trace(counts)).transform()
    assert torch._C._len_torch_function_stack() == 0
    assert transformed(torch.ones(1)).item() == 0.5


def test_a_transformer_keeps_wrapped_functions_wrapped() -> None:
    traced = fx.symbolic_trace(lambda x: leaf(x))
    again = fx.symbolic_trace(fx.Transformer(traced).transform())
    assert [node.target for node in again.graph.find_nodes(op="call_function")] == [leaf]
