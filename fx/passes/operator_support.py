"""Which nodes a backend takes, as client code of torch.fx says it. Those of :func:`fx.lower` say it by converters."""

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
"""Dtypes that each argument may have, by position and by name; None for any."""


class OperatorSupportBase(ABC):
    """Says of nodes whether a backend takes them."""

    @abstractmethod
    def is_node_supported(self, submodules: Modules, node: Node) -> bool:
        """Return whether the backend takes a node of a program with these modules."""


class OperatorSupport(OperatorSupportBase):
    """Takes the calls that a table lists, by the names that :func:`~fx.passes.tools_common.get_node_target` returns.

    >>> import torch, fx
    >>> program = fx.symbolic_trace(lambda x: torch.relu(x).neg())
    >>> support = OperatorSupport({"torch.relu": None})
    >>> [node.name for node in program.graph.nodes if not support.is_node_supported({}, node)]
    ['neg']
    """

    def __init__(self, support_dict: Mapping[str, Dtypes] | None = None) -> None:
        """A table: names of calls, each with the dtypes that its arguments may have, if not any."""
        self._support_dict: Mapping[str, Dtypes] = support_dict or {}

    def is_node_supported(self, submodules: Modules, node: Node) -> bool:
        """Return whether the table lists a call for its dtypes; True for nodes that call nothing.

        Raises:
            PassError: the dtype of an argument matters, and ``ShapeProp`` has not noted it.
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
            allowed is None or not isinstance(given, Node) or _dtype_of(given) in allowed for given, allowed in checked
        )


def create_op_support(is_node_supported: Callable[[Modules, Node], bool]) -> OperatorSupportBase:
    """Return what asks a function, which is given the modules of the program and a node."""

    class FunctionSupport(OperatorSupportBase):
        def is_node_supported(self, submodules: Modules, node: Node) -> bool:
            return is_node_supported(submodules, node)

    return FunctionSupport()


def chain(*op_support: OperatorSupportBase) -> OperatorSupportBase:
    """Return what takes the nodes that all of several take."""
    return create_op_support(lambda modules, node: all(one.is_node_supported(modules, node) for one in op_support))


def any_chain(*op_support: OperatorSupportBase) -> OperatorSupportBase:
    """Return what takes the nodes that one of several takes."""
    return create_op_support(lambda modules, node: any(one.is_node_supported(modules, node) for one in op_support))


class OpSupports:
    """What takes most nodes, to be put together with others by :func:`chain`."""

    @classmethod
    def decline_if_input_dtype(cls, dtype: torch.dtype) -> OperatorSupportBase:
        """Return what takes nodes without an input of a dtype, which ``ShapeProp`` has to have noted."""
        return create_op_support(lambda _, node: dtype not in map(_dtype_of, node.all_input_nodes))

    @classmethod
    def decline_if_node_in_names(cls, disallow_set: Iterable[str]) -> OperatorSupportBase:
        """Return what takes nodes with other names."""
        names = frozenset(disallow_set)
        return create_op_support(lambda _, node: node.name not in names)


def _dtype_of(node: Node) -> Any:
    """Return what ``ShapeProp`` has noted: the dtype of a tensor, or the class of another value."""
    noted = getattr(node.meta.get("tensor_meta"), "dtype", node.meta.get("type"))
    if noted is None:
        what = f"a backend takes a call by the dtype of `%{node}`, which is not recorded"
        remedy = "run the program first: fx.passes.ShapeProp(program).propagate(*inputs)"
        raise PassError(what, where=node.source, value=node.format_node(), remedy=remedy)
    return noted
