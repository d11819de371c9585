"""pytest_fx.suites.model_suite: faults that the built-in tests find, and tests that are skipped."""

import sys
from unittest.mock import ANY

import pytest
from models_of_users import MODELS as MINE
from selection import thorough_except
from torch import nn

from fx import GraphModule
from model_zoo import get_model, list_models
from pytest_fx.suites import model_suite

SMALL = [name for name in list_models() if "small" in get_model(name).tags]


def test_the_whole_suite_passes_with_timings_and_compilers(pytester):
    result = pytester.runpytest("--fx-model", "two_heads", "--fx-batch", "2", "--fx-rounds", "2")
    assert result.ret == 0
    assert result.parseoutcomes()["passed"] >= 10


@pytest.mark.parametrize("model", thorough_except(("resnet_tiny", "functional_convnet", "llama_small"), SMALL))
def test_captures_and_passes_are_right_on_the_small_models_of_the_zoo(pytester, model):
    result = pytester.runpytest("--fx-model", model, "--fx-batch", "2", "--fx-no-timing", "-k", "not torch")
    assert result.ret == 0
    assert result.parseoutcomes()["passed"] >= 8


def test_inapplicable_tests_are_skipped_with_the_reason(pytester):
    run = ("-k", "pickle or saved or folder or torchscript", "--fx-no-timing", "-rs")
    result = pytester.runpytest("--fx-model", "learning_to_paint_critic_small", *run)
    result.stdout.fnmatch_lines_random(
        [
            "SKIPPED*learning_to_paint_critic_small itself cannot be pickled: *",
            "SKIPPED*it holds what a data-only file cannot: *ParametrizedConv2d is none that a file may name",
            "SKIPPED*it cannot be written as a package: *",
            "SKIPPED*TorchScript does not run learning_to_paint_critic_small itself: *",
        ]
    )


def test_a_model_with_optional_inputs_at_their_defaults_keeps_all_tests(mine):
    result = mine.runpytest("--fx-model", "mine:optional", "--fx-pass", "remove-checks", "--fx-no-timing", "-rs")
    result.assert_outcomes(passed=13, skipped=2)
    result.stdout.fnmatch_lines("SKIPPED*TorchScript does not take it: Expected a default value of type Tensor*")


def test_a_size_that_torchscript_makes_a_list_of_is_no_fault_of_the_program(mine):
    result = mine.runpytest("--fx-model", "mine:sized", "--fx-pass", "remove-checks", "--fx-no-timing", "-rs")
    assert result.parseoutcomes().get("failed") is None
    result.stdout.fnmatch_lines(
        "SKIPPED*TorchScript does not run mine:sized itself as it is: it returns tuple(tensor, list(int, int)) instead "
        "of tuple(tensor, Size(int, int))"
    )
    result.stdout.no_fnmatch_line("*wrong: structure*")


def test_outputs_of_one_byte_are_compared_and_their_infinities(mine):
    result = mine.runpytest("--fx-model", "mine:few_bits", "--fx-pass", "canonicalize", "--fx-no-timing")
    assert result.parseoutcomes().get("failed") is None
    options = ("--fx-model", "mine:few_bits", "--fx-pass", "canonicalize", "--fx-contract", "approximate(20)")
    mine.runpytest(*options, "-k", "keeps_its_contract").assert_outcomes(passed=2, deselected=13)


def test_a_program_that_torchscript_breaks_and_the_model_survives_fails(pytester, monkeypatch):
    def listing(program):
        class Listing(nn.Module):
            def forward(self, x):
                return list(program(x))

        return Listing() if isinstance(program, GraphModule) else program

    pytester.makepyfile(mine=MINE)
    monkeypatch.setattr(model_suite, "script", listing)
    result = pytester.runpytest("--fx-model", "mine:sized", "--fx-no-timing", "-k", "torchscript")
    outcomes = result.parseoutcomes()
    assert (outcomes["failed"], outcomes.get("passed", 0)) == (1, 0)
    result.stdout.fnmatch_lines("*law 'structure': the program returns something of another structure")


