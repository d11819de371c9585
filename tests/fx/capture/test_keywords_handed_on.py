"""``**kwargs`` of the root that are passed on or read, and structures of inputs with names."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import fx
from fx.errors import GuardError


class Scaled(nn.Module):
    def forward(self, x: Any, scale: float = 2.0) -> Any:
        return x * scale


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Scaled()

    def forward(self, x: Any, **options: Any) -> Any:
        return self.inner(x, **options)


def looks(x: Any, **options: Any) -> Any:
    if "scale" in options:
        return x
    return x * 2 if not options.items() else x


@pytest.mark.parametrize("root", [Around(), looks])
def test_a_program_is_that_without_keywords_and_refuses_to_run_with_some(root: Any) -> None:
    traced = fx.symbolic_trace(root)
    assert torch.equal(traced(torch.ones(2)), root(torch.ones(2)))
    with pytest.raises(GuardError, match="captured without \\*\\*options") as info:
        traced(torch.ones(2), scale=3.0)
    assert "  value  it is ['scale'] now" in str(info.value).splitlines()
    assert fx.symbolic_trace(traced).code == traced.code


def test_keywords_that_are_read_by_name_stay_inputs() -> None:
    traced = fx.symbolic_trace(lambda x, **options: x * options["scale"])
    assert traced(torch.ones(1), scale=3.0).item() == 3


class Pair(NamedTuple):
    first: Any
    other: Any


def test_a_named_tuple_of_inputs_is_taken_apart() -> None:
    def program(pair: Any, x: Any) -> Any:
        return Pair(pair.first + x, pair.other)

    traced = fx.symbolic_trace(program, concrete_args={"pair": Pair(fx.PH, fx.PH)})
    captured = traced(Pair(torch.ones(1), torch.zeros(1)), torch.ones(1))
    assert (type(captured), captured.first.item(), captured.other.item()) == (Pair, 2, 0)
