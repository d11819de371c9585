"""What a backend takes, as predicates that compose: each answers ``None`` (yes) or a sentence that says why not."""

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
"""Why an operation is refused, or ``None`` if it is not."""

Veto: TypeAlias = "Collection[str] | Callable[[Node], object]"
"""What the user keeps out of a backend: names of nodes and paths of modules, or a function that is true for a node, or
returns the reason."""


def all_of(*predicates: Predicate) -> Predicate:
    """Return what every one of the predicates takes; the reason is that of the first that refuses.

    >>> import fx
    >>> from fx.lowering.known_program import KnownProgram
    >>> known = KnownProgram(fx.symbolic_trace(lambda x: x.neg_()))
    >>> x, neg_, output = map(known.operation, known.graph_module.graph.nodes)
    >>> all_of(is_pure, has_shape)(neg_)
    '`%neg_` writes to `%x`'
    """
    return lambda operation: next((why for predicate in predicates if (why := predicate(operation)) is not None), None)


def any_of(*predicates: Predicate) -> Predicate:
    """Return what at least one of the predicates takes; the reason joins those of all."""

    def check(operation: Operation) -> str | None:
        reasons: list[str] = []
        for predicate in predicates:
            if (why := predicate(operation)) is None:
                return None
            reasons.append(why)
        return ", and ".join(reasons)

    return check


def is_pure(operation: Operation) -> str | None:
    """Takes what only computes its value."""
    return why_impure(operation.node)


def has_shape(operation: Operation) -> str | None:
    """Takes operations of which the shapes of the operands and of the result are known."""
    for node in (*operation.node.all_input_nodes, operation.node):
        if node.op != "get_attr" and operation.metadata(node) is None:
            return f"the shape of `%{node}` is not known: give example_inputs"
    return None


def has_dtype(*dtypes: torch.dtype) -> Predicate:
    """Takes operations all of whose operands and results are known to be of one of ``dtypes``."""

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
    """Takes operations of which these arguments are tensors of the program that no run changes.

    Args:
        arguments: their names.
        optional: they may be ``None`` as well.
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
    """Takes what ``condition`` is true for; otherwise the reason is ``reason``."""
    return lambda operation: None if condition(operation) else reason


def shape_of(operation: Operation, value: Any) -> tuple[int, ...] | None:
    """The shape of an operand, or ``None`` if it is not a tensor."""
    if not isinstance(value, Node):
        return None
    constant = operation.subject.constant(value)
    if constant is not None:
        return tuple(constant.shape)
    recorded = operation.metadata(value)
    return None if recorded is None else tuple(recorded.shape)


def has_rank(argument: str | int, *ranks: int) -> Predicate:
    """Takes operations of which an argument has one of these numbers of dimensions."""

    def check(operation: Operation) -> str | None:
        shape = shape_of(operation, operation.arguments.get(argument))
        if shape is not None and len(shape) in ranks:
            return None
        dimensions = "an unknown number of" if shape is None else len(shape)
        return f"its {argument} has {dimensions} dimensions, not {' or '.join(map(str, ranks))}"

    return check


def has_values(**values: Any) -> Predicate:
    """Takes operations of which these arguments have these values, or one of them where a tuple is given."""

    def check(operation: Operation) -> str | None:
        for name, value in values.items():
            given = operation.arguments.get(name)
            allowed: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
            if isinstance(given, (Node, Tensor)) or not any(given is one or given == one for one in allowed):
                return f"its {name} is {given!r}, not {' or '.join(map(repr, allowed))}"
        return None

    return check


def has_numbers(*arguments: str | int, optional: bool = False) -> Predicate:
    """Takes operations of which these arguments are numbers, or tuples of some, and not computed by the program."""

    def is_number(value: Any) -> bool:
        if isinstance(value, (tuple, list)):
            return all(map(is_number, value))
        return isinstance(value, (int, float)) or (optional and value is None)

    return where(
        lambda operation: all(is_number(operation.arguments.get(name)) for name in arguments),
        f"its {' or '.join(map(str, arguments))} is not a plain number",
    )


def has_own_memory(operation: Operation) -> str | None:
    """Takes what nobody can tell from a copy: for backends that return values in memory of their own.

    Refused are values that something writes to, and what may be a view of an input or of the program's own tensors
    where the program may return it, or of what it returns beside it.
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
    if is_view and operation.subject.returned[group] > 1:
        return "the program returns several views of this memory"
    return None


def not_vetoed(veto: Veto) -> Predicate:
    """Takes what the user does not keep out."""
    if callable(veto):

        def ask(operation: Operation) -> str | None:
            answer = veto(operation.node)
            return answer if isinstance(answer, str) else "vetoed by the caller" if answer else None

        return ask
    places = frozenset(veto)

    def look_up(operation: Operation) -> str | None:
        found = places.intersection(places_of(operation.node)) if places else ()
        return f"vetoed by the caller: {min(found)}" if found else None

    return look_up


def places_of(node: Node) -> set[str]:
    """The names under which a user knows a node: its own and its origins', the paths of the modules around it."""
    places = {node.name, *node.origins}
    stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack", {}) if node._meta else {}
    for path, _ in stack.values():
        places.update(prefixes(path))
    return places


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype without ``torch.``."""
    return str(dtype).removeprefix("torch.")
