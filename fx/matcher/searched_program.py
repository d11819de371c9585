"""The program that a pattern is looked for in: its canonical form, indexed, with the way back to its own nodes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from fx.assertions import CHECKS
from fx.canonical import canonical_form
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.modules.attributes import does_as_its_class, fetch_attribute
from fx.node import Argument, Node, map_arg, nodes_in
from fx.operators.effects import effect_of

_BOOKKEEPING = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"})
_CALLS = frozenset({"call_function", "call_method", "call_module"})


def is_call(node: Node) -> bool:
    """Return whether a node computes something, rather than fetch or return it."""
    return node.op in _CALLS


def kind_of(node: Node) -> Hashable:
    """Return what two calls must have in common to match: function, name of the method, or class of the module."""
    if node.op == "call_module":
        return type(attribute_value(node))
    try:
        hash(node.target)
    except TypeError:
        return id(node.target)
    return (node.op, node.target)


def attribute_value(node: Node) -> Any:
    """Return what a ``get_attr`` fetches or a ``call_module`` calls; ``None`` where its graph belongs to no module."""
    owner = node.graph.owning_module
    return None if owner is None else fetch_attribute(owner, str(node.target))


class SearchedProgram:
    """A program as the matcher sees it.

    Matching goes by the canonical form, so that all spellings of an operation are one. A call of a leaf module is
    several canonical nodes there, its *parts*. Checks that come from inside leaf modules are not part of it.
    """

    def __init__(self, graph_module: GraphModule) -> None:
        """Bring ``graph_module`` into canonical form."""
        self.graph_module = graph_module
        form = canonical_form(graph_module)
        self.stands_for: Mapping[Node, Node] = form.stands_for
        self.graph: Graph = form.graph_module.graph
        self.numbers: frozenset[Node] = form.numbers
        """The canonical nodes that are known to be numbers."""
        drop_inner_checks(self.graph, self.stands_for)
        self.position: dict[Node, int] = {}
        self.parts: dict[Node, list[Node]] = {}
        self._by_kind: dict[Hashable, list[Node]] = {}
        self._fetches: dict[int, list[Node]] = {}
        self._attributes: dict[Node, Any] = {}
        for number, node in enumerate(self.graph.nodes):
            self.position[node] = number
            if is_call(node):
                self.parts.setdefault(self.stands_for[node], []).append(node)
                self._by_kind.setdefault(kind_of(node), []).append(node)
            elif node.op == "get_attr":
                value = self._attributes[node] = attribute_value(node)
                self._fetches.setdefault(id(value), []).append(node)
        self._users: dict[tuple[Node, Hashable], list[Node]] = {}
        self._results: dict[Node, Node | None] = {}
        self.order: dict[Node, int] = {node: number for number, node in enumerate(graph_module.graph.nodes)}
        """Positions of the program's own nodes."""
        self._effects = [number for node, number in self.order.items() if _has_effect(node)]

    def calls(self, kind: Hashable) -> Sequence[Node]:
        """All calls of one kind, in order."""
        return self._by_kind.get(kind, ())

    def users(self, node: Node, kind: Hashable) -> list[Node]:
        """The calls of one kind that use a value, in order; those of an attribute however often it is fetched."""
        fetches = self._fetches[id(self.attribute(node))] if node.op == "get_attr" else [node]
        known = self._users.get((fetches[0], kind))
        if known is None:
            users = {user for fetch in fetches for user in fetch.users if is_call(user) and kind_of(user) == kind}
            known = self._users[fetches[0], kind] = sorted(users, key=self.position.__getitem__)
        return known

    def result(self, original: Node) -> Node | None:
        """The canonical node whose value is that of ``original``; ``None`` where there is no single one."""
        if original not in self._results:
            parts = self.parts.get(original, [])
            if len(parts) == 1:
                return parts[0]
            used = [part for part in parts if any(self.stands_for.get(user) is not original for user in part.users)]
            outer = used or parts[-1:]
            self._results[original] = outer[0] if len(outer) == 1 else None
        return self._results[original]

    def original(self, argument: Argument) -> Argument:
        """``argument`` in terms of the program's own nodes.

        An attribute that only a leaf module reads has no node of its own and stays the canonical ``get_attr``.
        """
        return self._original_node(argument) if isinstance(argument, Node) else map_arg(argument, self._original_node)

    def _original_node(self, node: Node) -> Node:
        original = self.stands_for.get(node, node)
        return node if node.op == "get_attr" and original.op != "get_attr" else original

    def hidden(self, argument: Argument) -> list[Node]:
        """The nodes in ``argument`` whose values exist only inside of leaf modules."""
        calls = (node for node in nodes_in(argument) if is_call(node))
        return [node for node in calls if self.result(self.stands_for[node]) is not node]

    def attribute(self, node: Node) -> Any:
        """Return what a ``get_attr`` node fetches."""
        return self._attributes[node]

    def same_value(self, left: Node, right: Node) -> bool:
        """Return whether two nodes are one value: the same node, or two that fetch the same attribute."""
        if left is right:
            return True
        return left.op == right.op == "get_attr" and self._attributes[left] is self._attributes[right]

    def has_effect_between(self, first: int, last: int) -> bool:
        """Return whether one of the program's nodes from position ``first`` to ``last`` has an effect, checks aside."""
        index = bisect_left(self._effects, first)
        return index < len(self._effects) and self._effects[index] <= last

    def is_no_op(self, original: Node) -> bool:
        """Return whether ``original`` computes nothing, such as a call of ``Identity``: canonically it is not there."""
        return is_call(original) and original not in self.parts


