"""Operator support: the nodes that a backend can run, with torch.fx's interface. :func:`fx.lower` uses converters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from fx.errors import PassError
from fx.node import Node
from fx.passes.tools_common import CALLABLE_NODE_OPS, get_node_target

Modules = Mapping[str, torch.nn.Module]
Dtypes = tuple[Sequence[Sequence[torch.dtype] | None], Mapping[str, Sequence[torch.dtype]]] | None
"""The supported dtypes of each argument, by position and by name; None for any dtype."""


class OperatorSupportBase(ABC):
    """Base of classes that decide whether a backend supports a node."""

    @abstractmethod
    def is_node_supported(self, submodules: Modules, node: Node) -> bool:
        """Return whether the backend supports ``node``; ``submodules`` are the modules of its program by path."""


class OperatorSupport(OperatorSupportBase):
    """Support for the calls in a table, by the names that :func:`~fx.passes.tools_common.get_node_target` returns.

    >>> import torch, fx
    >>> program = fx.symbolic_trace(lambda x: torch.relu(x).neg())
    >>> support = OperatorSupport({"torch.relu": None})
    >>> [node.name for node in program.graph.nodes if not support.is_node_supported({}, node)]
    ['neg']
    """

    def __init__(self, support_dict: Mapping[str, Dtypes] | None = None) -> None:
        """Set the table: names of calls, each with the supported dtypes of its arguments, or None for any."""
        self._support_dict: Mapping[str, Dtypes] = support_dict or {}

    def is_node_supported(self, submodules: Modules, node: Node) -> bool:
        """Return whether the table lists the call with the dtypes of its arguments; True for nodes that call nothing.

        Raises:
            PassError: the dtype of an argument matters, and ``ShapeProp`` has not recorded it.
        """
        if node.op not in CALLABLE_NODE_OPS:
            return True
        target = get_node_target(submodules, node)
        by_position, by_name = self._support_dict.get(target) or ((), {})
        checked = [
            *zip(node.args, by_position, strict=False),
            *((node.kwargs.get(name), by_name[name]) for name in by_name),
        ]
        return target in self._support_dict and all(
            allowed is None or not isinstance(argument, Node) or _dtype_of(argument) in allowed
            for argument, allowed in checked
        )


def create_op_support(is_node_supported: Callable[[Modules, Node], bool]) -> OperatorSupportBase:
    """Return an operator support that calls a function with the modules of the program and a node."""

    class FunctionSupport(OperatorSupportBase):
        def is_node_supported(self, submodules: Modules, node: Node) -> bool:
            return is_node_supported(submodules, node)

    return FunctionSupport()


def chain(*op_support: OperatorSupportBase) -> OperatorSupportBase:
    """Return the operator support for nodes that all of ``op_support`` support."""
    return create_op_support(
        lambda modules, node: all(support.is_node_supported(modules, node) for support in op_support)
    )


def any_chain(*op_support: OperatorSupportBase) -> OperatorSupportBase:
    """Return the operator support for nodes that at least one of ``op_support`` supports."""
    return create_op_support(
        lambda modules, node: any(support.is_node_supported(modules, node) for support in op_support)
    )


class OpSupports:
    """Operator supports that decline a few nodes, to be combined with others by :func:`chain`."""

    @classmethod
    def decline_if_input_dtype(cls, dtype: torch.dtype) -> OperatorSupportBase:
        """Return an operator support that declines nodes with an input of ``dtype``, as ``ShapeProp`` recorded it."""
        return create_op_support(lambda _, node: dtype not in map(_dtype_of, node.all_input_nodes))

    @classmethod
    def decline_if_node_in_names(cls, disallow_set: Iterable[str]) -> OperatorSupportBase:
        """Return an operator support that declines the nodes with these names."""
        names = frozenset(disallow_set)
        return create_op_support(lambda _, node: node.name not in names)


def _dtype_of(node: Node) -> Any:
    """Return the dtype of a tensor, or the class of another value, as ``ShapeProp`` has recorded it."""
    recorded = getattr(node.meta.get("tensor_meta"), "dtype", node.meta.get("type"))
    if recorded is None:
        what = f"whether a backend supports a call depends on the dtype of `%{node}`, which is not recorded"
        remedy = "run the program first: fx.passes.ShapeProp(program).propagate(*inputs)"
        raise PassError(what, where=node.source, value=node.format_node(), remedy=remedy)
    return recorded
