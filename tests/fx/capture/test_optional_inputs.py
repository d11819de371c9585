"""Inputs that a program asks for being ``None``."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import fx
from fx.assertions import check_given
from fx.errors import GuardError


def masked(x: Any, mask: Any = None) -> Any:
    if mask is not None:
        x = x * mask
    return x + 1


def test_a_program_is_that_with_its_optional_input_and_refuses_to_run_without() -> None:
    traced = fx.symbolic_trace(masked)
    assert torch.equal(traced(torch.ones(2), torch.zeros(2)), torch.ones(2))
    with pytest.raises(GuardError) as info:
        traced(torch.ones(2))
    assert str(info.value).splitlines() == [
        f"the program was captured where mask is given: {os.path.abspath(__file__)}:16, in masked; "
        "concrete_args={'mask': None} captures it without one",
        "  value  it is None",
        "  why    what the program does was decided by it, once, while it was captured",
        "  try    pass it, or capture the program without it (concrete_args)",
    ]


def test_the_way_out_captures_the_program_without_its_optional_input() -> None:
    traced = fx.symbolic_trace(masked, concrete_args={"mask": None})
    assert torch.equal(traced(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize("given", [0.5, 0])
def test_another_value_than_a_tensor_is_given_too(given: float) -> None:
    assert torch.equal(fx.symbolic_trace(masked)(torch.ones(2), given), masked(torch.ones(2), given))


def test_an_optional_input_that_is_passed_on_is_not_checked() -> None:
    traced = fx.symbolic_trace(lambda x, w, b=None: torch.nn.functional.linear(x, w, b))
    assert not traced.graph.find_nodes(op="call_function", target=check_given)
    assert traced(torch.ones(1, 2), torch.ones(1, 2)).item() == 2
