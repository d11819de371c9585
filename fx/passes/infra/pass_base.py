"""``PassBase`` and ``PassResult``: a pass as a class with conditions before and after, and what it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch

from fx.graph_module import GraphModule


class PassResult(NamedTuple):
    """What a pass returns."""

    graph_module: torch.nn.Module
    """The program, which may be the one that the pass was given."""
    modified: bool
    """Whether the pass changed it."""


def program_in(returned: Any) -> Any:
    """Return the program that a ``PassResult``, or what is like one, holds; anything else as it is."""
    # A module with an attribute of that name does more than the program.
    held = None if isinstance(returned, torch.nn.Module) else getattr(returned, "graph_module", None)
    return held if isinstance(held, GraphModule) else returned


class PassBase(ABC):
    """A pass that implements ``call``, and may check programs before and after; called like a function.

    >>> import torch, fx
    >>> class Relu6(PassBase):
    ...     def call(self, graph_module):
    ...         calls = graph_module.graph.find_nodes(op="call_function", target=torch.relu)
    ...         for node in calls:
    ...             node.target = torch.nn.functional.relu6
    ...         graph_module.recompile()
    ...         return PassResult(graph_module, bool(calls))
    >>> Relu6()(fx.symbolic_trace(lambda x: torch.relu(x))).modified
    True
    """

    def __call__(self, graph_module: GraphModule) -> PassResult | None:
        """Check what the pass requires, run it, and check what it ensures."""
        self.requires(graph_module)
        result = self.call(graph_module)
        self.ensures(graph_module)
        return result

    @abstractmethod
    def call(self, graph_module: GraphModule) -> PassResult | None:
        """Run the pass on a program."""

    def requires(self, graph_module: GraphModule) -> None:  # noqa: B027 - a check that a pass may have
        """Raise where the program is not what the pass can be given."""

    def ensures(self, graph_module: GraphModule) -> None:  # noqa: B027 - a check that a pass may have
        """Raise where the program is not what the pass promises to leave."""
