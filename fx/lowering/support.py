"""Composable predicates on operations: each returns ``None`` to accept one, or a sentence with the reason to refuse."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fx.lowering.known_program import Operation
from fx.modules.attributes import prefixes
from fx.node import Node
from fx.operators.effects import why_impure

Predicate: TypeAlias = Callable[[Operation], "str | None"]
"""A function that returns the reason to refuse an operation, or ``None`` to accept it."""

Veto: TypeAlias = Collection[str] | Callable[[Node], object]
"""The operations that the user keeps out of a backend: names of nodes and paths of modules, or a function that returns
true for a node to keep out, or the reason."""


def all_of(*predicates: Predicate) -> Predicate:
    """Return a predicate that accepts what all the predicates accept; the reason is that of the first that refuses.

    >>> import fx
    >>> from fx.lowering.known_program import KnownProgram
    >>> program = KnownProgram(fx.symbolic_trace(lambda x: x.neg_()))
    >>> x, neg_, output = map(program.operation, program.graph_module.graph.nodes)
    >>> all_of(is_pure, has_shape)(neg_)
    '`%neg_` writes to `%x`'
    """
    return lambda operation: next((why for predicate in predicates if (why := predicate(operation)) is not None), None)


def any_of(*predicates: Predicate) -> Predicate:
    """Return a predicate that accepts what any of the predicates accepts; the reason joins the reasons of all."""

    def check(operation: Operation) -> str | None:
        reasons: list[str] = []
        for predicate in predicates:
            if (why := predicate(operation)) is None:
                return None
            reasons.append(why)
        return ", and ".join(reasons)

    return check


def is_pure(operation: Operation) -> str | None:
    """Accept an operation without side effects."""
    return why_impure(operation.node)


def has_shape(operation: Operation) -> str | None:
    """Accept an operation if the shapes of its operands and of its result are known."""
    for node in (*operation.node.all_input_nodes, operation.node):
        if node.op != "get_attr" and operation.metadata(node) is None:
            return f"the shape of `%{node}` is not known: give example_inputs"
    return None


def has_dtype(*dtypes: torch.dtype) -> Predicate:
    """Return a predicate for operations whose operands and result are known to have one of ``dtypes``."""

    def check(operation: Operation) -> str | None:
        for node in (*operation.node.all_input_nodes, operation.node):
            dtype = operation.subject.dtype(node)
            if dtype is None:
                return f"the dtype of `%{node}` is not known: give example_inputs"
            if dtype not in dtypes:
                return f"`%{node}` is {dtype_name(dtype)}, not {' or '.join(map(dtype_name, dtypes))}"
        return None

    return check


def has_constant(*arguments: str, optional: bool = False) -> Predicate:
    """Return a predicate for operations with tensors of the program, which no run changes, for these arguments.

    Args:
        arguments: the names of the arguments.
        optional: whether they may also be ``None``.
    """

    def check(operation: Operation) -> str | None:
        for name in arguments:
            value = operation.arguments.get(name)
            if not (optional and value is None) and operation.constant(name) is None:
                fold = "canonicalize and fold-constants{freeze=true} compute once what depends on weights alone"
                return f"its {name} is computed, or may change in a run; {fold}"
        return None

    return check


def where(condition: Callable[[Operation], bool], reason: str) -> Predicate:
    """Return a predicate that accepts an operation if ``condition`` is true for it, and refuses it with ``reason``."""
    return lambda operation: None if condition(operation) else reason


def shape_of(operation: Operation, value: Any) -> tuple[int, ...] | None:
    """Return the shape of an operand; ``None`` if it is unknown or the operand is not a tensor."""
    if not isinstance(value, Node):
        return None
    constant = operation.subject.constant(value)
    if constant is not None:
        return tuple(constant.shape)
    recorded = operation.metadata(value)
    return None if recorded is None else tuple(recorded.shape)


def has_rank(argument: str | int, *ranks: int) -> Predicate:
    """Return a predicate for operations whose argument has one of these numbers of dimensions."""

    def check(operation: Operation) -> str | None:
        shape = shape_of(operation, operation.arguments.get(argument))
        if shape is not None and len(shape) in ranks:
            return None
        dimensions = "an unknown number of" if shape is None else len(shape)
        return f"its {argument} has {dimensions} dimensions, not {' or '.join(map(str, ranks))}"

    return check


def has_values(**values: Any) -> Predicate:
    """Return a predicate for operations with these values of arguments; a tuple lists the allowed values of one."""

    def check(operation: Operation) -> str | None:
        for name, value in values.items():
            actual = operation.arguments.get(name)
            allowed: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
            if isinstance(actual, (Node, Tensor)) or not any(actual is other or actual == other for other in allowed):
                return f"its {name} is {actual!r}, not {' or '.join(map(repr, allowed))}"
        return None

    return check


def has_numbers(*arguments: str | int, optional: bool = False) -> Predicate:
    """Return a predicate for operations with numbers, or tuples of numbers, for these arguments, not computed values.

    Args:
        arguments: the names or positions of the arguments.
        optional: whether they may also be ``None``.
    """

    def is_number(value: Any) -> bool:
        if isinstance(value, (tuple, list)):
            return all(map(is_number, value))
        return isinstance(value, (int, float)) or (optional and value is None)

    return where(
        lambda operation: all(is_number(operation.arguments.get(name)) for name in arguments),
        f"its {' or '.join(map(str, arguments))} is not a plain number",
    )


def has_own_memory(operation: Operation) -> str | None:
    """Accept an operation if no caller can tell its value from a copy, for backends that return values in new memory.

    A value is refused if something writes to its memory. It is refused if the program may return it, and it may be a
    view of an input or of a tensor of the program. It is also refused if it is a view of memory of which the program
    returns several values.
    """
    dependences, node = operation.subject.dependences, operation.node
    group = dependences.memory(node)
    if group is None:
        return None
    if writers := dependences.writers(node):
        return f"`%{writers[0]}` writes to its memory"
    if dependences.may_be_returned(node) and (owner := dependences._owner(group)) is not None:
        return f"the program may return it as a view of memory that {owner}"
    is_view = any(dependences.memory(used) == group for used in node.all_input_nodes)
    if is_view and operation.subject.is_in_several_results(node):
        return "the program returns several views of this memory"
    return None


def not_vetoed(veto: Veto) -> Predicate:
    """Return a predicate that accepts the operations that the user does not keep out."""
    if callable(veto):

        def ask(operation: Operation) -> str | None:
            answer = veto(operation.node)
            return answer if isinstance(answer, str) else "vetoed by the caller" if answer else None

        return ask
    places = frozenset(veto)

    def look_up(operation: Operation) -> str | None:
        matches = places.intersection(places_of(operation.node)) if places else ()
        return f"vetoed by the caller: {min(matches)}" if matches else None

    return look_up


def places_of(node: Node) -> set[str]:
    """Return the names by which a user knows a node: its own, its origins', and the paths of modules around it."""
    places = {node.name, *node.origins}
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack", {}) if node._meta else {}
    for path, _ in stack.values():
        places.update(prefixes(path))
    return places


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without ``torch.``."""
    return str(dtype).removeprefix("torch.")
