"""Values that traced code compares by identity."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn

import fx
from fx.errors import GuardError

HERE = os.path.abspath(__file__)


def same_as_input(x: Any) -> Any:
    y = x.contiguous()
    return y * 2 if y is x else y * 3


def same_at_once(x: Any) -> Any:
    return x * 2 if x.to(torch.float32) is x else x


def same_by_walrus(x: Any) -> Any:
    if (y := x.add_(1)) is not x:
        y = y * 2
    return y


@pytest.mark.parametrize("program", [same_as_input, same_at_once, same_by_walrus])
def test_a_value_that_may_be_the_one_it_is_compared_with_is_refused(program: Any) -> None:
    with pytest.raises(fx.TraceError, match="cannot compare traced values by identity") as info:
        fx.symbolic_trace(program)
    assert f"{HERE}:" in str(info.value)


def test_the_refusal_names_the_line_and_a_remedy() -> None:
    with pytest.raises(fx.TraceError) as info:
        fx.symbolic_trace(same_as_input)
    assert str(info.value).splitlines() == [
        "cannot compare traced values by identity",
        f"  where  {HERE}:20, in same_as_input:  return y * 2 if y is x else y * 3",
        "  value  %contiguous = call_method[contiguous](%x)",
        "  why    the operation may return the very tensor that it takes, which is known only when the module runs",
        "  try    compare what decides it (shape, dtype, device), or put the line in a function marked fx.wrap",
    ]


_MISSING = object()


def test_new_values_and_constants_are_compared_as_they_are() -> None:
    def program(x: Any, kept: Any = 1.0) -> Any:
        y = x * 2
        z = y
        if y is x or y is _MISSING or z is not y or kept is None:
            return x
        return y

    assert torch.equal(fx.symbolic_trace(program)(torch.ones(2)), torch.full((2,), 2.0))


def optional_entry(batch: Any) -> Any:
    mask = batch.get("mask")
    return batch["x"] if mask is None else batch["x"] * mask


def test_an_entry_that_is_compared_with_none_has_to_be_there() -> None:
    traced, x = fx.symbolic_trace(optional_entry), torch.ones(2)
    assert torch.equal(traced({"x": x, "mask": x * 3}), x * 3)
    with pytest.raises(GuardError) as info:
        traced({"x": x})
    assert str(info.value).splitlines()[0] == (
        "the program was captured where this is given, and not None: "
        f'{HERE}:68, in optional_entry:  return batch["x"] if mask is None else batch["x"] * mask'
    )
    assert fx.symbolic_trace(traced).code == traced.code


@fx.wrap
def _perhaps(x: Any) -> Any:
    return x if x.sum() > 0 else None


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)

    def forward(self, x: Any) -> Any:
        y, weights = self.attention(x, x, x, need_weights=False)
        return y if weights is None else y * 2


def test_results_of_calls_that_are_kept_whole_are_not_taken_to_be_given() -> None:
    def program(x: Any) -> Any:
        if (result := _perhaps(x)) is None:
            return x * 2
        return result

    traced, weights = fx.symbolic_trace(program), fx.symbolic_trace(Weights())
    assert torch.equal(traced(torch.ones(2)), torch.ones(2))
    assert [
        str(node.args[0]) for node in weights.graph.find_nodes(op="call_function", target=fx.assertions.check_given)
    ] == ["getitem_1"]
    for call, value in ((traced, -torch.ones(2)), (weights, torch.ones(3, 1, 4))):
        with pytest.raises(GuardError, match="where this is given"):
            call(value)


def test_results_of_operations_of_torch_are_not_checked_for_none() -> None:
    def program(x: Any) -> Any:
        y = x.relu() if x is not None else None
        return x if y is None else y

    assert [node.op for node in fx.symbolic_trace(program).graph.nodes] == ["placeholder", "call_method", "output"]


def test_functions_that_a_trace_replaces_still_belong_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def filled(x: Any) -> Any:
        y = torch.empty(x.size(0))
        if y is None:
            y = x
        return x + y * 0

    monkeypatch.setattr("fx.naming.targets._paths", {})
    first = fx.symbolic_trace(filled)
    assert "check_given" not in first.code
    assert fx.symbolic_trace(filled).code == first.code


def test_a_check_inside_a_call_is_not_taken_for_a_test_of_its_result_for_none() -> None:
    class Sums(nn.Module):  # as the fusing layers of HRNet
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([nn.BatchNorm2d(2), nn.BatchNorm2d(2)])

        def forward(self, x: torch.Tensor) -> Any:
            y = None
            for part in self.parts:
                y = part(x) if y is None else y + part(x)
            return y

    model, x = Sums().eval(), torch.ones(1, 2, 3, 3)
    opened = fx.GraphModule(model, OpensModules().trace(model))
    assert torch.equal(opened(x), model(x))


class OpensModules(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return False


class FastAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2)

    def forward(self, x):
        y, weights = self.attention(x, x, x, need_weights=False)
        return y if weights is None else y * 2


def test_each_element_that_is_unpacked_may_be_compared_and_example_inputs_say_which_is_none():
    model, x = FastAttention().eval(), torch.ones(2, 4, 6)
    with pytest.raises(fx.GuardError, match="captured where this is given, and not None"):
        fx.symbolic_trace(model)(x)
    program = fx.capture(model, (x,))
    assert program.meta["capture"].way == "guided"
    assert torch.equal(program(x), model(x))
