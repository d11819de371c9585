"""Gradual types are those that torch.fx infers, or more precise ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import tensor_type as their_types
from torch.fx.experimental import graph_gradual_typechecker as theirs

import fx
from fx import tensor_type as our_types
from fx.analysis import gradual_types as ours
from fx.errors import TensorTypeError

Dyn = "?"
SIZES: list[tuple[Any, ...]] = [(1, 2), (1, Dyn), (Dyn, 3), (2, 3), (Dyn,), (1, 1, 3), (Dyn, Dyn), (4, 1, Dyn)]


def typed(library: Any, sizes: Any) -> Any:
    """Return the type of one library; ``Dyn`` for None."""
    if sizes is None:
        return library.Dyn
    return library.TensorType(tuple(library.Dyn if size == Dyn else size for size in sizes))


@pytest.mark.parametrize("first", [*SIZES, None])
@pytest.mark.parametrize("second", [*SIZES, None])
def test_relations_and_bounds_are_those_of_torch_fx(first: Any, second: Any) -> None:
    ours_pair, theirs_pair = (
        [typed(library, sizes) for sizes in (first, second)] for library in (our_types, their_types)
    )
    for name in ("is_consistent", "is_more_precise"):
        assert getattr(our_types, name)(*ours_pair) == getattr(their_types, name)(*theirs_pair)
    assert str(ours.broadcast_types(*ours_pair)) == str(theirs.broadcast_types(*theirs_pair))
    if our_types.is_consistent(*ours_pair):
        bound = ours.get_greatest_upper_bound(*ours_pair)
        assert str(bound) == str(theirs.get_greatest_upper_bound(*theirs_pair))
    else:
        with pytest.raises(TypeError):
            ours.get_greatest_upper_bound(*ours_pair)


class Added(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


class Called(nn.Module):
    """A module that calls one function."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        super().__init__()
        self.function, self.arguments = function, args

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *self.arguments)


IMAGES = (Dyn, 3, 16, Dyn)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "conv": (lambda: nn.Conv2d(3, 6, 3, padding=1), (IMAGES,)),
    "strided conv": (lambda: nn.Conv2d(3, 6, 3, stride=2, dilation=2), (IMAGES,)),
    "conv of Dyn": (lambda: nn.Conv2d(3, 6, 3), (None,)),
    "wrong channels": (lambda: nn.Conv2d(4, 6, 3), (IMAGES,)),
    "wrong rank": (lambda: nn.Conv2d(3, 6, 3), ((Dyn, 3),)),
    "batch norm": (lambda: nn.BatchNorm2d(3), (IMAGES,)),
    "batch norm of Dyn": (lambda: nn.BatchNorm2d(3), (None,)),
    "batch norm of wrong channels": (lambda: nn.BatchNorm2d(2), (IMAGES,)),
    "relu": (nn.ReLU, (IMAGES,)),
    "relu of Dyn": (nn.ReLU, (None,)),
    "max pool": (lambda: nn.MaxPool2d(3, 2, 1), (IMAGES,)),
    "adaptive pool": (lambda: nn.AdaptiveAvgPool2d((2, 3)), (IMAGES,)),
    "linear": (lambda: nn.Linear(4, 5), ((Dyn, Dyn, 4),)),
    "linear of wrong features": (lambda: nn.Linear(4, 5), ((Dyn, 3),)),
    "linear of Dyn": (lambda: nn.Linear(4, 5), (None,)),
    "flatten": (lambda: Called(torch.flatten, 1), (IMAGES,)),
    "flatten of the middle": (lambda: Called(torch.flatten, 1, 2), (IMAGES,)),
    "flatten of wrong dimensions": (lambda: Called(torch.flatten, 3, 1), (IMAGES,)),
    "reshape": (lambda: Called(torch.reshape, [2, -1]), ((4, 6),)),
    "reshape of an unknown size": (lambda: Called(torch.reshape, [6, 4]), ((Dyn, 8),)),
    "reshape of Dyn": (lambda: Called(torch.reshape, [6, -1]), (None,)),
    "wrong reshape": (lambda: Called(torch.reshape, [5, 5]), ((4, 6),)),
    "transpose": (lambda: Called(torch.transpose, 1, 3), (IMAGES,)),
    "transpose of wrong dimensions": (lambda: Called(torch.transpose, 1, 4), (IMAGES,)),
    "add": (Added, ((1, 2, Dyn), (1, 2, 1))),
    "add of ranks": (Added, ((4, Dyn), (3, 1, 5))),
    "add of Dyn": (Added, (None, (3, 1, 5))),
    "add of others": (Added, ((4, 3), (4, 2))),
    "network": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 1))),
        (IMAGES,),
    ),
}


def types_of(tracer: Any, types: Any, checker: Any, module: nn.Module, sizes: tuple[Any, ...]) -> list[Any] | None:
    """Return the types that a library infers, as those of this library; None if it finds a contradiction."""
    graph_module = tracer(module if isinstance(module, Called | Added) else nn.Sequential(module))
    nodes = list(graph_module.graph.nodes)
    for node, input_sizes in zip([node for node in nodes if node.op == "placeholder"], sizes, strict=True):
        node.type = typed(types, input_sizes)
    try:
        checker.GraphTypeChecker({}, graph_module).type_check()
    except TypeError:
        return None
    kinds = [list(node.type.dims) if isinstance(node.type, types.TensorType) else None for node in nodes]
    return [typed(our_types, kind and [Dyn if size is types.Dyn else size for size in kind]) for kind in kinds]


@pytest.mark.parametrize("name", CASES)
def test_types_are_those_of_torch_fx_or_more_precise(name: str) -> None:
    build, sizes = CASES[name]
    mine = types_of(fx.symbolic_trace, our_types, ours, build(), sizes)
    other = types_of(torch.fx.symbolic_trace, their_types, theirs, build(), sizes)
    assert (mine is None) == (other is None)
    for kind, less in zip(mine or [], other or [], strict=True):
        assert our_types.is_more_precise(kind, less)


def test_torch_fx_rejects_a_reshape_that_some_size_makes_right() -> None:
    case = Called(torch.reshape, [6, -1]), ((Dyn, 4),)  # right for 3 rows
    assert types_of(torch.fx.symbolic_trace, their_types, theirs, *case) is None
    assert types_of(fx.symbolic_trace, our_types, ours, *case) is not None
    program = fx.symbolic_trace(case[0])
    assert program(torch.ones(3, 4)).shape == (6, 2)


def test_errors_are_caught_as_those_of_torch_fx() -> None:
    assert issubclass(TensorTypeError, TypeError)
