"""Transforms from the documentation of torch.fx, unchanged, through --fx-pass."""

from pathlib import Path

import pytest


@pytest.fixture
def documented(pytester):
    source = Path(__file__).parents[1].joinpath("documented_torch_fx_passes.py").read_text(encoding="utf-8")
    pytester.makepyfile(documented=source)
    return pytester


def run(pytester, pass_):
    options = ("--fx-model", "documented:model", "--fx-pass", f"documented:{pass_}", "-k", "test_pass", "--fx-rounds=2")
    return pytester.runpytest(*options, "-v")


def test_the_decomposition_of_relu_is_verified_and_timed(documented):
    result = run(documented, "decompose")
    assert (result.parseoutcomes()["passed"], result.ret) == (3, 0)
    result.stdout.fnmatch_lines("*decompose*7 -> 8 *")


def test_the_replacement_of_add_by_mul_is_another_program_and_blamed_on_that_node(documented):
    result = run(documented, "transform")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*LawViolation: law 'contract': transform changes what documented:model computes",
            "*the first node that goes wrong:",
            "*%add = call_function[[]torch.mul[]](%x, %y)",
            "*documented.py:*z = self.linear(torch.add(x, y))",
            "*value  add[[]*] is * in the original, * here",
            "*a test of 4 nodes that shows it alone:*",
        ]
    )
