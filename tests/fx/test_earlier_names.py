"""fx.earlier_names: what was written when modules lay elsewhere is read."""

import importlib
import operator
import pickle

import pytest
import torch
from torch import nn

import fx
from fx.earlier_names import MOVED


@pytest.mark.parametrize("earlier", MOVED)
def test_a_module_that_moved_is_found_under_its_earlier_name(earlier):
    module = importlib.import_module(f"fx.{earlier}")
    assert module is importlib.import_module(f"fx.{MOVED[earlier]}")
    assert operator.attrgetter(earlier)(fx) is module


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3), nn.ReLU())

    def forward(self, named):
        return {"sum": self.body(named["x"]) + named["y"]}


def test_pickles_with_the_earlier_names_of_modules_are_read():
    captured = fx.symbolic_trace(Inner(), concrete_args={"named": {"x": fx.PH, "y": fx.PH}})
    written = pickle.dumps(captured, protocol=0)  # in which names are lines of text
    earlier = written
    for before, now in MOVED.items():
        earlier = earlier.replace(f"\ncfx.{now}\n".encode(), f"\ncfx.{before}\n".encode())
        earlier = earlier.replace(f"(cfx.{now}\n".encode(), f"(cfx.{before}\n".encode())
    assert b"cfx.containers\n" in earlier and b"cfx.modules.containers\n" not in earlier
    named = {"x": torch.ones(1, 2), "y": torch.ones(1, 3)}
    assert torch.equal(pickle.loads(earlier)(named)["sum"], captured(named)["sum"])
