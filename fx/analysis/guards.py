"""Guards: recorded checks that each value that decided the course of a capture is still the same."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fx.assertions import GUARDS, is_false
from fx.node import Node
from fx.operators.python import BY_FUNCTION, COMPARISONS

_DEEPEST = 6
_LONGEST = 80


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """One guard of a program. ``str(guard)`` is its condition in words, with the user's line."""

    text: str
    """The condition, and the user's line that asked for it, as in the ``GuardError`` for an input that breaks it."""
    node: Node
    """The call that checks the condition."""
    value: Node | None
    """The checked value; None if it is a constant."""

    def __str__(self) -> str:
        return self.text


def guards_of(nodes: Iterable[Node]) -> tuple[Guard, ...]:
    """Return the guards of a program, in the order in which they are checked.

    >>> import fx, torch
    >>> program = fx.symbolic_trace(lambda x: x[: 3 if x.dim() == 2 else 1], example_inputs=(torch.ones(4, 4),))
    >>> [str(guard).partition(": ")[0] for guard in guards_of(program.graph.nodes)]
    ['the program was captured where x.dim() == 2 was True']
    """
    guards: list[Guard] = []
    for node in nodes:
        if node.op == "call_function" and node.target in GUARDS:
            value = node.args[0]
            guards.append(Guard(str(node.args[-1]), node, value if isinstance(value, Node) else None))
    return tuple(guards)


def spelled(node: Node, is_plain: Callable[[Node], bool]) -> str:
    """Return the source text of a value, as in ``x.dim() == 2``: queries on tensors, and the names of the tensors.

    A text over 80 characters is replaced by the node's name.

    Args:
        node: the node that computes the value.
        is_plain: returns whether a node computes a number, shape, dtype or the like, rather than a tensor.
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
    # An augmented assignment, `x += 1`, is not an expression, so it is written as a call below.
    if target in BY_FUNCTION and not node.kwargs and not BY_FUNCTION[target].in_place:
        return _operation(node, parts)
    if target is is_false:
        return f"not {parts[0]}"
    arguments = [*parts, *(f"{name}={_spelled(value, is_plain, depth + 1)}" for name, value in node.kwargs.items())]
    if node.op == "call_method":
        return f"{arguments[0]}.{target}({', '.join(arguments[1:])})"
    return f"{getattr(target, '__name__', target)}({', '.join(arguments)})"


def _operation(node: Node, parts: list[str]) -> str:
    """Return the text of an operator expression, with nested operator expressions in parentheses."""
    inner = [
        f"({text})" if isinstance(part, Node) and part.target in BY_FUNCTION and " " in text else text
        for part, text in zip(node.args, parts, strict=True)
    ]
    # Comparisons bind less tightly than all other operators: their operands need no parentheses.
    return BY_FUNCTION[node.target].template.format(*(parts if node.target in COMPARISONS else inner))  # type: ignore[index]


def _slice(bounds: slice, is_plain: Callable[[Node], bool]) -> str:
    first, last, step = (
        "" if bound is None else _spelled(bound, is_plain, 1) for bound in (bounds.start, bounds.stop, bounds.step)
    )
    return f"{first}:{last}" + (f":{step}" if step else "")
