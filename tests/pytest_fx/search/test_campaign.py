"""Campaigns: faults are grouped, kept on disk, and written as programs of plain torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pytest_fx.search.fault import Fault, operations_of
from pytest_fx.search.plain_reproducer import MOST_LINES, reproducer_of, verify, write_reproducer
from pytest_fx.search.values_as_text import WrittenInputs

PROGRAM = """\
import torch
from torch import nn


class Program(nn.Module):
    def forward(self, x):
        return torch.add(x, x, alpha=3)


def build():
    torch.default_generator.manual_seed(0)
    return Program().eval()


def inputs():
    return (torch.ones(1),), {}
"""
FAULT = Fault("contract", ("add",), PROGRAM, "eval", "law 'contract': wrong")


def test_a_fault_explains_programs_that_contain_its_operations_and_break_its_law() -> None:
    assert FAULT.explains("contract", Counter(["relu", "add"]))
    assert not FAULT.explains("contract", Counter(["relu"]))
    assert not FAULT.explains("state", Counter(["add"]))


def test_a_fault_survives_its_record() -> None:
    assert Fault.of_record(FAULT.as_record()) == FAULT
    assert FAULT.key == "contract add"
    assert operations_of(PROGRAM) == ("add",)


WRONG_RECIPE = """\
from torch.fx.experimental.normalize import NormalizeOperators
compiled = NormalizeOperators(torch.fx.symbolic_trace(model)).transform()"""
RAISING_RECIPE = "torch._assert(False, 'an assertion inside of the compiler')"


@pytest.mark.parametrize(
    "recipe, shows",
    [(WRONG_RECIPE, True), ("compiled = model", False), (RAISING_RECIPE, False)],
    ids=["wrong", "right", "assertion of the compiler"],
)
def test_a_reproducer_shows_a_fault_only_if_the_compiled_program_is_wrong(
    tmp_path: Path, recipe: str, shows: bool
) -> None:
    path = tmp_path / "fault.py"
    text = reproducer_of(FAULT, recipe, "torch-fx")
    path.write_text(text, encoding="utf-8")
    assert verify(path).shows == shows
    assert sum(bool(line.strip()) for line in text.splitlines()) <= MOST_LINES + recipe.count("\n")


OF_ONE_SHAPE = """\
shape = args[0].shape
compiled = lambda x: model(x) + (x.shape != shape)"""
RAISES_ON_OTHERS = """\
shape = args[0].shape
compiled = lambda x: model(x) if x.shape == shape else model.gone"""


@pytest.mark.parametrize("recipe", [OF_ONE_SHAPE, RAISES_ON_OTHERS], ids=["other values", "an exception"])
def test_a_reproducer_compiles_for_the_example_if_other_inputs_break_the_law(tmp_path: Path, recipe: str) -> None:
    fault = replace(FAULT, inputs="(torch.ones(2),)")
    assert write_reproducer(fault, recipe, "compile", tmp_path).endswith(".py")
    assert "not confirmed" in write_reproducer(FAULT, recipe, "compile", tmp_path)


def test_a_reproducer_of_gradients_may_write_to_inputs(tmp_path: Path) -> None:
    program = PROGRAM.replace("return torch.add(x, x, alpha=3)", "return x.sin_()")
    fault = replace(FAULT, law="gradients", source=program)
    assert write_reproducer(fault, "compiled = lambda x: model(x) * 2", "compile", tmp_path).endswith(".py")


def test_a_reproducer_of_calls_in_a_row_calls_again(tmp_path: Path) -> None:
    recipe = "compiled = lambda x, calls=[]: model(x) + (calls.append(x) or len(calls) > 1)"
    fault = replace(FAULT, law="calls in a row")
    assert write_reproducer(fault, recipe, "compile", tmp_path).endswith(".py")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.0, float("nan"), float("-inf"), float("inf"), -0.0]),
        torch.arange(6, dtype=torch.int8).view(2, 3).t(),
        torch.empty(0, 3),
        torch.tensor(True),
        torch.tensor([0.1], dtype=torch.float64),
    ],
    ids=lambda tensor: str(tuple(tensor.shape)),
)
def test_a_tensor_as_text_has_its_values_dtype_and_strides(tensor: torch.Tensor) -> None:
    (copy,) = eval(WrittenInputs.of((tensor,)).text, {"torch": torch})
    assert copy.dtype is tensor.dtype
    assert copy.stride() == tensor.stride() or not tensor.numel()
    assert torch.equal(copy.nan_to_num(), tensor.nan_to_num())
    assert not tensor.is_floating_point() or torch.equal(copy.signbit(), tensor.signbit())
