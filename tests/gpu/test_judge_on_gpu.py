"""``judge`` on a CUDA device: outputs, gradients, streams and times."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_fx import judge
from pytest_fx.errors import InputError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
X = torch.linspace(-2.0, 2.0, 192).mul(7).sin().mul(2).reshape(6, 32)
RUN = """
import sys, torch, torch.nn.functional as F
from torch import nn
from pytest_fx import judge
X = torch.linspace(-2.0, 2.0, 192).mul(7).sin().mul(2).reshape(6, 32)
def on_another_stream(x):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        out = F.gelu(x)
    torch.cuda.current_stream().wait_stream(stream)
    return out
CASES = {
    "right": (F.gelu, lambda x: F.gelu(x)),
    "module": (nn.Linear(32, 16), nn.Linear(32, 16)),
    "wrong": (F.gelu, lambda x: F.gelu(x, approximate="tanh")),
    "slow": (F.gelu, on_another_stream),
}
verdict = judge(*CASES[sys.argv[1]], X, device="cuda", folder=None, forward_only=sys.argv[1] == "slow")
print(verdict.verdict, verdict.speedup, verdict.device)
"""


def judged(name, pytester):
    """Judge in a process that has not used CUDA; return verdict, speed-up and name of the GPU."""
    path = pytester.makepyfile(**{name: RUN})
    return pytester.run("python", path, name).outlines[-1].split(maxsplit=2)


@pytest.mark.parametrize("name", ["right", "module"])
def test_a_right_candidate_is_accepted_and_the_gpu_is_named(name, pytester):
    verdict, speedup, device = judged(name, pytester)
    assert verdict == "right" and 0.5 < float(speedup) < 2 and torch.cuda.get_device_name() in device


def test_a_wrong_candidate_is_refused(pytester):
    assert judged("wrong", pytester)[0] == "wrong"


def test_work_on_another_stream_is_in_the_time(pytester):
    verdict, speedup, _ = judged("slow", pytester)
    assert verdict == "right" and float(speedup) < 0.1


def test_a_process_that_has_used_cuda_is_told(monkeypatch):
    torch.ones(1, device="cuda")
    with pytest.raises(InputError, match="a process that has not used CUDA"):
        judge(nn.ReLU(), F.relu, X, device="cuda")
