"""The numbers that decide verdicts leave right programs the room that they were measured to need."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fx.passes import close
from pytest_fx.harness import tolerances
from pytest_fx.harness.contracts import rounding_error
from pytest_fx.harness.equality import Leaf
from pytest_fx.harness.tolerances import ERROR_FLOOR_ULPS, SAME_PARAMETERS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_floor_holds_nearly_every_sum_in_another_order_where_eager_is_right_by_luck(dtype):
    lucky, outside = 0, 0
    for seed in range(800):
        generator = torch.Generator().manual_seed(seed)
        width, height = (int(torch.randint(low, high, (), generator=generator)) for low, high in ((2, 65), (1, 11)))
        sizes = ((width,), (height, width), (height,))
        x, weight, bias = (torch.randn(size, generator=generator).to(dtype) for size in sizes)
        order = torch.randperm(width, generator=generator)
        exact = weight.double() @ x.double() + bias.double()
        outputs = (F.linear(x, weight, bias), weight[:, order] @ x[order] + bias)
        eager, actual = ((output.double() - exact).abs().max() for output in outputs)
        if actual > close.error_factor * eager:
            lucky += 1
            outside += bool(actual > ERROR_FLOOR_ULPS * torch.finfo(dtype).eps * exact.abs().max())
    assert lucky > 2 >= outside


def test_rounding_errors_of_a_layer_are_never_far_outside_and_an_index_at_a_tie_is():
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(64, 32), torch.randn(50, 64)
    exact, rounded = layer.double()(x.double()), layer.float()(x)
    leaf = Leaf("", exact.detach(), rounded.detach())
    assert rounding_error(leaf) == leaf.largest_error
    rounded = rounded.detach().clone()
    rounded[0, 0] += 1.0
    assert rounding_error(Leaf("", exact.detach(), rounded)) < 1e-5


def test_folding_in_two_dtypes_makes_the_same_parameters_and_folding_another_epsilon_does_not():
    def folded(dtype, eps=1e-5):
        scale = weight.to(dtype) / torch.sqrt(variance.to(dtype) + eps)
        return convolution.to(dtype) * scale[:, None]

    torch.manual_seed(0)
    convolution, weight, variance = torch.randn(32, 72), torch.rand(32) + 0.1, 10 ** torch.empty(32).uniform_(-4, 2)
    for eps, is_same in ((1e-5, True), (1e-3, False)):
        leaf = Leaf("", folded(torch.float64), folded(torch.float32, eps))
        assert bool((leaf.errors <= leaf.limits(*SAME_PARAMETERS)).all()) == is_same


MODULE = Path(tolerances.__file__)


def test_every_number_has_its_reason_below_it_and_a_use():
    body = ast.parse(MODULE.read_text("utf-8")).body
    numbers = {node.targets[0].id: reason for node, reason in pairwise(body) if isinstance(node, ast.Assign)}
    others = [path.read_text("utf-8") for path in MODULE.parents[1].rglob("*.py") if path != MODULE]
    assert len(numbers) > 10
    for name, reason in numbers.items():
        assert isinstance(reason, ast.Expr) and isinstance(reason.value.value, str), (
            f"nothing says why {name} is what it is"
        )
        assert any(re.search(rf"\b{name}\b", text) for text in others), f"nothing uses {name}"


def test_documents_state_the_tolerances_of_contracts():
    rtol, atol = (f"{number:g}".replace("e-0", "e-") for number in (close.rtol, close.atol))
    factor = {8.0: "eight"}.get(close.error_factor, f"{close.error_factor:g}")
    documents = MODULE.parents[2] / "docs"
    assert f"rtol={rtol}, atol={atol}; " in (documents / "options.md").read_text("utf-8")
    assert f"than {close.error_factor:g} times" in (documents / "options.md").read_text("utf-8")
    assert f"rtol={rtol} and atol={atol}" in (documents / "faq.md").read_text("utf-8")
    for name in ("faq.md", "failures.md"):
        assert f"{factor} times" in (documents / name).read_text("utf-8")