@pytest.mark.thorough
def test_resnet50_is_captured_fused_and_rid_of_its_checks(pytester):
    selection = "test_capture or contract and (fuse-conv-bn or remove-checks)"
    result = pytester.runpytest("--fx-model", "resnet50", "-k", selection, "-v")
    assert result.ret == 0
    small = r"\d\.\de-1\d"
    rounding = r"\d\.\de-0[56] \(\d\.\de-0[56]\) float32"
    result.stdout.re_match_lines(
        [
            rf"resnet50 +capture +right +177 +- +{rounding}.*",
            rf"resnet50 +capture, no leaf modules +right +656 +- +{rounding}.*",
            rf"resnet50 +fuse-conv-bn +right +177 -> 124 +{small} +{rounding}.*",
            rf"resnet50 +remove-checks, no leaf modules +right +656 -> 444 +0 +{rounding}.*",
        ]
    )


BRANCHING = """
import torch
from torch import nn

from model_zoo import ZooModel

class Leaf(nn.Module):
    __module__ = "torch.nn.own"
    def forward(self, x):
        return x if x.sum() > 0 else -x

def pair():
    return nn.Sequential(nn.Linear(2, 2), Leaf()), torch.ones(1, 2)

def factory():
    return ZooModel(
        "branching",
        lambda: nn.Sequential(nn.Linear(2, 2), Leaf()),
        lambda batch=1, seed=0: (torch.ones(batch, 2),),
        source="here",
        needs_leaves={needs_leaves},
    )
"""


def test_a_model_whose_leaf_modules_branch_skips_the_capture_without_leaves(pytester):
    pytester.makepyfile(mine=BRANCHING.format(needs_leaves=False))
    result = pytester.runpytest("--fx-model", "mine:pair", "-rs", "-k", "capture")
    assert result.ret == 0
    result.stdout.fnmatch_lines("SKIPPED*a module of torch.nn in it branches on values: *")


def test_a_model_of_the_zoo_that_capture_refuses_without_leaf_modules_fails(pytester):
    pytester.makepyfile(mine=BRANCHING.format(needs_leaves=False))
    result = pytester.runpytest("--fx-model", "mine:factory", "--fx-pass", "remove-checks", "-k", "without_leaf")
    result.assert_outcomes(failed=2, deselected=ANY)
    result.stdout.fnmatch_lines(
        [
            "*TraceError: symbolically traced variables cannot be used as inputs to control flow",
            "*mine:factory does not say needs_leaves, so it can be captured without leaf modules",
        ]
    )


def test_a_model_of_the_zoo_that_needs_leaf_modules_skips_the_capture_without(pytester):
    pytester.makepyfile(mine=BRANCHING.format(needs_leaves=True))
    result = pytester.runpytest("--fx-model", "mine:factory", "--fx-pass", "remove-checks", "-k", "without_leaf")
    result.assert_outcomes(skipped=2, deselected=ANY)


def test_a_capture_that_loses_something_is_caught_by_its_numbers(pytester):
    pytester.makepyfile(
        mine="""
        import fx
        import torch

        class WithoutReLU(fx.Tracer):
            def create_node(self, kind, target, *args, **kwargs):
                target = torch.abs if target is torch.relu else target
                return super().create_node(kind, target, *args, **kwargs)

        class Model(torch.nn.Module):
            def forward(self, x):
                return torch.relu(x)

        def factory():
            return Model(), -torch.ones(300)
        """
    )
    options = ("--fx-model", "mine:factory", "--fx-tracer", "mine:WithoutReLU", "-k", "capture_equals_eager")
    result = pytester.runpytest(*options)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["*LawViolation: law 'contract': capture changes what mine:factory computes", "*equal bits*"]
    )


