"""``SearchedProgram``: the canonical form of a program, indexed for searches, with the map to its own nodes."""

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
    """Return whether a node computes a value, rather than fetch or return it."""
    return node.op in _CALLS


def kind_of(node: Node) -> Hashable:
    """Return the key of a call, equal for calls that may match: function, method name, or class of the module."""
    if node.op == "call_module":
        return type(attribute_value(node))
    try:
        hash(node.target)
    except TypeError:
        return id(node.target)
    return (node.op, node.target)


def attribute_value(node: Node) -> Any:
    """Return the attribute of a ``get_attr`` or ``call_module``; ``None`` if its graph belongs to no module."""
    owner = node.graph.owning_module
    return None if owner is None else fetch_attribute(owner, str(node.target))


class SearchedProgram:
    """A program in the form for the matcher.

    Patterns match the canonical form, in which all spellings of an operation are equal. A call of a leaf module is
    several canonical nodes there, its *parts*. Checks from inside leaf modules are removed.
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
        """Return all calls of one kind, in order."""
        return self._by_kind.get(kind, ())

    def users(self, node: Node, kind: Hashable) -> list[Node]:
        """Return, in order, the calls of one kind that use a value; for an attribute, those of all its fetches."""
        fetches = self._fetches[id(self.attribute(node))] if node.op == "get_attr" else [node]
        in_order = self._users.get((fetches[0], kind))
        if in_order is None:
            users = {user for fetch in fetches for user in fetch.users if is_call(user) and kind_of(user) == kind}
            in_order = self._users[fetches[0], kind] = sorted(users, key=self.position.__getitem__)
        return in_order

    def result(self, original: Node) -> Node | None:
        """Return the canonical node with the value of ``original``; ``None`` if there is no single one."""
        if original not in self._results:
            parts = self.parts.get(original, [])
            if len(parts) == 1:
                return parts[0]
            used = [part for part in parts if any(self.stands_for.get(user) is not original for user in part.users)]
            outer = used or parts[-1:]
            self._results[original] = outer[0] if len(outer) == 1 else None
        return self._results[original]

    def original(self, argument: Argument) -> Argument:
        """Return ``argument`` with the program's own nodes.

        An attribute that only a leaf module reads has no such node and stays the canonical ``get_attr``.
        """
        return self._original_node(argument) if isinstance(argument, Node) else map_arg(argument, self._original_node)

    def _original_node(self, node: Node) -> Node:
        original = self.stands_for.get(node, node)
        return node if node.op == "get_attr" and original.op != "get_attr" else original

    def hidden(self, argument: Argument) -> list[Node]:
        """Return the nodes in ``argument`` whose values exist only inside of leaf modules."""
        calls = (node for node in nodes_in(argument) if is_call(node))
        return [node for node in calls if self.result(self.stands_for[node]) is not node]

    def attribute(self, node: Node) -> Any:
        """Return the value that a ``get_attr`` node fetches."""
        return self._attributes[node]

    def same_value(self, left: Node, right: Node) -> bool:
        """Return whether two nodes have the same value: they are one node, or fetch the same attribute."""
        if left is right:
            return True
        return left.op == right.op == "get_attr" and self._attributes[left] is self._attributes[right]

    def has_effect_between(self, first: int, last: int) -> bool:
        """Return whether a node of the program from position ``first`` to ``last`` has an effect other than a check."""
        index = bisect_left(self._effects, first)
        return index < len(self._effects) and self._effects[index] <= last

    def is_no_op(self, original: Node) -> bool:
        """Return whether ``original`` computes nothing, such as a call of ``Identity``: it has no canonical node."""
        return is_call(original) and original not in self.parts


def _has_effect(node: Node) -> bool:
    effect = effect_of(node)
    return effect is not None and effect.kind not in ("interface", "check")


def drop_inner_checks(graph: Graph, stands_for: Mapping[Node, Node]) -> None:
    """Erase the checks inside leaf modules, and nodes that only they use."""
    operands: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.users or stands_for.get(node, node).op != "call_module":
            continue
        if node.target in CHECKS or (node in operands and not node.is_impure()):
            operands.update(node.all_input_nodes)
            graph.erase_node(node)


# The settings of modules, without tensors: they decide whether calls of two modules are the same operation.


def same_settings(left: torch.nn.Module, right: torch.nn.Module) -> bool:
    """Return whether two modules differ in nothing but the values of their tensors.

    The comparison covers class, mode, attributes that are not tensors, the names of parameters and buffers, and the
    children. Modules with hooks, or with their own ``forward``, equal only themselves.
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
    """Return the settings of one module and the names of its tensors, as values that can be compared."""
    settings: dict[str, object] = {}
    for name, value in vars(module).items():
        if not (name in _BOOKKEEPING or isinstance(value, torch.Tensor)):
            settings[name] = repr(value) if isinstance(value, (float, complex)) else _comparable(value)
    for tensors in (module._parameters, module._buffers):
        settings.update((name, tensor is None) for name, tensor in tensors.items())
    return settings


def _comparable(value: Any) -> object:
    """Return a value to compare; for a list of tensors, such as the weights of recurrent modules, its length."""
    if isinstance(value, (list, tuple)) and any(not isinstance(element, (int, str, bool)) for element in value):
        return len(value)  # type: ignore[arg-type]
    return value
