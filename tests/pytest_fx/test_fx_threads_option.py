"""--fx-threads: threads while times are taken."""

import pytest

SEE_THREADS = """
import torch
from torch import nn

seen = []

class Watching(nn.Module):
    def forward(self, x):
        seen.append(torch.get_num_threads())
        return x

def test_threads(fx_model, fx_timing):
    before = torch.get_num_threads()
    timing = fx_timing(Watching(), label="watching")
    assert set(seen) == {{{threads}}}
    assert timing.threads == {threads}
    assert torch.get_num_threads() == before
"""


@pytest.mark.parametrize("options, threads", [((), 1), (("--fx-threads", "2"), 2)])
def test_times_are_taken_with_that_many_threads_and_the_old_number_is_restored(pytester, options, threads):
    path = pytester.makepyfile(SEE_THREADS.format(threads=threads))
    pytester.runpytest("--fx-model", "mlp", "--fx-rounds", "2", *options, path).assert_outcomes(passed=1)