@pytest.mark.thorough
def test_a_model_with_varying_captures_fails_even_without_assertions(pytester):
    pytester.makepyfile(
        mine="""
        import pathlib
        import torch

        def count():
            path = pathlib.Path("count")
            number = int(path.read_text()) if path.exists() else 0
            path.write_text(str(number + 1))
            return number

        class Odd(torch.nn.Module):
            def forward(self, x):
                return x + 1 if count() % 2 else 1 + x

        def factory():
            return Odd(), torch.ones(2)
        """
    )
    chosen = ("-m", "pytest", "--fx-model", "mine:factory", "-k", "deterministic", "-p", "no:cacheprovider")
    result = pytester.run(sys.executable, "-O", *chosen)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "E*law 'deterministic': captured a second time, the program of mine:factory has other code",
            "*value*add = *x = None",
            "*add = *x = None",
        ]
    )


def test_a_model_that_cannot_be_captured_fails_once_with_the_users_line(user):
    for chosen in ((), ("-k", "capture_equals_eager or pass_keeps_its_contract")):
        result = user.runpytest("--fx-model", "mine:branching", "-rs", *chosen)
        outcomes = {**result.parseoutcomes(), "deselected": 0}
        assert outcomes.pop("skipped") > 3
        assert outcomes in ({"failed": 1, "deselected": 0}, {"errors": 1, "deselected": 0})
        result.stdout.fnmatch_lines(
            [
                "> *return x if x.sum() > 0 else -x",
                "E*where*mine.py:*, in *forward*x if x.sum() > 0*",
                "mine.py:*: CaptureError",
                "SKIPPED*mine:branching cannot be captured: another of its tests says why",
            ]
        )
        assert not [line for line in result.outlines if "fx/capture/tracer.py" in line or "pytest_fx/harness/" in line]


def test_a_model_that_asks_for_gradients_of_its_parameters_is_captured_again_as_the_same_calls(pytester):
    pytester.makepyfile(
        mine="""
        import torch

        class Step(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)

            def forward(self, x):
                with torch.enable_grad():
                    parameters = list(self.parameters())
                    loss = self.last(torch.tanh(self.first(x))).sum()
                    gradients = torch.autograd.grad(loss, parameters)
                    return [p - 0.1 * g for p, g in zip(parameters, gradients)]

        def factory():
            return Step(), torch.ones(3, 4)
        """
    )
    result = pytester.runpytest("--fx-model", "mine:factory", "-k", "captured_again", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)


def test_a_program_is_compared_with_a_model_that_cannot_be_captured(pytester):
    pytester.makepyfile(
        mine="""
        import torch

        class Branching(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(4, 4)

            def forward(self, x):
                y = self.linear(x)
                return torch.floor(y * 10) if y.sum() > 1e6 else (torch.tanh(y), torch.round(y * 2 + 0.5 - 2 * y))

        class Otherwise(Branching):
            def forward(self, x):
                y = self.linear(x)
                return torch.tanh(y), torch.round(y + 0.5 + y - 2 * y)

        def factory():
            torch.manual_seed(0)
            return Branching(), torch.randn(3, 4)
        """,
        test_mine="""
        import pytest
        from mine import Otherwise

        def test_a_copy(fx_model, fx_equal):
            fx_equal(fx_model.fresh())

        def test_a_step_that_rounding_decides(fx_model, fx_equal):
            program = Otherwise()
            program.load_state_dict(fx_model.fresh().state_dict())
            fx_equal(program.eval())

        def test_other_weights(fx_model, fx_equal):
            program = fx_model.fresh()
            program.linear.weight.data.mul_(1.001)
            with pytest.raises(AssertionError, match="law 'contract'"):
                fx_equal(program)

        def test_a_pass(fx_model, fx_equal):
            with pytest.raises(Exception, match="control flow"):
                fx_equal("remove-dead-code")
        """,
    )
    result = pytester.runpytest("--fx-model", "mine:factory", "test_mine.py", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=4)
