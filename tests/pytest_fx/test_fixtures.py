"""The fixtures in a user's test file."""

import pytest


@pytest.mark.parametrize(
    "fixture, reason", [("fx_traced", "a model: pytest --fx-model NAME"), ("fx_pass", "a pass: pytest --fx-pass NAME")]
)
def test_tests_without_a_needed_option_are_skipped_and_name_it(pytester, fixture, reason):
    path = pytester.makepyfile(f"def test_own({fixture}):\n    raise RuntimeError('not reached')")
    result = pytester.runpytest(path, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(f"SKIPPED*needs {reason}")


def test_a_test_may_name_its_models_itself(pytester):
    path = pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("fx_model", ["mlp", "two_heads"], indirect=True)
        def test_own(fx_model, fx_traced):
            assert fx_model.name in ("mlp", "two_heads")
            assert len(fx_traced.graph.nodes) > 2
        """
    )
    pytester.runpytest(path).assert_outcomes(passed=2)


def test_a_test_runs_once_for_each_pair_of_model_and_pass(pytester):
    path = pytester.makepyfile("def test_own(fx_model, fx_pass): pass")
    options = [
        "--fx-model",
        "mlp",
        "--fx-model",
        "two_heads",
        "--fx-pass",
        "fuse-conv-bn",
        "--fx-pass",
        "remove-checks",
    ]
    result = pytester.runpytest(path, *options, "-v")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines("*test_own?two_heads-remove-checks? PASSED*")


def test_each_test_gets_a_capture_of_its_own(pytester):
    path = pytester.makepyfile(
        """
        import pytest
        import torch

        @pytest.mark.parametrize("run", [1, 2])
        def test_own(run, fx_traced, fx_equal):
            fx_equal(fx_traced)
            with torch.no_grad():
                for parameter in fx_traced.parameters():
                    parameter.zero_()
            for node in list(fx_traced.graph.nodes)[::-1]:
                if node.op != "placeholder":
                    fx_traced.graph.erase_node(node)
        """
    )
    pytester.runpytest("--fx-model", "mlp", path).assert_outcomes(passed=2)


def test_fx_equal_takes_a_pass_or_the_program_that_it_made(user):
    path = user.makepyfile(
        """
        import mine
        from fx.passes import approximate

        def test_pass(fx_equal):
            comparison = fx_equal(mine.approximate_scaled)
            assert 55 < comparison.sqnr_db()[""] < 65

        def test_program(fx_traced, fx_equal):
            fx_equal(mine.scaled(fx_traced), contract=approximate(sqnr_db=55))

        def test_wrong(fx_traced, fx_equal):
            fx_equal(mine.scaled(fx_traced))
        """
    )
    result = user.runpytest("--fx-model", "mine:pair", path)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            ">*fx_equal(mine.scaled(fx_traced))",
            "E*LawViolation: law 'contract': test_wrong?mine:pair? changes what mine:pair computes",
            "E*value  eager *, transformed *",
            "E*eager in float64 *",
            "E*close allows *, 8 times eager's own largest error, *",
        ]
    )
    result.stdout.no_fnmatch_line("*contracts.py*")


def test_fx_timing_returns_times_that_a_test_can_judge(user):
    path = user.makepyfile(
        """
        import time
        from torch import nn

        class Slow(nn.Module):
            def forward(self, x):
                time.sleep(0.002)
                return x

        def test_slow(fx_timing):
            timing = fx_timing(Slow(), label="slow")
            low, high = timing.interval
            assert 0 < low <= timing.speedup <= high < 1
            assert timing.verdict == "slower"
        """
    )
    result = user.runpytest("--fx-model", "mine:pair", "--fx-rounds", "5", path)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines("mine:pair *slow *slower*")


def test_inputs_and_the_transformed_program_can_be_requested(pytester):
    path = pytester.makepyfile(
        """
        def test_transformed(fx_transformed, fx_traced, fx_inputs, fx_device):
            assert len(fx_transformed.graph.nodes) < len(fx_traced.graph.nodes)
            assert fx_transformed(*fx_inputs.args, **fx_inputs.kwargs).device == fx_device
            fx_inputs.args[0].zero_()

        def test_inputs_are_copies(fx_inputs):
            assert fx_inputs.args[0].abs().sum() > 0
        """
    )
    pytester.runpytest("--fx-model", "resnet_tiny", "--fx-pass", "fuse-conv-bn", path).assert_outcomes(passed=2)


def test_a_model_without_inputs_fails_the_first_test_that_needs_them(user):
    path = user.makepyfile(
        """
        def test_inputs(fx_inputs):
            assert False

        def test_equal(fx_equal, fx_traced):
            fx_equal(fx_traced)

        def test_timing(fx_timing, fx_traced):
            fx_timing(fx_traced)

        def test_capture(fx_traced):
            fx_traced.graph.lint()
        """
    )
    result = user.runpytest("--fx-model", "mine:bare", path, "-rs")
    result.assert_outcomes(errors=1, skipped=2, passed=1)
    result.stdout.fnmatch_lines("*InputError: mine:bare has no example inputs")


def test_fx_equal_with_input_sets_calls_a_program_with_these_alone(user):
    path = user.makepyfile(
        """
        import pytest
        from torch import nn

        class ForTwo(nn.Module):
            def __init__(self, module):
                super().__init__()
                self.module = module

            def forward(self, x):
                return self.module(x) * (1 if len(x) == 2 else 2)

        def test_sizes(fx_model, fx_equal):
            fx_equal(ForTwo(fx_model.fresh()), input_sets=1)
            with pytest.raises(AssertionError, match="law 'batch sizes'"):
                fx_equal(ForTwo(fx_model.fresh()))
        """
    )
    user.runpytest("--fx-model", "mine:pair", path).assert_outcomes(passed=1)


@pytest.mark.thorough
def test_passes_are_named_to_fx_equal_and_fx_timing_as_on_the_command_line(user):
    path = user.makepyfile(
        """
        import pytest
        import mine

        @pytest.mark.parametrize("name", ["remove-dead-code", "split{at=linear}", "mine:Renamed", mine.Renamed])
        def test_names(fx_equal, fx_timing, name):
            fx_equal(name)
            assert len(fx_timing(name).speedups) == 2

        def test_wrong(fx_equal):
            with pytest.raises(LookupError, match="did you mean 'mine:scaled'"):
                fx_equal("mine:scale")

        def test_violation(fx_equal):
            with pytest.raises(AssertionError, match="scaled changes what mine:pair computes"):
                fx_equal("mine:scaled")
        """
    )
    user.runpytest("--fx-model", "mine:pair", "--fx-rounds", "2", path).assert_outcomes(passed=6)


CONTRACTS = """
import pytest
from building import Scaled

@pytest.mark.parametrize("contract", ["exact", "approximate(60)"])
def test_a_text_is_a_contract(fx_model, fx_equal, contract):
    with pytest.raises(AssertionError, match="law 'contract'"):
        fx_equal(Scaled(fx_model.fresh(), 1.01), contract=contract)

@pytest.mark.parametrize("contract", ["exat", 3, ["close"]])
def test_an_invalid_contract_is_refused(fx_model, fx_equal, contract):
    with pytest.raises(LookupError, match="(no|not a) contract"):
        fx_equal(fx_model.captured, contract=contract)

def test_noise_within_the_text_is_kept(fx_model, fx_equal):
    fx_equal(Scaled(fx_model.fresh(), 1.01), contract="approximate(30)")
"""


@pytest.mark.thorough
def test_a_contract_may_be_given_as_text(pytester):
    pytester.runpytest("--fx-model", "mlp", pytester.makepyfile(CONTRACTS)).assert_outcomes(passed=6)


def test_a_wrong_program_is_reported_by_its_node_and_line_as_a_pass_is(pytester):
    pytester.makepyfile(
        """
        import torch

        def test_it(fx_traced, fx_equal):
            (node, *_) = fx_traced.graph.find_nodes(op="call_module", target="layers.3")
            with fx_traced.graph.inserting_before(node):
                new = fx_traced.graph.call_function(torch.relu, node.args)
            node.replace_all_uses_with(new)
            fx_traced.graph.erase_node(node)
            fx_traced.recompile()
            fx_equal(fx_traced)
        """
    )
    result = pytester.runpytest(
        "--fx-model", "mlp", "test_a_wrong_program_is_reported_by_its_node_and_line_as_a_pass_is.py"
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*the first node that goes wrong:",
            "*%relu = call_function[[]torch.relu](%layers_2)",
            "*where *small_models.py:*",
        ]
    )
