"""Notes for all nodes made in a stretch of code: carried over by interpreters, or given by the user."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from fx.argument_types import checked
from fx.arguments import expect
from fx.node import Node

F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["annotate", "annotate_fn", "current_meta", "format_stack", "get_current_meta", "has_preserved_node_meta",
           "preserve_node_meta", "set_current_meta", "set_stack_trace"]  # fmt: skip


class _State(threading.local):
    meta: dict[str, Any] | None = None
    preserving: bool = False


_state = _State()


def current_meta() -> dict[str, Any] | None:
    """Return the notes to add to the ``meta`` of a node made now, or None."""
    return _state.meta


def has_preserved_node_meta() -> bool:
    """Return whether ``preserve_node_meta`` is active."""
    return _state.preserving


def get_current_meta() -> dict[str, Any]:
    """Return the active notes, or an empty dict."""
    return _state.meta or {}


@contextmanager
def preserve_node_meta(enable: bool = True) -> Generator[None, None, None]:
    """Let interpreters copy the ``meta`` of the node that they run to the nodes made while it runs."""
    previous = _state.preserving, _state.meta
    _state.preserving = enable
    try:
        yield
    finally:
        _state.preserving, _state.meta = previous


@contextmanager
def set_current_meta(node: Node) -> Generator[None, None, None]:
    """Give nodes made in the block the ``meta`` of ``node``, if ``preserve_node_meta`` is active."""
    if type(node) is not Node:
        expect(node, Node, "set_current_meta takes the notes of a node")
    if not (_state.preserving and node.meta):
        yield
        return
    previous = _state.meta
    _state.meta = dict(node.meta)
    try:
        yield
    finally:
        _state.meta = previous


@contextmanager
@checked()
def annotate(annotation_dict: dict[str, Any]) -> Generator[None, None, None]:
    """Put ``annotation_dict`` into ``meta["custom"]`` of every node traced in the block; inner blocks win."""
    previous = _state.meta
    meta = dict(previous or {})
    meta["custom"] = {**meta.get("custom", {}), **annotation_dict}
    _state.meta = meta
    try:
        yield
    finally:
        _state.meta = previous


@checked()
def annotate_fn(annotation_dict: dict[str, Any]) -> Callable[[F], F]:
    """Return a decorator that runs a function under ``annotate(annotation_dict)``."""

    @checked()
    def decorate(function: F) -> F:
        @wraps(function)
        def annotated(*args: Any, **kwargs: Any) -> Any:
            with annotate(annotation_dict):
                return function(*args, **kwargs)

        return annotated  # type: ignore[return-value]

    return decorate


@checked()
def set_stack_trace(stack: list[str]) -> None:
    """Give nodes made from now on this stack trace."""
    if _state.preserving and stack:
        _state.meta = {**(_state.meta or {}), "stack_trace": "".join(stack)}


def format_stack() -> list[str]:
    """Return the active stack trace, in pieces."""
    return [_state.meta["stack_trace"]] if _state.meta and "stack_trace" in _state.meta else []
