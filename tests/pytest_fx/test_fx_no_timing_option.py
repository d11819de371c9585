"""--fx-no-timing: the answer on correctness alone."""

import pytest


@pytest.mark.parametrize("options, ini", [(("--fx-no-timing",), ""), ((), "fx_no_timing = true")])
def test_no_times_are_taken(pytester, options, ini):
    pytester.makeini(f"[pytest]\n{ini}")
    result = pytester.runpytest(
        "--fx-model", "resnet_tiny", "--fx-pass", "fuse-conv-bn", "-rs", "-k", "timing", *options
    )
    result.assert_outcomes(skipped=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines("SKIPPED*the run takes no times (--fx-no-timing)")
