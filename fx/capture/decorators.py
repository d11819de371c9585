"""The decorators of a function whose starred and keyword-only parameters become inputs."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import CellType, FunctionType
from typing import Any

from fx.bytecode.mentions import keywords_used
from fx.capture.restore.places import contents_of
from fx.errors import TraceError
from fx.provenance import SourceLocation, defined_at


def decorated_again(function: Any, innermost: Callable[..., Any]) -> Callable[..., Any]:
    """Return what the decorators of ``function`` make of ``innermost`` in place of what is behind them all.

    They keep the function that they call in their closure, in a ``functools.partial`` or in an attribute. Nothing is
    changed that other threads call.
    """
    behind = getattr(function, "__wrapped__", None)
    if behind is None:
        return innermost
    again = _with_inner(function, behind, decorated_again(behind, innermost))
    if again is None:
        raise TraceError(
            f"a decorator of {getattr(function, '__qualname__', function)} cannot be captured",
            where=defined_at(function) or defined_at(inspect.unwrap(function)),
            why="the function takes *args, **kwargs or keyword-only parameters, each of which becomes one input, and "
            "the decorator keeps what it calls where capture does not find it",
            remedy="name the parameters of the function one by one, or give the decorator a def that calls it",
        )
    return again


def _with_inner(function: Any, behind: Any, inner: Callable[..., Any]) -> Any:
    """Return a decorator that calls ``inner`` where ``function`` calls ``behind``; ``None`` where it does not say."""
    if isinstance(function, FunctionType):
        cells = function.__closure__ or ()
        if all(contents_of(cell) is not behind for cell in cells):
            return None
        closure = tuple(CellType(inner) if contents_of(cell) is behind else cell for cell in cells)
        again = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, closure)
        again.__kwdefaults__, again.__qualname__ = function.__kwdefaults__, function.__qualname__
        again.__dict__.update(function.__dict__)
        return again
    if isinstance(function, functools.partial):
        parts = (function.func, *function.args)
        if not any(one is behind for one in (*parts, *function.keywords.values())):
            return None
        keywords = {name: inner if one is behind else one for name, one in function.keywords.items()}
        return functools.partial(*(inner if one is behind else one for one in parts), **keywords)
    held = getattr(function, "__dict__", {})
    # functools.wraps leaves `__wrapped__` for others to read; a decorator calls what it holds under names of its own.
    names = [name for name, one in held.items() if one is behind and name != "__wrapped__"]
    if not names or not isinstance(vars(type(function)).get("__call__"), FunctionType):
        return None
    again = copy.copy(function)
    vars(again).update(dict.fromkeys(names, inner))
    return again


def expect_keywords_taken(function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    """Refuse a decorator that does not take by keyword what stands for starred and keyword-only parameters."""
    called: Any = function
    if not isinstance(function, (FunctionType, functools.partial)):  # an object, which may be a descriptor, too
        called = functools.partial(type(function).__call__, function)
    try:
        inspect.signature(called, follow_wrapped=False).bind(*args, **keywords)
    except TypeError as error:
        raise TraceError(
            f"a decorator of {getattr(function, '__qualname__', function)} cannot be captured: {error}",
            where=defined_at(function),
            why="the function takes *args, **kwargs or keyword-only parameters, each of which becomes one input that "
            "is handed on by keyword",
            remedy="let the decorator take **kwargs and hand them on, or name the function's parameters one by one",
        ) from None


def asking_decorator(function: Any) -> SourceLocation | None:
    """Return where a decorator of ``function`` does anything with its ``**kwargs`` but hand them on, if one does."""
    while hasattr(function, "__wrapped__"):
        code = getattr(function, "__code__", None)
        if code is not None and code.co_flags & inspect.CO_VARKEYWORDS:
            name = code.co_varnames[
                code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
            ]
            if (offset := keywords_used(code, name)) is not None:
                return SourceLocation(code, offset)
        function = function.__wrapped__
    return None
