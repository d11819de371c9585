"""``PassBase`` and ``PassResult``: a pass as a class with pre- and postconditions, and its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch

from fx.graph_module import GraphModule


class PassResult(NamedTuple):
    """The result of a pass."""

    graph_module: torch.nn.Module
    """The program, which may be the same object as the input."""
    modified: bool
    """True if the pass changed it."""


class PassBase(ABC):
    """Base of passes that implement ``call`` and may check programs before and after it; called like a function.

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
        """Check the preconditions, run the pass, and check the postconditions."""
        self.requires(graph_module)
        result = self.call(graph_module)
        self.ensures(graph_module)
        return result

    @abstractmethod
    def call(self, graph_module: GraphModule) -> PassResult | None:
        """Run the pass on a program."""

    def requires(self, graph_module: GraphModule) -> None:  # noqa: B027 - a check that a pass may have
        """Raise an exception if the pass cannot run on the program."""

    def ensures(self, graph_module: GraphModule) -> None:  # noqa: B027 - a check that a pass may have
        """Raise an exception if the program breaks a promise of the pass."""
