"""Functions of functions (``vmap``, ``grad``, ``cond``, loops) as one operation with captured bodies."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import vmap

import fx
from fx.analysis.verify import find_violation

X = torch.linspace(-1, 2, 12).reshape(3, 4)


class Mapped(nn.Module):
    """Maps a function that reads a parameter, a buffer and a value of what is around it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x: Any) -> Any:
        total = x.sum(0)
        return vmap(lambda row: self.inner(row + self.shift) * total)(x)


class Chosen(nn.Module):
    """Takes one of two parts, as a value decides."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: Any) -> Any:
        return torch.cond(x.sum() > 0, self.small, self.large, (x,))


def chosen(x: Any, root: Chosen) -> Any:
    """What it computes."""
    return root.small(x) if x.sum() > 0 else root.large(x)


def test_the_body_of_a_function_is_a_program_and_what_it_closes_over_are_inputs_of_it() -> None:
    program = fx.symbolic_trace(Mapped())
    assert program.code.strip().splitlines()[1:] == [
        "    sum_1 = x.sum(0)",
        "    shift = self.shift",
        "    inner_weight = self.inner.weight",
        "    inner_bias = self.inner.bias",
        "    vmap_body_0 = self.vmap_body_0",
        "    vmap = fx_higher_order_vmap(vmap_body_0, (x,), {}, (shift, inner_weight, inner_bias, sum_1));  "
        "vmap_body_0 = x = shift = inner_weight = inner_bias = sum_1 = None",
        "    return vmap",
    ]
    assert program.vmap_body_0.code.strip().splitlines()[1:3] == [
        "    add = row + shift;  row = shift = None",
        "    linear = torch.nn.functional.linear(add, inner_weight, inner_bias);  "
        "add = inner_weight = inner_bias = None",
    ]


@pytest.mark.parametrize("make", [Mapped, Chosen])
def test_a_program_with_bodies_is_one_in_every_form(make: Any, tmp_path: Path) -> None:
    root = make()
    program = fx.symbolic_trace(root)
    assert list(program.state_dict()) == list(root.state_dict())
    assert find_violation(program.graph) is None
    file = tmp_path / "program.fx"
    fx.save(program, file)
    program.to_folder(tmp_path / "package_of_bodies", "Program")
    forms = {
        "itself": program,
        "copy": copy.deepcopy(program),
        "pickle": pickle.loads(pickle.dumps(program)),
        "file": fx.load(file),
        "captured again": fx.symbolic_trace(program),
        "transformed": fx.Transformer(program).transform(),
        "torch.fx": fx.interop.to_torch(program),
        "interpreter": fx.Interpreter(program).run,
    }
    state = {name: value + 0.25 for name, value in root.state_dict().items()}
    for module in (root, *(one for one in forms.values() if isinstance(one, nn.Module))):
        module.load_state_dict(state)
    for name, form in forms.items():
        for x in (X, -X[:2]):
            expected = root(x) if make is Mapped else chosen(x, root)
            torch.testing.assert_close(form(x), expected, msg=name)
    program(X).sum().backward()
    (root(X) if make is Mapped else chosen(X, root)).sum().backward()
    for own, other in zip(program.parameters(), root.parameters(), strict=True):
        assert (own.grad is None) == (other.grad is None) and own is other
