"""--fx-threads: threads while outputs are compared and times are taken."""

import pytest
import torch

SEE_THREADS = """
import torch
from torch import nn

seen = []

class Watching(nn.Module):
    def forward(self, x):
        seen.append(torch.get_num_threads())
        return x

def test_timing(fx_model, fx_timing):
    seen.clear()
    torch.set_num_threads(3)
    timing = fx_timing(Watching(), label="watching")
    assert set(seen) == {{{threads}}}
    assert timing.threads == {threads}
    assert torch.get_num_threads() == 3

def test_comparison(fx_model, fx_equal):
    seen.clear()
    torch.set_num_threads(3)
    fx_model.runner(Watching())(fx_model.arguments(), torch.float32)
    assert set(seen) == {{{threads}}}
    assert torch.get_num_threads() == 3
"""


@pytest.mark.parametrize("options, threads", [((), 1), (("--fx-threads", "2"), 2)])
def test_outputs_and_times_have_that_many_threads_and_the_old_number_is_restored(pytester, options, threads):
    path = pytester.makepyfile(SEE_THREADS.format(threads=threads))
    before = torch.get_num_threads()
    try:
        result = pytester.runpytest("--fx-model", "mlp", "--fx-rounds", "2", *options, path)
    finally:
        torch.set_num_threads(before)
    result.assert_outcomes(passed=2)


@pytest.mark.thorough
def test_several_numbers_are_timed_one_after_the_other_and_have_rows_of_their_own(pytester):
    options = ("--fx-model", "resnet_tiny", "--fx-pass", "fuse-conv-bn", "--fx-rounds", "2")
    result = pytester.runpytest(*options, "--fx-threads", "1,2", "-k", "timing", "-v")
    result.assert_outcomes(passed=2, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["*timing?*1 threads? PASSED*", "*timing?*2 threads? PASSED*"])
    result.stdout.fnmatch_lines(
        ["resnet_tiny  fuse-conv-bn, 1 thread(s) *", "resnet_tiny  fuse-conv-bn, 2 thread(s) *"]
    )


def test_a_fault_is_localized_with_the_same_threads(pytester):
    path = pytester.makepyfile(
        counting="""
        import torch
        from torch import nn
        import fx

        COUNTS = set()

        def counted(x):
            COUNTS.add(torch.get_num_threads())
            return x * 2

        fx.wrap("counted")

        class Net(nn.Module):
            def forward(self, x):
                return torch.relu(counted(x))

        def net():
            return Net(), torch.ones(2, 4)

        def tanh(program):
            for node in program.graph.find_nodes(op="call_function", target=torch.relu):
                node.target = torch.tanh
            program.recompile()
        """,
        test_counting="""
        import counting
        import pytest
        import torch
        from pytest_fx import LawViolation

        def test_tanh(fx_equal):
            torch.set_num_threads(2)
            counting.COUNTS.clear()
            with pytest.raises(LawViolation, match="the first node that goes wrong"):
                fx_equal(counting.tanh)
            assert (counting.COUNTS, torch.get_num_threads()) == ({1}, 2)
        """,
    )
    threads = torch.get_num_threads()
    try:
        result = pytester.runpytest("--fx-model", "counting:net", path.parent / "test_counting.py")
    finally:
        torch.set_num_threads(threads)
    result.assert_outcomes(passed=1)
