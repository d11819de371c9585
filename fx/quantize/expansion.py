"""``Expansion``: what takes the place of one operation, written as ordinary code on proxies (paper, section 4.4)."""

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


def with_place_of(node: Node, made: Node) -> Node:
    """Let ``made`` say that it comes from where ``node`` does in the user's program, and return it."""
    made.source, made.origins = node.source, node.origins
    if "nn_module_stack" in node.meta:
        made.meta["nn_module_stack"] = node.meta["nn_module_stack"]
    return made


class Expansion(GraphAppendingTracer):
    """Records operations before a call, with its place in the user's program."""

    def __init__(self, program: GraphModule, node: Node, *, is_trained: bool = False) -> None:
        super().__init__(node.graph)
        self.program = program
        """The program that is edited."""
        self.node = node
        """The call that is replaced."""
        self.is_trained = is_trained
        """Whether dropout has to follow the program's mode."""
        self.module: Any = program.get_submodule(str(node.target)) if node.op == "call_module" else None
        """The module that is called, if it is one."""
        self.calls: list[Node] = []
        """Calls of modules that were recorded, which may be replaced in turn."""

    def create_node(
        self,
        kind: str,
        target: Target,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        name: str | None = None,
        type_expr: Any | None = None,
    ) -> Node:
        """Insert a node that knows where the replaced call comes from."""
        made = with_place_of(self.node, super().create_node(kind, target, args, kwargs, name, type_expr))
        if kind == "call_module":
            self.calls.append(made)
        return made

    def arguments(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Return the arguments of the call by the names of ``function``, values of the program as proxies.

        Raises:
            CannotExpand: they are not its arguments.
        """
        args, kwargs = map_arg((self.node.args, dict(self.node.kwargs)), self.proxy)  # type: ignore[arg-type]
        given = args if self.module is None else (self.module, *args)  # type: ignore[misc, has-type]
        try:
            bound = inspect.signature(function).bind(*given, **kwargs)  # type: ignore[misc, arg-type]
        except TypeError:
            raise CannotExpand("it is called with other arguments than it has") from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def fetch(self, name: str) -> Proxy | None:
        """Return the value of an attribute of the module, or None where it is None."""
        if find_attribute(self.module, name) is None:
            return None
        return self.create_proxy("get_attr", f"{self.node.target}.{name}", (), {})

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Record a call of a module of the module."""
        return self.create_proxy("call_module", f"{self.node.target}.{name}", args, kwargs)

    def dropout(self, value: Any, probability: float, name: str) -> Any:
        """Record dropout of a program that is trained, as a module that is added to it."""
        if not self.is_trained or probability == 0:
            return value
        self.program.add_submodule(f"{self.node.target}.{name}", nn.Dropout(probability))
        return self.call(name, value)

    def replace(self, expand: Callable[[Expansion], Any]) -> None:
        """Put what ``expand`` records and returns in the place of the call.

        Raises:
            CannotExpand: it does not apply; the program is as it was.
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
        _give(self.node, result)
        self.graph.erase_node(self.node)


def _give(node: Node, result: Argument) -> None:
    """Let users of ``node`` use ``result``, which may be a tuple of values."""
    if isinstance(result, tuple):
        for user in list(node.users):
            if user.target is operator.getitem and user.args[0] is node and type(index := user.args[1]) is int:
                _give(user, result[index])
                user.graph.erase_node(user)
    node.replace_all_uses_with(result)
