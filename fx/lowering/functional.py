"""Operations that write in place, as operations that return a new value, where nobody can tell the difference."""

from __future__ import annotations

import operator
from typing import Any

from fx.graph_module import GraphModule
from fx.lowering.known_program import KnownProgram
from fx.node import Node

_OPERATORS: dict[Any, Any] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}


def make_functional(graph_module: GraphModule) -> list[Node]:
    """Replace activations and arithmetic in place by what returns new values, in a canonical program; linear.

    Left as they are: writes to inputs, to the program's own tensors and to what is seen through other values; and
    arithmetic whose operands are not known to be of one floating-point dtype, which a write keeps and a new value does
    not.

    Returns:
        The operations that return a new value now.

    >>> import fx, torch
    >>> from fx.canonical import canonical_form
    >>> program = canonical_form(fx.symbolic_trace(lambda x: torch.relu_(torch.neg(x)))).graph_module
    >>> make_functional(program)
    [relu_]
    """
    subject = KnownProgram(graph_module)
    dependences, aliases = subject.dependences, subject.dependences.aliases
    members: dict[int, list[Node]] = {}
    for node in aliases.nodes:
        if node.op != "output" and (group := dependences.memory(node)) is not None:
            members.setdefault(group, []).append(node)
    writes: list[tuple[Node, Node]] = []
    for node in aliases.nodes:
        written = _written(node)
        group = None if written is None else dependences.memory(written)
        if written is None or group is None or dependences._owner(group) is not None:
            continue
        if _keeps_dtype(subject, node) and _is_seen_through_it_alone(node, members[group], aliases.position):
            writes.append((node, written))
    for node, written in writes:
        _replace(node, written, aliases.position)
    if writes:
        graph_module.recompile()
    return [node for node, _ in writes]


def _written(node: Node) -> Node | None:
    """What an activation or an operator in place writes to."""
    if node.op != "call_function":
        return None
    in_place = node.kwargs.get("inplace") is True or node.target in _OPERATORS
    written = (node.kwargs.get("input") or next(iter(node.args), None)) if in_place else None
    return written if isinstance(written, Node) else None


def _keeps_dtype(subject: KnownProgram, node: Node) -> bool:
    """Whether the value has the dtype of what is written to also if it is a new one."""
    dtypes = {subject.dtype(one) for one in node.all_input_nodes}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    if node.target in _OPERATORS:
        numbers = all(isinstance(one, (Node, int, float)) for one in node.args)
        return numbers and dtype is not None and dtype.is_floating_point
    return True


def _is_seen_through_it_alone(node: Node, sharing: list[Node], position: dict[Node, int]) -> bool:
    """Whether what is written is looked at afterwards only as the value of ``node`` or as what it writes to."""
    at = position[node]
    written = _written(node)
    for other in sharing:
        if other is node or other is written or position[other] > at:
            continue
        if any(position[user] > at for user in other.users):
            return False
    return True


def _replace(node: Node, written: Node, position: dict[Node, int]) -> None:
    """Let ``node`` return a new value, and what comes after it use that in the place of what was written to."""
    at = position[node]
    for user in list(written.users):
        if position[user] > at:
            user.replace_input_with(written, node)
    if node.target in _OPERATORS:
        node.target = _OPERATORS[node.target]
    else:
        node.kwargs = {**node.kwargs, "inplace": False}
