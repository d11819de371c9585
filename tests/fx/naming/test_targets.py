"""Names of call targets: proved by looking them up, or for people only."""

from __future__ import annotations

import builtins
import functools
import operator
import sys
from typing import Any

import pytest
import torch

from fx.naming.targets import candidate_name, home_of, is_builtin, qualified_name, resolves_to, torch_path


@pytest.mark.parametrize(
    "target, path",
    [
        (torch.relu, "torch.relu"),
        (torch.nn.functional.relu, "torch.nn.functional.relu"),
        (torch.nn.functional.max_pool2d, "torch.nn.functional.max_pool2d"),
        (torch.ops.aten.add.Tensor, "torch.ops.aten.add.Tensor"),
        (torch.ops.aten.add, "torch.ops.aten.add"),
        (torch.Tensor.add_, "torch.Tensor.add_"),
        (torch.nn.Linear, "torch.nn.modules.linear.Linear"),
        (torch.float32, None),
        (operator.add, None),
        (len, None),
        ([], None),
    ],
)  # fmt: skip
def test_torch_paths_lead_to_the_target(target: Any, path: str | None) -> None:
    assert torch_path(target) == path
    assert path is None or eval(path, {"torch": torch}) is target


def test_a_target_that_only_says_it_is_torchs_has_no_path() -> None:
    def relu(x: Any) -> Any:
        return x

    relu.__module__, relu.__qualname__ = "torch", "relu"
    assert torch_path(relu) is None
    assert qualified_name(relu) == "torch.relu"


@pytest.mark.parametrize(
    "target, name",
    [(operator.add, "operator.add"), (len, "builtins.len"), (dict, "builtins.dict"), (torch.relu, "torch.relu"),
     (torch_path, "fx.naming.targets.torch_path"), (operator.itemgetter(1), "operator.itemgetter")],
)  # fmt: skip
def test_qualified_names_are_for_people(target: Any, name: str) -> None:
    assert qualified_name(target) == name


def test_builtins_are_recognized_by_identity() -> None:
    def impostor() -> None: ...

    impostor.__name__ = "len"
    assert is_builtin(len)
    assert is_builtin(dict)
    assert not is_builtin(impostor)
    assert not is_builtin(operator.add)
    assert not is_builtin(3)


def test_a_function_is_at_home_in_its_module_and_an_imitation_has_no_home() -> None:
    assert [home_of(item) for item in (len, torch_path)] == [builtins, sys.modules["fx.naming.targets"]]
    assert home_of(functools.wraps(torch_path)(lambda target: None)) is None


def test_paths_are_followed_by_identifiers_only() -> None:
    assert resolves_to(torch, "torch.nn.functional", torch.nn.functional)
    assert not resolves_to(torch, "torch.nn.functional", torch.nn)
    assert not resolves_to(torch, "torch.no such", None)
    assert not resolves_to(torch, "torch.nothing", None)


@pytest.mark.parametrize(
    "target, name",
    [("layer.0", "layer.0"), ("__getitem__", "getitem"), ("____", "____"), (torch.relu, "relu"), (operator.add, "add"),
     (operator.itemgetter(1), "itemgetter")],
)  # fmt: skip
def test_values_are_called_after_their_target(target: Any, name: str) -> None:
    assert candidate_name(target) == name


def test_an_object_that_has_every_attribute_is_called_after_its_class() -> None:
    class Anything:
        def __getattr__(self, name: str) -> Any:
            return self

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self

    assert candidate_name(Anything()) == "Anything"
    assert qualified_name(Anything()).endswith("Anything")
    assert torch_path(Anything()) is None
    assert home_of(Anything()) is None
    assert not is_builtin(Anything())