def _has_effect(node: Node) -> bool:
    effect = effect_of(node)
    return effect is not None and effect.kind not in ("interface", "check")


def drop_inner_checks(graph: Graph, stands_for: Mapping[Node, Node]) -> None:
    """Erase the checks that leaf modules bring with them, and what is computed for them alone."""
    loosened: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.users or stands_for.get(node, node).op != "call_module":
            continue
        if node.target in CHECKS or (node in loosened and not node.is_impure()):
            loosened.update(node.all_input_nodes)
            graph.erase_node(node)


# What a module is set to, its tensors aside: whether calls of two modules are calls of one operation.


def same_settings(left: torch.nn.Module, right: torch.nn.Module) -> bool:
    """Return whether two modules differ in nothing but the values of their tensors.

    Compared are class, mode, attributes that are not tensors, which parameters and buffers there are, and the children.
    Modules with hooks, or with a ``forward`` of their own, are only like themselves.
    """
    pending: list[tuple[Any, Any]] = [(left, right)]
    while pending:
        left, right = pending.pop()
        if left is right:
            continue
        if type(left) is not type(right) or not (does_as_its_class(left) and does_as_its_class(right)):
            return False
        if _attributes(left) != _attributes(right) or left._modules.keys() != right._modules.keys():
            return False
        pending.extend(zip(left._modules.values(), right._modules.values(), strict=True))
    return True


def _attributes(module: torch.nn.Module) -> dict[str, object]:
    """The settings of one module, and which tensors it has, as values that can be compared."""
    found: dict[str, object] = {}
    for name, value in vars(module).items():
        if not (name in _BOOKKEEPING or isinstance(value, torch.Tensor)):
            found[name] = repr(value) if isinstance(value, (float, complex)) else _comparable(value)
    for tensors in (module._parameters, module._buffers):
        found.update((name, tensor is None) for name, tensor in tensors.items())
    return found


def _comparable(value: Any) -> object:
    """A list of tensors, as recurrent modules keep one of their weights, counts by its length."""
    if isinstance(value, (list, tuple)) and any(not isinstance(element, (int, str, bool)) for element in value):
        return len(value)  # type: ignore[arg-type]
    return value
