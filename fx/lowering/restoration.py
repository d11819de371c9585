"""What stays in eager Python, as it was written: calls of modules and methods in the place of their canonical form."""

from __future__ import annotations

import types
from collections.abc import Collection

from fx.canonical import CanonicalForm
from fx.node import Node, map_arg

_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
"""Methods of tensors as functions, which cannot be called with what capture puts in the place of a tensor."""
_CALLS = ("call_function", "call_method", "call_module")


def restore(form: CanonicalForm, kept: Collection[Node]) -> None:
    """Give the operations of a canonical program their original spelling, where all that stands for one is not kept.

    An operation stays canonical if its operands are others by now.

    Args:
        form: the program, whose graph is edited.
        kept: the operations that have to stay as they are.
    """
    graph = form.graph_module.graph
    named = {node.name: node for node in graph.nodes}
    standing: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if (original := form.stands_for.get(node)) is not None and original.op in _CALLS:
            standing.setdefault(original, []).append(node)
    for original, nodes in standing.items():
        result = named.get(original.name)
        if result in nodes and not any(node in kept for node in nodes):
            _restore_one(original, result, nodes, named)
    for node in graph.find_nodes(op="call_function"):
        if node not in kept and isinstance(node.target, _METHODS) and node.args and isinstance(node.args[0], Node):
            node.op, node.target = "call_method", node.target.__name__


def _restore_one(original: Node, result: Node, nodes: list[Node], named: dict[str, Node]) -> None:
    """Let ``result`` be ``original`` again, and erase what else stands for it."""
    own = set(nodes)
    operands = {used for node in nodes for used in node.all_input_nodes} - own
    values = {used: named.get(used.name) for used in original.all_input_nodes}
    if operands != {*values.values()} or not all(own.issuperset(node.users) for node in nodes if node is not result):
        return
    args, kwargs = (map_arg(given, values.__getitem__) for given in (original.args, original.kwargs))
    result.op, result.target = original.op, original.target
    result._update(args, kwargs)
    for node in reversed(nodes):
        if node is not result:
            result.graph.erase_node(node)
