"""Models and passes of an imaginary user, for runs of pytest inside the tests."""

import json
import warnings
from collections.abc import Callable

import pytest
import torch

# Inner runs forget the modules that they imported first, and some of these cannot be imported again: Hypothesis refuses
# the strategies made with its first import, and torch.compile imports modules that register themselves once.
import pytest_fx.search.pass_check
import pytest_fx.suites.model_suite  # noqa: F401

torch.compile(lambda x: x, backend="eager")(torch.ones(1))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # they use deprecated parts of torch
    import torch._inductor.decomposition
    import torch._inductor.pattern_matcher


USER_MODULE = '''
"""A user's models and passes."""
import copy

import torch
from torch import nn

from fx.passes import approximate, exact
from model_zoo import ZooModel


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        with torch.no_grad():
            self.linear.weight.copy_(torch.arange(16).reshape(4, 4) / 16)

    def forward(self, x, *, shift=None):
        x = self.linear(x)
        return x if shift is None else x + shift


def pair():
    return Linear(), (torch.ones(2, 4),)


def pair_of_one_tensor():
    return Linear(), torch.ones(2, 4)


def pair_with_keywords():
    return Linear(), {"x": torch.ones(2, 4), "shift": torch.ones(4)}


def bare():
    return Linear()


def zoo():
    return ZooModel("linear", Linear, lambda batch=1, seed=0: (torch.ones(batch, 4),), source="here")


def number():
    return 3


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def branching():
    return Branching(), torch.ones(2)


def unchanged(program):
    return None


def scaled(program, factor=1.001):
    program = copy.deepcopy(program)
    with torch.no_grad():
        for parameter in program.parameters():
            parameter.mul_(factor)
    return program


def approximate_scaled(program):
    return scaled(program)


approximate_scaled.contract = approximate(sqnr_db=50)


class Renamed:
    """A pass with a name of its own, made without arguments."""

    name = "my-pass"
    contract = exact

    def __call__(self, program):
        return copy.deepcopy(program)


def in_place(program):
    with torch.no_grad():
        for parameter in program.parameters():
            parameter.mul_(2)


def lost(program):
    return 3


not_callable = 3
'''


@pytest.fixture
def user(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with the user's module ``mine``."""
    pytester.makepyfile(mine=USER_MODULE)
    return pytester


@pytest.fixture
def mine(pytester: pytest.Pytester, request: pytest.FixtureRequest) -> pytest.Pytester:
    """A folder with the module ``mine``, whose text is ``MINE`` of the test file."""
    pytester.makepyfile(mine=request.module.MINE)
    return pytester


@pytest.fixture
def baseline(pytester: pytest.Pytester) -> Callable[..., None]:
    """Writes ``main.json``, the record of an earlier run with this speed-up of the capture of mlp, which is about 1."""

    def write(speedup: float = 1.0, low: float = 0.99, high: float = 1.01) -> None:
        info = {
            "model": "mlp", "pass": "capture", "batch": 1, "dtype": "float32", "device": "cpu", "threads": 1,
            "speedup": speedup, "speedup_interval": [low, high],
        }  # fmt: skip
        machine = {"machine": "an older machine", "versions": {"torch": "2.10.0"}, "commit": "abc1234"}
        record = {"records": [{"timing": {"info": info}, "machine": machine}]}
        (pytester.path / "main.json").write_text(json.dumps(record))

    return write


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal so wide that nothing is broken, whatever the tests run in."""
    monkeypatch.setenv("COLUMNS", "300")
