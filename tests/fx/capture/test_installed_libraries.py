"""Functions of installed libraries that cannot be looked into: the error is about the line that calls them."""

import importlib.util
import re
import sys

import pytest
import torch
from torch import nn

import fx

LIBRARY = """
from torch import nn

recipes = {2: 0, 3: 1}
known = {}


def _look_up(x):
    return recipes[x.dim()]


def flattened(x):
    return x.flatten(_look_up(x))


def remembered(x):
    if type(x) not in known:
        known[type(x)] = len(known)
        return x
    return x + known[type(x)]


class Flattened(nn.Module):
    def forward(self, x):
        return flattened(x)
"""
PROGRAMS = """
import fx
import library_of_tests
from library_of_tests import flattened, remembered
from torch import nn

{marks}


def by_name(x):
    return flattened(x) + 1


def by_attribute(x):
    return library_of_tests._look_up(x) * x


def of_layer(x):
    return library_of_tests.Flattened()(x)


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = library_of_tests.Flattened()

    def forward(self, x):
        return self.layer(x) + 1


def of_state(x):
    return remembered(x)
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "library_of_tests.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(folder)
    yield
    sys.modules.pop("library_of_tests", None)


def _programs(tmp_path, marks=""):
    file = tmp_path / "programs.py"
    file.write_text(PROGRAMS.format(marks=marks))
    spec = importlib.util.spec_from_file_location("programs_of_tests", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BY_NAME = 'call it as flattened, and put fx.wrap("flattened") at the top level of programs.py'
IMPORTED = "from library_of_tests import _look_up, call it as _look_up"


@pytest.mark.parametrize(
    "name, line, remedy",
    [
        ("by_name", "in by_name:  return flattened(x) + 1", BY_NAME),
        ("by_attribute", "in by_attribute:  return library_of_tests._look_up(x) * x", IMPORTED),
        ("Around", "in Around.forward:  return self.layer(x) + 1", "make Flattened a leaf"),
    ],
)
def test_an_error_inside_of_a_library_is_about_the_line_that_calls_it(library, tmp_path, name, line, remedy):
    program = getattr(_programs(tmp_path), name)
    with pytest.raises(fx.TraceError) as failure:
        fx.symbolic_trace(program() if isinstance(program, type) else program)
    lines = str(failure.value).splitlines()
    assert re.fullmatch(rf"  where  .*programs\.py:\d+, {re.escape(line)}", lines[1])
    assert len(lines) == 5
    assert lines[4].startswith("  try    ") and remedy in lines[4]


def test_a_library_that_keeps_state_is_kept_whole(library, tmp_path):
    with pytest.raises(fx.TraceError, match="keep calls of library_of_tests whole"):
        fx.symbolic_trace(_programs(tmp_path).of_state)


def test_the_suggested_remedy_captures_the_program(library, tmp_path):
    programs = _programs(tmp_path, 'fx.wrap("flattened")\nfx.wrap("remembered")')
    x = torch.ones(2, 3)
    for program in (programs.by_name, programs.of_state):
        assert torch.equal(fx.symbolic_trace(program)(x), program(x))


def test_an_error_of_a_model_in_a_library_is_about_its_own_line(library, tmp_path):
    model = _programs(tmp_path).library_of_tests.Flattened()
    assert isinstance(model, nn.Module)
    with pytest.raises(fx.TraceError, match=r"where .*library_of_tests.py:\d+, in _look_up"):
        fx.symbolic_trace(model)
