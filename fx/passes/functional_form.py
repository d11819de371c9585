"""Operations that write in place, as operations that return a new value, where nobody can tell the difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fx.analysis.dependence import Dependences
from fx.canonical.calls import CallSpeller
from fx.graph_module import GraphModule
from fx.node import Node
from fx.operators.facts import Family
from fx.operators.families import find_in_place

_COMPUTED: tuple[Family, ...] = ("activation", "function", "arithmetic")
"""Families whose result in place is that of the same operator, written over its first operand."""


def make_functional(graph_module: GraphModule, keeps_dtype: Callable[[Node], bool]) -> list[Node]:
    """Replace activations, functions and arithmetic in place by what returns new values, in a canonical program.

    What comes after one of them uses the new value in the place of what was written to. Left as they are: writes to
    inputs, to the program's own tensors, and to what is seen through other values, such as a view taken before.

    Args:
        graph_module: a program in canonical form, which is edited.
        keeps_dtype: says of an operation whether its result has the dtype of what it writes to also if it is a new
            value: a write keeps the dtype, a new value has the wider one of the operands.

    Returns:
        The operations that return a new value now.

    >>> import fx, torch
    >>> from fx.canonical import canonical_form
    >>> program = canonical_form(fx.symbolic_trace(lambda x: torch.relu_(torch.neg(x)).mul_(2))).graph_module
    >>> make_functional(program, lambda node: True)
    [relu_, mul_]
    >>> print(program.code.strip())
    def forward(self, x):
        neg = -x;  x = None
        relu_ = torch.nn.functional.relu(input = neg, inplace = False);  neg = None
        mul_ = relu_ * 2;  relu_ = None
        return mul_
    """
    replaced: list[Node] = []
    while found := _replace_some(graph_module, keeps_dtype):
        replaced += found  # what they wrote to is seen through fewer values now
    if replaced:
        graph_module.recompile()
    return replaced


def written_operand(node: Node) -> Node | None:
    """The value that an activation, a function or arithmetic in place writes to, or None where ``node`` is none."""
    if node.op != "call_function":
        return None
    if node.kwargs.get("inplace") is not True and not _is_in_place(node.target):
        return None
    written = next(iter(node.args), node.kwargs.get("input"))
    return written if isinstance(written, Node) else None


def _is_in_place(target: Any) -> bool:
    """Return whether a function, or an unbound method of tensors, is an in-place operator that can be replaced."""
    row = find_in_place(target) or find_in_place(_method_name(target))
    return row is not None and row.family in _COMPUTED


def _method_name(target: Any) -> str | None:
    name = getattr(target, "__name__", None)
    is_method = isinstance(name, str) and getattr(torch.Tensor, name, None) is target
    return name if is_method else None


def _replace_some(graph_module: GraphModule, keeps_dtype: Callable[[Node], bool]) -> list[Node]:
    """Replace those that can be as the program is now."""
    dependences = Dependences(graph_module.graph)
    position = dependences.aliases.position
    members: dict[int, list[Node]] = {}
    for node in dependences.aliases.nodes:
        if node.op != "output" and (group := dependences.memory(node)) is not None:
            members.setdefault(group, []).append(node)
    writes: list[Node] = []
    for node in dependences.aliases.nodes:
        written = written_operand(node)
        group = None if written is None else dependences.memory(written)
        if written is None or group is None or dependences._owner(group) is not None:
            continue
        if keeps_dtype(node) and _is_seen_through_it_alone(node, written, members[group], position):
            writes.append(node)
    speller = CallSpeller(graph_module)
    for node in writes:
        _replace(node, speller, position)
    return writes


def _is_seen_through_it_alone(node: Node, written: Node, sharing: list[Node], position: dict[Node, int]) -> bool:
    """Return whether what is written is looked at afterwards only as the value of ``node`` or as what it writes to."""
    at = position[node]
    return not any(
        position[user] > at
        for other in sharing
        if other is not node and other is not written and position[other] <= at
        for user in other.users
    )


def _replace(node: Node, speller: CallSpeller, position: dict[Node, int]) -> None:
    """Let ``node`` return a new value, and what comes after it use that in the place of what was written to."""
    written = written_operand(node)  # perhaps another value than before, itself a new one
    assert written is not None
    for user in list(written.users):
        if position[user] > position[node]:
            user.replace_input_with(written, node)
    if node.kwargs.get("inplace") is True:
        node.kwargs = {**node.kwargs, "inplace": False}
        return
    row = find_in_place(node.target)
    if row is not None:  # a function of Python or of torch
        node.target = row.function
        return
    name = _method_name(node.target)
    assert name is not None
    node.target = getattr(torch.Tensor, name.removesuffix("_"))
    call = speller.spell(node)
    if call is not None:
        node.target, node.args, node.kwargs = call.target, call.args, call.kwargs
