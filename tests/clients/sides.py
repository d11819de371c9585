"""torch.fx and ``fx``, each with its client code, so that one test runs on both."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.fx
from conformance.libraries import assert_identical, neutral

import fx

from .replaced import replaced


@dataclass(frozen=True)
class Side:
    """A library, and the package of its clients."""

    library: ModuleType
    """torch.fx or fx."""
    client: Callable[[str], ModuleType]
    """Imports a module by its name for torch.fx."""


THEIRS = Side(torch.fx, importlib.import_module)
OURS = Side(fx, replaced)
OFFERED = Side(fx, lambda name: importlib.import_module(name.removeprefix("torch.")))
"""``fx`` with its own modules under the names of those clients."""
SIDES = (THEIRS, OURS)


def described(result: Any) -> Any:
    """Return the parts in which two results have to agree: programs are code, nodes names, tensors numbers."""
    if isinstance(result, (torch.fx.GraphModule, fx.GraphModule)):
        children = {name: described(child) for name, child in result.named_children()}
        return neutral(result.code).strip(), {name: text for name, text in children.items() if isinstance(text, tuple)}
    if isinstance(result, (torch.fx.Graph, fx.Graph)):
        return neutral(str(result))
    if isinstance(result, (torch.fx.Node, fx.Node)):
        return result.name
    if isinstance(result, dict):
        return {described(key): described(value) for key, value in result.items()}
    if isinstance(result, (list, tuple, set)):
        return [described(value) for value in (sorted(result, key=str) if isinstance(result, set) else result)]
    return result


Use = Callable[[Side], Any]


class Uses(dict[str, Use]):
    """The uses of client code in a file of tests, by the names of the functions, on torch.fx and on ``fx``."""

    def add(self, function: Use) -> Use:
        """Compare the results of ``function`` for both."""
        self[function.__name__] = function
        return function


def assert_same(use: Callable[[Side], Any], side: Side = OURS) -> None:
    """Fail unless client code gives the same on torch.fx and on a side of ``fx``, and programs of the latter."""
    theirs, ours = use(THEIRS), use(side)
    for result in ours if isinstance(ours, (list, tuple)) else [ours]:
        assert not isinstance(result, (torch.fx.GraphModule, torch.fx.Graph, torch.fx.Node))
    assert_identical(described(ours), described(theirs))
