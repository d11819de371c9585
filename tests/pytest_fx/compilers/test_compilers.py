"""Compilers by name: each compiles a module, and its recipe for programs of plain torch does the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fx.errors import PassError
from pytest_fx import check_program
from pytest_fx.compilers import COMPILERS
from pytest_fx.forms import FormedPass, form_name, unwrapped
from pytest_fx.loading import default_passes, load_pass

SLOW = ("compile", "inductor", "inductor-frozen", "onnxruntime")


class Net(nn.Module):
    """A convolution, a batch norm and a function."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.bn(self.conv(x)))


def _inputs() -> tuple[Any, ...]:
    return ((torch.ones(2, 3, 4, 4),), {})


@pytest.mark.filterwarnings("ignore")  # several compilers warn that they are deprecated
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough) if name in SLOW else name for name in COMPILERS]
)
def test_a_compiler_and_its_recipe_compute_what_the_module_does(name: str) -> None:
    compiler = unwrapped(load_pass(name))
    if (why := compiler.why_unavailable()) is not None:
        pytest.skip(why)
    torch.manual_seed(0)
    model, args = Net().eval(), (torch.randn(2, 3, 4, 4),)
    names = {"torch": torch, "model": model, "args": args}
    with torch.no_grad():
        exec(compiler.recipe, names)
        for program in (compiler(model, args, {}), names["compiled"]):
            actual = program(*args)
            actual = actual[0] if isinstance(actual, list) else actual
            assert torch.allclose(actual, model(*args), atol=0.1 if name == "ao-quantize" else 1e-5)


def test_compilers_have_the_form_compiler_and_are_no_default_passes() -> None:
    assert {form_name(load_pass(name)) for name in COMPILERS} == {"compiler"}
    assert not set(COMPILERS) & set(default_passes())


def test_a_compiler_has_options() -> None:
    assert unwrapped(load_pass("compile{backend=aot_eager}")).backend == "aot_eager"
    with pytest.raises(PassError, match="backend"):
        load_pass("compile{backends=aot_eager}")


def refusing_at_the_first_call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a program that raises."""

    def call(*args: Any) -> Any:
        raise NotImplementedError("no kernel")

    return call


def counting(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the module."""
    return module


def test_an_exception_at_the_first_call_is_a_refusal() -> None:
    assert isinstance(load_pass(refusing_at_the_first_call), FormedPass)
    check_program(refusing_at_the_first_call, Net, _inputs)


def test_the_first_call_leaves_no_trace_in_the_state() -> None:
    check_program(counting, Net, _inputs, mode="train")
