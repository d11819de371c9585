"""--fx-contract, --fx-rtol, --fx-atol: the contract of passes."""

import pytest

CONTRACT = "test_pass_keeps_its_contract"
PASS = ("--fx-model", "mine:pair", "--fx-pass", "mine:scaled", "-k", CONTRACT)


@pytest.mark.thorough
def test_a_contract_on_the_command_line_replaces_the_passes_own(user):
    assert user.runpytest(*PASS).ret == 1
    assert user.runpytest(*PASS, "--fx-contract", "approximate(50)").ret == 0
    fused = ("--fx-model", "resnet_tiny", "--fx-pass", "fuse-conv-bn", "-k", CONTRACT)
    assert user.runpytest(*fused).ret == 0
    result = user.runpytest(*fused, "--fx-contract", "exact")
    assert result.ret == 1
    result.stdout.fnmatch_lines("*exact promises equal bits*")


def test_tolerances_on_the_command_line_are_those_of_close(user):
    result = user.runpytest(*PASS, "--fx-atol", "1e-4")
    result.stdout.fnmatch_lines("*close(rtol=1e-05, atol=0.0001) allows*")


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_tolerances_bind_in_every_dtype(user, dtype):
    user.makepyfile(
        mine_too="""
        from mine import scaled

        def off(program):
            return scaled(program, 1.25)
        """
    )
    run = ("--fx-model", "mine:pair", "--fx-pass", "mine_too:off", "--fx-dtype", dtype, "-k", CONTRACT)
    result = user.runpytest(*run, "--fx-rtol", "0.2")
    assert result.ret == 1
    result.stdout.fnmatch_lines("*close(rtol=0.2, atol=1e-08) allows *")
    assert user.runpytest(*run, "--fx-rtol", "0.3").ret == 0
    assert user.runpytest(*run, "--fx-atol", "2").ret == 0


TOLERANCES = """
import mine
import pytest

@pytest.mark.parametrize("factor", [1.001, 1.1])
def test_program(fx_traced, fx_equal, factor):
    fx_equal(mine.scaled(fx_traced, factor))
"""


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_tolerances_bind_for_programs_that_exist_already(user, dtype):
    path = user.makepyfile(TOLERANCES)
    result = user.runpytest("--fx-model", "mine:pair", "--fx-dtype", dtype, "--fx-rtol", "0.05", path)
    result.assert_outcomes(passed=1, failed=1)


def test_the_factor_of_eagers_own_error_is_an_option(user):
    path = user.makepyfile(
        """
        from building import Scaled
        from fx.passes import Close

        def test_own(fx_model, fx_equal):
            fx_equal(Scaled(fx_model.fresh(), 1 + 2e-6))

        def test_said(fx_model, fx_equal):
            fx_equal(Scaled(fx_model.fresh(), 1 + 2e-6), contract=Close(error_factor=100))
        """
    )
    run = ("--fx-model", "mlp", path)
    result = user.runpytest(*run)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines("*close allows *, 8 times eager's own largest error*")
    user.runpytest(*run, "--fx-error-factor", "100").assert_outcomes(passed=2)
    result = user.runpytest(*run, "--fx-error-factor", "7")
    result.stdout.fnmatch_lines("*close allows *, 7 times eager's own largest error*")
    user.makeini("[pytest]\nfx_error_factor = 100")
    user.runpytest(*run).assert_outcomes(passed=2)
