"""--fx-memory-limit: the memory of a test in a child process."""

import pytest

TAKES = """
import pytest, torch

def takes(program):
    kept = torch.ones({mib} * 2**18)

@pytest.mark.fx(memory_limit={limit})
def test_it(fx_equal): fx_equal(takes)
"""


@pytest.mark.parametrize("limit, outcome", [(100, {"failed": 1}), (1000, {"passed": 1})])
def test_a_marker_has_the_limit_of_one_test(pytester, limit, outcome):
    path = pytester.makepyfile(TAKES.format(mib=400, limit=limit))
    result = pytester.runpytest("--fx-model", "mlp", "--fx-isolate", path)
    result.assert_outcomes(**outcome)
    if "failed" in outcome:
        result.stdout.fnmatch_lines("*ProcessEnded: takes on mlp needed more than 100 MiB")
