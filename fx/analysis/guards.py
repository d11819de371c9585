"""Guards: the checks of a program that what decided its course while it was captured is still so."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fx.assertions import check_given, check_kind, check_not_given, check_value, is_false
from fx.node import Node
from fx.operators.python import BY_FUNCTION, COMPARISONS

GUARDS = (check_value, check_given, check_not_given, check_kind)
"""The functions whose calls are guards."""
_DEEPEST = 6
_LONGEST = 80


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """One guard of a program. ``str(guard)`` says it in words, with the user's line."""

    text: str
    """What must hold, and the line that asked for it, as the ``GuardError`` of an input that breaks it says."""
    node: Node
    """The call that checks it."""
    value: Node | None
    """What is checked; None where that is a constant."""

    def __str__(self) -> str:
        return self.text


def guards_of(nodes: Iterable[Node]) -> tuple[Guard, ...]:
    """The guards of a program, in the order in which they are checked.

    >>> import fx, torch
    >>> program = fx.symbolic_trace(lambda x: x[: 3 if x.dim() == 2 else 1], example_inputs=(torch.ones(4, 4),))
    >>> [str(guard).partition(": ")[0] for guard in guards_of(program.graph.nodes)]
    ['the program was captured where x.dim() == 2 was True']
    """
    found: list[Guard] = []
    for node in nodes:
        if node.op == "call_function" and node.target in GUARDS:
            value = node.args[0]
            found.append(Guard(str(node.args[-1]), node, value if isinstance(value, Node) else None))
    return tuple(found)


def spelled(node: Node, is_plain: Callable[[Node], bool]) -> str:
    """Return how a program would write a value: what was asked of tensors, and the names of these.

    Args:
        node: computes the value.
        is_plain: whether what a node computes is a number, shape, dtype or the like, and no tensor.
    """
    text = _spelled(node, is_plain, 0)
    return text if len(text) <= _LONGEST else node.name


def _spelled(node: Any, is_plain: Callable[[Node], bool], depth: int) -> str:
    if not isinstance(node, Node):
        return _slice(node, is_plain) if isinstance(node, slice) else repr(node)
    target: Any = node.target
    if node.op == "placeholder":
        return str(target).lstrip("*")
    if node.op not in ("call_function", "call_method") or depth > _DEEPEST or not is_plain(node):
        return str(target) if node.op == "get_attr" else node.name
    parts = [_spelled(part, is_plain, depth + 1) for part in node.args]
    if target is getattr:
        return f"{parts[0]}.{node.args[1]}"
    if target is operator.getitem:
        inside = node.args[1]
        texts = [_spelled(part, is_plain, depth + 1) for part in inside] if isinstance(inside, tuple) else parts[1:]
        return f"{parts[0]}[{', '.join(texts)}]"
    # An augmented assignment, `x += 1`, is no expression: it is spelled as a call below.
    if target in BY_FUNCTION and not node.kwargs and not BY_FUNCTION[target].in_place:
        return _operation(node, parts)
    if target is is_false:
        return f"not {parts[0]}"
    given = [*parts, *(f"{name}={_spelled(value, is_plain, depth + 1)}" for name, value in node.kwargs.items())]
    if node.op == "call_method":
        return f"{given[0]}.{target}({', '.join(given[1:])})"
    return f"{getattr(target, '__name__', target)}({', '.join(given)})"


def _operation(node: Node, parts: list[str]) -> str:
    """An operation with an operator, with operations inside of it in parentheses."""
    inner = [
        f"({text})" if isinstance(part, Node) and part.target in BY_FUNCTION and " " in text else text
        for part, text in zip(node.args, parts, strict=True)
    ]
    # comparisons bind less than all others
    return BY_FUNCTION[node.target].template.format(*(parts if node.target in COMPARISONS else inner))  # type: ignore[index]


def _slice(bounds: slice, is_plain: Callable[[Node], bool]) -> str:
    first, last, step = (
        "" if one is None else _spelled(one, is_plain, 1) for one in (bounds.start, bounds.stop, bounds.step)
    )
    return f"{first}:{last}" + (f":{step}" if step else "")
