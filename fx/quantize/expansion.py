"""``Expansion``: the replacement of one operation, written as ordinary code on proxies (paper, section 4.4)."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

from torch import nn

from fx.errors import FxError, QuantizationError
from fx.graph_module import GraphModule
from fx.modules.attributes import find_attribute
from fx.node import Argument, Node, Target, map_arg
from fx.proxy import GraphAppendingTracer, Proxy


class CannotExpand(QuantizationError):
    """An operation stays as it is; the message says why."""


def with_place_of(node: Node, new_node: Node) -> Node:
    """Give ``new_node`` the place of ``node`` in the user's program, and return it."""
    new_node.source, new_node.origins = node.source, node.origins
    if "nn_module_stack" in node.meta:
        new_node.meta["nn_module_stack"] = node.meta["nn_module_stack"]
    return new_node


class Expansion(GraphAppendingTracer):
    """A tracer that records operations before a call, with the call's place in the user's program."""

    def __init__(self, program: GraphModule, node: Node, *, is_trained: bool = False) -> None:
        super().__init__(node.graph)
        self.program = program
        """The program to edit."""
        self.node = node
        """The call to replace."""
        self.is_trained = is_trained
        """True if dropout has to follow the program's mode."""
        self.module: Any = program.get_submodule(str(node.target)) if node.op == "call_module" else None
        """The called module, if the call is of a module."""
        self.calls: list[Node] = []
        """The recorded calls of modules, which may be replaced in turn."""

    def create_node(
        self,
        kind: str,
        target: Target,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        name: str | None = None,
        type_expr: Any | None = None,
    ) -> Node:
        """Insert a node with the source location of the replaced call."""
        node = with_place_of(self.node, super().create_node(kind, target, args, kwargs, name, type_expr))
        if kind == "call_module":
            self.calls.append(node)
        return node

    def arguments(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Return the arguments of the call by the parameter names of ``function``, values of the program as proxies.

        Raises:
            CannotExpand: the arguments do not fit the function.
        """
        args, kwargs = map_arg((self.node.args, dict(self.node.kwargs)), self.proxy)  # type: ignore[arg-type]
        positional = args if self.module is None else (self.module, *args)  # type: ignore[misc, has-type]
        try:
            bound = inspect.signature(function).bind(*positional, **kwargs)  # type: ignore[misc, arg-type]
        except TypeError:
            raise CannotExpand("its arguments do not fit its signature") from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def fetch(self, name: str) -> Proxy | None:
        """Return the value of an attribute of the module, or None if the attribute is None."""
        if find_attribute(self.module, name) is None:
            return None
        return self.create_proxy("get_attr", f"{self.node.target}.{name}", (), {})

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Record a call of a submodule of the module."""
        return self.create_proxy("call_module", f"{self.node.target}.{name}", args, kwargs)

    def dropout(self, value: Any, probability: float, name: str) -> Any:
        """Record dropout of a trained program, as a module added to it."""
        if not self.is_trained or probability == 0:
            return value
        self.program.add_submodule(f"{self.node.target}.{name}", nn.Dropout(probability))
        return self.call(name, value)

    def replace(self, expand: Callable[[Expansion], Any]) -> None:
        """Replace the call by the operations that ``expand`` records and the result that it returns.

        Raises:
            CannotExpand: the expansion does not apply; the program is unchanged.
        """
        before = self.node.prev
        try:
            with self.graph.inserting_before(self.node):
                result = self.create_arg(expand(self))
        except FxError as error:
            while self.node.prev is not before:
                self.graph.erase_node(self.node.prev)
            raise (
                error if isinstance(error, CannotExpand) else CannotExpand(f"it cannot be captured: {error}")
            ) from error
        _replace_uses(self.node, result)
        self.graph.erase_node(self.node)


def _replace_uses(node: Node, result: Argument) -> None:
    """Let users of ``node`` use ``result``, which may be a tuple of values."""
    if isinstance(result, tuple):
        for user in list(node.users):
            if user.target is operator.getitem and user.args[0] is node and type(index := user.args[1]) is int:
                _replace_uses(user, result[index])
                user.graph.erase_node(user)
    node.replace_all_uses_with(result)
