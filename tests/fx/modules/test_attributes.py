"""fx.modules.attributes: the object at a dotted path."""

import pytest
import torch
from building import Calling
from torch import nn

import fx
from fx.modules.attributes import MISSING, fetch_attribute, find_attribute, is_own, prefixes


def test_an_attribute_is_fetched_by_its_path():
    module = nn.Sequential(nn.Sequential(nn.Linear(2, 3)))
    assert fetch_attribute(module, "0.0.weight") is module[0][0].weight
    assert fetch_attribute(module, "") is module
    with pytest.raises(AttributeError, match="none"):
        fetch_attribute(module, "0.none")


def test_a_missing_attribute_differs_from_one_that_is_none():
    module = nn.Sequential(nn.Linear(2, 3, bias=False))
    assert find_attribute(module, "0.bias", MISSING) is None
    assert find_attribute(module, "0.none", MISSING) is MISSING
    assert find_attribute(module, "none.bias") is None
    assert find_attribute(None, "bias") is None


def test_the_modules_around_a_path_come_before_it():
    assert list(prefixes("a.b.c")) == ["a", "a.b", "a.b.c"]
    assert list(prefixes("a")) == ["a"]


class KeepsOne(fx.Tracer):
    def is_leaf_module(self, m, module_qualified_name):
        return module_qualified_name == "kept" or super().is_leaf_module(m, module_qualified_name)


def test_only_containers_made_for_the_program_are_its_own():
    module = Calling(
        lambda self, x: self.kept(self.outer(x)),
        outer=nn.Sequential(nn.Sequential(nn.Linear(2, 2))),
        kept=nn.Sequential(nn.Linear(2, 2)),
    )
    program = fx.GraphModule(module, KeepsOne().trace(module))
    assert is_own(program, "outer.0.0")
    assert is_own(program, "outer.1")
    assert not is_own(program, "outer.0.0.weight")
    assert is_own(program, "kept")
    assert not is_own(program, "kept.0")
    assert is_own(program, "elsewhere.layer")
    assert program(torch.ones(1, 2)).shape == (1, 2)
