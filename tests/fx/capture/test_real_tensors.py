"""Tensors that are not traced values: recorded uses and refused uses of them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fx


class Holding(nn.Module):
    """A buffer, a parameter, and a computation on them."""

    def __init__(self, compute: Callable[[Holding, torch.Tensor], Any]) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(3.0))
        self.weight = nn.Parameter(torch.ones(3))
        self.compute = compute

    def forward(self, x: torch.Tensor) -> Any:
        return self.compute(self, x)


def code(compute: Callable[[Holding, torch.Tensor], Any]) -> str:
    return "\n".join(
        line.split(";")[0].strip() for line in fx.symbolic_trace(Holding(compute)).code.strip().splitlines()
    )


def test_computations_on_a_buffer_alone_are_recorded_if_they_are_used() -> None:
    def compute(m: Holding, x: torch.Tensor) -> torch.Tensor:
        m.table.exp()
        return x * (m.table + 1)

    assert code(compute).splitlines()[1:] == [
        "table_1 = self.table",
        "add = table_1.add(1)",
        "mul = x * add",
        "return mul",
    ]


def test_shapes_and_lengths_of_values_of_buffers_are_real_numbers() -> None:
    def compute(m: Holding, x: torch.Tensor) -> torch.Tensor:
        for row in m.table.repeat(2, 1):
            x = x + row
        return x * m.table.unsqueeze(0).shape[1]

    module, x = Holding(compute), torch.ones(3)
    assert torch.equal(fx.symbolic_trace(module)(x), module(x))


def test_random_numbers_are_recorded_and_not_drawn() -> None:
    before = torch.get_rng_state()
    assert "torch.rand(3)" in code(lambda m, x: x + torch.rand(3))
    filled = code(lambda m, x: x + torch.empty(3).normal_())
    assert "torch.empty(3)" in filled
    assert ".normal_()" in filled
    assert torch.equal(torch.get_rng_state(), before)


def test_a_value_of_constants_is_a_constant_until_a_traced_value_is_written_to_it() -> None:
    def compute(m: Holding, x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(2, 3)
        out[0] = 7
        row = out[1]
        row.copy_(x)
        return out

    captured = fx.symbolic_trace(compute_root := Holding(compute))
    assert "torch.zeros(2, 3)" in captured.code
    for x in (torch.ones(3), torch.zeros(3)):
        assert torch.equal(captured(x), compute_root(x))
    assert "_tensor_constant0" in code(lambda m, x: x + torch.zeros(3))


def test_parameters_that_are_reached_by_name_are_recorded_with_their_gradients() -> None:
    module = Holding(lambda m, x: sum(p.pow(2).sum() for p in m.parameters()) * x)
    captured = fx.symbolic_trace(module)
    captured(torch.ones(3)).sum().backward()
    assert module.weight.grad is not None


def test_a_captured_module_has_the_state_of_its_root_under_all_its_names_and_no_constants() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(3, 3)
            self.decoder = self.encoder
            self.unused = nn.Sequential(nn.Linear(3, 2))
            self.register_buffer("version", torch.tensor(1))
            self.plain = torch.ones(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.decoder(self.encoder(x)) * torch.arange(3.0) * self.plain

    root = Tied()
    captured = fx.symbolic_trace(root)
    assert set(captured.state_dict()) == set(root.state_dict())
    assert captured.load_state_dict(root.state_dict()) is not None
    assert captured.unused is not root.unused
    assert captured.get_parameter("unused.0.weight") is root.unused[0].weight


@pytest.mark.parametrize(
    "compute, what",
    [
        (lambda m, x: x * torch.from_numpy(m.table.numpy()), "cannot read the values of a tensor of the module"),
        (lambda m, x: (m.table.unsqueeze_(0), x)[1], "cannot change the layout of a tensor of the module"),
        (lambda m, x: (setattr(m.table, "requires_grad", True), x)[1], "cannot set requires_grad of a tensor"),
    ],
    ids=["values", "layout", "attribute"],
)
def test_unrecordable_uses_of_a_real_tensor_are_refused_by_their_line(compute: Any, what: str) -> None:
    module = Holding(compute)
    with pytest.raises(fx.TraceError, match=f"(?s){what}.*where .*test_real_tensors.py:.*why .*try "):
        fx.symbolic_trace(module)
    assert torch.equal(module.table, torch.arange(3.0))
    assert not module.table.requires_grad


def test_a_number_that_was_read_out_of_a_buffer_is_checked_when_the_program_runs() -> None:
    module = Holding(lambda m, x: x * m.table[2].item())
    captured = fx.symbolic_trace(module)
    assert torch.equal(captured(torch.ones(3)), torch.full((3,), 2.0))
    module.table.add_(1)
    message = r"(?s)captured where this was 2.0: .*test_real_tensors.py:.*it is 3.0 now.*why .*try +capture the program"
    with pytest.raises(fx.GuardError, match=message):
        captured(torch.ones(3))


@pytest.mark.parametrize(
    "compute",
    [
        lambda m, x: m.table[: x.size(0)],
        lambda m, x: m.table[None, x.size(0) :],
        lambda m, x: (m.table + 1)[-x.size(0) :],
        lambda m, x: torch.arange(4)[x.size(0) : x.size(0) + 2],
    ],
)
def test_a_real_tensor_that_is_sliced_by_a_size_is_an_item_of_it(compute: Any) -> None:
    module, x = Holding(compute), torch.ones(2)
    program = fx.symbolic_trace(module)
    assert len(program.graph.find_nodes(op="call_function", target=operator.getitem)) == 1
    assert torch.equal(program(x), module(x))


def _written_into(x: Any) -> Any:
    y = torch.empty(0)
    torch.sub(x, x, out=y)
    return y


def _largest(x: Any) -> Any:
    values, places = torch.empty(0), torch.empty(0, dtype=torch.long)
    torch.max(x, 0, out=(values, places))
    return x + places.numel() + values.size(0)


def _given_data(x: Any) -> Any:
    y = torch.empty(0)
    y.data = x
    return x + y.size(0) + y


def _resized(x: Any) -> Any:
    y = torch.zeros(2)
    y.resize_(x.size(0))
    return x + y.size(0) + y.stride(0)


@pytest.mark.parametrize("examples", [None, (torch.ones(3, 3),)])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: x + _written_into(x).size(0),
        lambda x: x.reshape(_written_into(x).shape) + _written_into(x).dim(),
        lambda x: x + torch.zeros(_written_into(x).size(0)),
        _largest,
        _resized,
        _given_data,
    ],
)
def test_sizes_that_a_recorded_write_sets_are_read_when_the_program_runs(program: Any, examples: Any) -> None:
    x = torch.rand(3, 3)
    captured = fx.symbolic_trace(program, example_inputs=examples)
    assert torch.equal(captured(x), program(x))
    if not captured.guards:
        x = torch.rand(5, 5)
        assert torch.equal(captured(x), program(x))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x + len(_written_into(x)),
        lambda x: sum(_written_into(x), start=x),
        lambda x: x + 1 if _written_into(x).size(0) > 2 else x,
    ],
)
def test_sizes_that_a_recorded_write_sets_decide_under_a_guard_or_not_at_all(program: Any) -> None:
    with pytest.raises(fx.TraceError, match=r"where .*test_real_tensors.py"):
        fx.symbolic_trace(program)
    captured, x = fx.symbolic_trace(program, example_inputs=(torch.ones(3, 3),)), torch.rand(3, 3)
    assert torch.equal(captured(x), program(x))
    with pytest.raises(fx.GuardError):
        captured(torch.rand(2, 2))
