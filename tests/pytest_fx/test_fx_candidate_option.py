"""--fx-candidate, --fx-reference and --fx-inputs: kernels in the place of a reference, without a test being written."""

import pytest

KERNELS = """
import torch


def inputs(seed):
    return (torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)),)


def relu(x):
    return x * (x > 0)


def same(x):
    return torch.nn.functional.relu(x)
"""
REFERENCE = ("--fx-reference", "torch:relu", "--fx-inputs", "kernels:inputs", "--fx-no-timing")


@pytest.fixture
def kernels(pytester, monkeypatch):
    """A folder with the user's module ``kernels``."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "")
    pytester.makepyfile(kernels=KERNELS, wrong_kernels="def relu(x):\n    return x.abs()\n")
    return pytester


def test_each_candidate_is_a_test_with_its_verdict(kernels):
    names = ("--fx-candidate", "kernels:same", "--fx-candidate", "wrong_kernels:relu")
    result = kernels.runpytest(*REFERENCE, *names, "--fx-inference", "-v")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "fx::test_candidate_may_replace_its_reference[[]kernels:same[]] PASSED*",
            "fx::test_candidate_may_replace_its_reference[[]wrong_kernels:relu[]] FAILED*",
            "*RefusedCandidate: wrong_kernels:relu in the place of torch:relu: wrong, law 'values'",
            "kernels:same in the place of torch:relu: right",
        ]
    )


@pytest.mark.parametrize(
    "options, lines",
    [
        (
            "--fx-reference torch.nn.functional:rellu --fx-candidate kernels:relu --fx-inputs kernels:inputs",
            [
                "*there is no reference named 'torch.nn.functional:rellu'",
                "  try    did you mean *'torch.nn.functional:relu'*",
            ],
        ),
        (
            "--fx-reference torch:relu --fx-candidate kernels.relu --fx-inputs kernels:inputs",
            ["*cannot import the module of the candidate 'kernels.relu'", "  try    did you mean 'kernels:relu'*"],
        ),
        (
            "--fx-reference torch:relu --fx-candidate kernels:relu --fx-inputs kernels:input",
            ["*there is no set of inputs named 'kernels:input'", "  try    did you mean 'kernels:inputs'*"],
        ),
        (
            "--fx-candidate kernels:relu",
            ["*--fx-candidate needs a reference and inputs", "  try    --fx-reference *"],
        ),
        ("--fx-reference torch:relu", ["*--fx-reference has no effect", "  try    --fx-candidate NAME *"]),
    ],
)
def test_wrong_names_and_missing_ones_end_the_run_with_advice(kernels, options, lines):
    result = kernels.runpytest(*options.split())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(lines)


def test_names_may_be_set_in_the_ini_file_beside_the_folders_own_tests(kernels):
    kernels.makeini(
        """
        [pytest]
        fx_reference = torch:relu
        fx_candidate = wrong_kernels:relu
        fx_inputs = kernels:inputs
        fx_no_timing = true
        """
    )
    kernels.makepyfile(test_own="def test_own(): pass")
    kernels.runpytest().assert_outcomes(passed=1, failed=1)  # a wrong one ends soon


def test_a_test_file_may_judge_the_candidates_by_arguments_of_its_own(kernels):
    path = kernels.makepyfile(
        """
        import torch

        def test_on_large_inputs(fx_judge, fx_candidate):
            fx_judge("torch:relu", fx_candidate, torch.randn(2, 2), forward_only=True, timing=False)
        """
    )
    names = ("--fx-candidate", "kernels:same", "--fx-candidate", "wrong_kernels:relu")
    kernels.runpytest(path, *REFERENCE, *names).assert_outcomes(passed=1, failed=1)
