"""Functionalization: replace in-place operations by ones that return a new value, where this is not observable."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fx.analysis.dependence import Dependences
from fx.canonical.calls import CallSpeller
from fx.graph_module import GraphModule
from fx.node import Node
from fx.operators.effects import declare_pure
from fx.operators.facts import Family
from fx.operators.families import find_in_place
from fx.operators.sharing import declare_new
from fx.serialization.allow_list import allow

_COMPUTED: tuple[Family, ...] = ("activation", "function", "arithmetic")
"""Families whose in-place operators compute the same as the operator itself, and write it to the first operand."""


@allow
@declare_new
@declare_pure
def with_items(input: Tensor, index: Any, value: Any) -> Tensor:
    """Return a copy of a tensor after ``copy[index] = value``.

    >>> with_items(torch.zeros(3), slice(1, None), 2)
    tensor([0., 2., 2.])
    """
    copied = input.clone()
    copied[index] = value
    return copied


def make_functional(graph_module: GraphModule, keeps_dtype: Callable[[Node], bool]) -> list[Node]:
    """Replace in-place activations, functions, arithmetic and ``x[index] = y`` by operations that return new values.

    Later operations use the new value in place of the tensor that was written to. Writes to inputs, to tensors of the
    program, and to memory that is read through another value, such as an earlier view, stay.

    Args:
        graph_module: a program in canonical form, which is edited.
        keeps_dtype: returns whether the result of an operation keeps its dtype if it becomes a new value. A write
            keeps the dtype of the tensor that it writes to; a new value has the promoted dtype of the operands. For
            ``x[index] = y``, returns whether to replace it, by :func:`with_items`.

    Returns:
        The operations that now return a new value.

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
    while batch := _replace_some(graph_module, keeps_dtype):
        replaced += batch  # fewer values share the memory now, so that more writes may be replaced
    if replaced:
        graph_module.recompile()
    return replaced


def written_operand(node: Node) -> Node | None:
    """Return the value that an in-place activation, function or arithmetic writes to; None for other nodes."""
    if node.op != "call_function":
        return None
    if node.target is operator.setitem:
        return node.args[0] if isinstance(node.args[0], Node) else None
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
    """Replace the in-place operations that can be replaced in the current program, and return them."""
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
        if keeps_dtype(node) and _is_read_only_through(node, written, members[group], position):
            writes.append(node)
    speller = CallSpeller(graph_module)
    for node in writes:
        _replace(node, speller, position)
    return writes


def _is_read_only_through(node: Node, written: Node, sharing: list[Node], position: dict[Node, int]) -> bool:
    """Return whether later operations read the memory only through ``node`` or ``written``, not through another value.

    ``sharing`` lists the values that share this memory.
    """
    at = position[node]
    return not any(
        position[user] > at
        for other in sharing
        if other is not node and other is not written and position[other] <= at
        for user in other.users
    )


def _replace(node: Node, speller: CallSpeller, position: dict[Node, int]) -> None:
    """Make ``node`` return a new value, and let later operations use it in place of the operand it wrote to."""
    written = written_operand(node)  # an earlier replacement may have changed this operand
    assert written is not None
    for user in list(written.users):
        if position[user] > position[node]:
            user.replace_input_with(written, node)
    if node.target is operator.setitem:
        node.target = with_items
        node.meta.update({kind: written.meta[kind] for kind in ("tensor_meta", "type") if kind in written.meta})
        return
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
