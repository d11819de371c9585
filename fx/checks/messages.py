"""Messages of checks while a program is captured: text in which traced values stand by name becomes a template."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection
from typing import Any, NamedTuple

from fx.assertions import READ_ATTRIBUTES, READ_METHODS
from fx.graph import Graph
from fx.node import Node

_TRACED = re.compile(r"(?<!\w)Proxy\((\w+)((?:\.\w+)*)(?:\|(\w+))?(?::([^(){}]*))?\)")
"""A traced value in text (``Proxy.__repr__``): its name, attributes, a function that is called with it, a format."""


class MessageTemplate(NamedTuple):
    """A message to be written when a check fails."""

    text: str
    """What ``fx.assertions.check`` takes, or the message itself where there are no values."""
    values: tuple[Node, ...] = ()
    """What is filled in."""


def template_of(message: object, graph: Graph, temporary: Collection[Node] = ()) -> MessageTemplate | None:
    """The template for a message that was formatted with traced values of ``graph``.

    Args:
        message: text in which traced values stand as ``Proxy(name)``, or another value that a check is given.
        graph: where these are.
        temporary: nodes that are going to be erased; a field reads what they compute of others.

    Returns:
        None where a field cannot read what a temporary node computes.
    """
    text = str.__str__(message) if isinstance(message, str) else str(message)  # it may be a TracedText
    if "Proxy(" not in text:
        return MessageTemplate(text)
    named = {node.name: node for node in graph.nodes}
    values: dict[Node, int] = {}
    parts: list[str] = []
    end = 0
    for found in _TRACED.finditer(text):
        name, attributes, function, form = found.groups()
        if name not in named:
            continue
        reading = _reading(named[name], temporary)
        if reading is None or not READ_ATTRIBUTES.issuperset(attributes.split(".")[1:]):
            return None
        node, steps = reading
        number = values.setdefault(node, len(values))
        field = f"{number}{steps}{attributes}" + (f"|{function}" if function else "") + (f":{form}" if form else "")
        parts += [_escaped(text[end : found.start()]), "{", field, "}"]
        end = found.end()
    return MessageTemplate("".join([*parts, _escaped(text[end:])]), tuple(values)) if values else MessageTemplate(text)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _reading(node: Node, temporary: Collection[Node]) -> tuple[Node, str] | None:
    """The node from which a field reads what ``node`` computes, and the steps to it."""
    if node not in temporary:
        return node, ""
    root, *rest = node.args or (None,)
    step = None if node.kwargs else _step(node, rest)
    reading = _reading(root, temporary) if step is not None and isinstance(root, Node) else None
    return None if reading is None else (reading[0], f"{reading[1]}{step}")


def _step(node: Node, rest: list[Any]) -> str | None:
    """Return how a field reads what ``node`` computes of its first argument and the rest of them."""
    if node.op == "call_method" and node.target in READ_METHODS and not rest:
        return f".{node.target}()"
    if len(rest) != 1:
        return None
    if node.target is getattr:
        return f".{rest[0]}" if rest[0] in READ_ATTRIBUTES else None
    index = _index(rest[0]) if node.target in (operator.getitem, "size") else None
    return f".size(){index}" if index is not None and node.target == "size" else index


def _index(index: Any) -> str | None:
    if type(index) is int:
        return f"[{index}]"
    if isinstance(index, slice) and all(type(bound) in (int, type(None)) for bound in _bounds(index)):
        first, last, step = ("" if bound is None else str(bound) for bound in _bounds(index))
        return f"[{first}:{last}{step and f':{step}'}]"
    return None


def _bounds(index: slice) -> tuple[Any, Any, Any]:
    return index.start, index.stop, index.step
