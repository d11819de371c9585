"""Random programs are captured: the captured program equals eager bit by bit."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from torch import nn

import fx
from pytest_fx.generation import Program, programs
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.structure import leaves, skeleton

WANTED = settings().max_examples
without_deadline = settings(deadline=None, max_examples=WANTED if WANTED > 100 else 40)  # the usual 100 is no wish
"""A program is drawn, captured and run in some milliseconds, but the first one loads the library."""


def run(module: nn.Module, inputs: Arguments) -> Any:
    """Return the result of a module, or the message of its own check, as a check of random numbers may fail later."""
    torch.default_generator.manual_seed(0)
    try:
        return module(*inputs.args, **inputs.kwargs)
    except AssertionError as error:
        return f"AssertionError: {error}"


def bits(value: Any) -> list[Any]:
    """The leaves of a value so that equal ones are the same to the bit."""
    return [
        (path, leaf.dtype, tuple(leaf.shape), torch.cat([leaf.detach().reshape(-1)]).view(torch.uint8).tolist())
        if isinstance(leaf, torch.Tensor)
        else (path, type(leaf), leaf)
        for path, leaf in leaves(value)
    ]


def assert_same_run(program: Program, one: nn.Module, other: nn.Module) -> None:
    """Run both: the results, the inputs afterwards and the buffers that both have are equal."""
    inputs, other_inputs = program.inputs.copies(), program.inputs.copies()
    wanted, got = run(one, inputs), run(other, other_inputs)
    assert skeleton(wanted) == skeleton(got)
    assert bits(wanted) == bits(got)
    assert bits((inputs.args, inputs.kwargs)) == bits((other_inputs.args, other_inputs.kwargs))
    before, after = one.state_dict(), other.state_dict()
    shared = before.keys() & after.keys()
    assert bits({key: before[key] for key in shared}) == bits({key: after[key] for key in shared})


@without_deadline
@given(programs())
def test_a_captured_program_equals_eager(program: Program) -> None:
    captured = fx.symbolic_trace(program.build(), program.concrete_args)
    captured.graph.lint()
    assert_same_run(program, program.build(), captured)


@without_deadline
@given(programs())
def test_in_training_mode_too(program: Program) -> None:
    try:
        run(program.build().train(), program.inputs.copies())
    except (ValueError, RuntimeError):
        return  # eager itself does not: a batch norm with one value for a channel, or a write to a saved tensor
    captured = fx.symbolic_trace(program.build().train(), program.concrete_args)
    assert_same_run(program, program.build().train(), captured)


@without_deadline
@given(programs())
def test_capturing_twice_gives_the_same_program(program: Program) -> None:
    once = fx.symbolic_trace(program.build(), program.concrete_args)
    assert_same_run(program, program.build(), fx.symbolic_trace(once))
