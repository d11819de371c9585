"""Parameters of functions: annotations, defaults, tests for None, and their way through decorators."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CellType, FunctionType, MethodType
from typing import Any

import torch

from fx.bytecode.dataflow import TEXTS, Dataflow, dataflow, parameters_given
from fx.bytecode.dialects import nested
from fx.bytecode.mentions import identities, keywords_asked_for, keywords_used
from fx.bytecode.values import Method, Names, callee_of, value_of
from fx.capture.restore.places import contents_of
from fx.errors import TraceError
from fx.frames import is_users_file
from fx.provenance import GENERATED_FILES, SourceLocation, defined_at

if sys.version_info >= (3, 14):
    import annotationlib

_DEEPEST = 8
"""The maximal number of functions through which an input is followed."""


def annotations_of(owner: Any) -> dict[str, Any]:
    """Return the annotations of a function, or of a class without its bases, where text stays text.

    Python 3.14 evaluates them on access, and a name may be missing then: it becomes a forward reference.
    """
    if sys.version_info >= (3, 14):
        return annotationlib.get_annotations(owner, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(owner)


def evaluated_annotations(function: Any) -> dict[str, Any]:
    """Return the annotations of a function, as objects where its strings can be evaluated.

    Those of generated code come from its graph, which may come from a file: they are not evaluated.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    if getattr(code, "co_filename", None) in GENERATED_FILES:
        return annotations_of(function)
    try:
        return inspect.get_annotations(function, eval_str=True)
    except Exception:  # evaluating the user's annotations may do anything; as strings they are only names
        return annotations_of(function)


def asked_for(function: Any, names: Iterable[str], owner: Any = None, depth: int = 0) -> dict[str, SourceLocation]:
    """Return the parameters that a function compares with ``None`` or tests for their truth, each with the line.

    Functions and modules that it passes them to are searched too, as far as its byte code shows which these are. A
    method has its module as ``owner``. ``depth`` is the number of functions around it.
    """
    code = inspect.unwrap(function).__code__
    wanted = dict.fromkeys(names)
    lines: dict[str, SourceLocation] = {}
    for inner in nested(code):
        for test in identities(inner):
            for name in wanted.keys() & (test.left | test.right) if test.with_none else ():
                if inner is code or name in inner.co_freevars:
                    lines.setdefault(str(name), SourceLocation(inner, test.offset))
    flow = dataflow(code)
    if flow is None:
        return lines
    constants = Names.of_function(inspect.unwrap(function))
    if owner is not None:
        constants = Names({**constants.local, code.co_varnames[0]: owner}, constants.namespace)
    for name in wanted:
        for index in flow.loads(name):
            for use, _ in flow.uses.get(index, ()):
                if (where := _asked(flow, index, use, constants, depth)) is not None:
                    lines.setdefault(name, where)
    return lines


def _asked(flow: Dataflow, index: int, use: int, known: Names, depth: int) -> SourceLocation | None:
    """Return the line where a parameter is tested that one instruction loads and another uses; else None."""
    where = SourceLocation(flow.code, flow.steps[use].offset)
    if flow.asks_truth(use) or (flow.kind(use) in TEXTS and flow.compares_elements(use)):
        return where
    call = flow.call(use)
    if call is None:
        return None
    if callee_of(flow, call, known) in (isinstance, bool):
        return where if any(index in argument for argument in call.positional[:1]) else None
    try:
        called, owner = _called(value_of(flow, call.callee, known))
    except LookupError:
        return None
    if called is None or call.is_spread or depth >= _DEEPEST:
        return None
    parameters = parameters_given(inspect.unwrap(called).__code__, call, index, owner is not None)
    tests = asked_for(called, filter(None, parameters), owner, depth + 1)
    return next(iter(tests.values()), None)


def asked_keywords(function: Any, name: str) -> SourceLocation | None:
    """Return the line where a function spreads its ``**kwargs``, or queries its contents; None if it does neither."""
    code = inspect.unwrap(function).__code__
    offset = keywords_asked_for(code, name)
    return None if offset is None else SourceLocation(code, offset)


def _called(value: Any) -> tuple[Any, Any]:
    """Return the user's function that a call runs, and the object that its first parameter is bound to."""
    function, owner = value, None
    if isinstance(value, torch.nn.Module):
        function, owner = type(value).forward, value
    elif isinstance(value, MethodType):
        function, owner = value.__func__, value.__self__
    elif isinstance(value, Method):
        function, owner = value.function, value.owner
    behind = inspect.unwrap(function) if isinstance(function, FunctionType) else None
    is_users = isinstance(behind, FunctionType) and is_users_file(behind.__code__.co_filename)
    return function if is_users else None, owner


# Decorators of a function whose starred and keyword-only parameters become inputs.


def decorated_again(function: Any, innermost: Callable[..., Any]) -> Callable[..., Any]:
    """Apply the decorators of ``function`` to ``innermost`` instead of to the function behind them all.

    Decorators keep the function that they call in their closure, in a ``functools.partial`` or in an attribute. Nothing
    that other threads call is changed.
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
            "capture does not find the function that the decorator calls",
            remedy="name the parameters of the function one by one, or give the decorator a def that calls it",
        )
    return again


def _with_inner(function: Any, behind: Any, inner: Callable[..., Any]) -> Any:
    """Return a decorator that calls ``inner`` where ``function`` calls ``behind``; ``None`` if that is unknown."""
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
        if not any(part is behind for part in (*parts, *function.keywords.values())):
            return None
        keywords = {name: inner if part is behind else part for name, part in function.keywords.items()}
        return functools.partial(*(inner if part is behind else part for part in parts), **keywords)
    attributes = getattr(function, "__dict__", {})
    # functools.wraps sets `__wrapped__` for others to read; a decorator calls the function by a name of its own.
    names = [name for name, value in attributes.items() if value is behind and name != "__wrapped__"]
    if not names or not isinstance(vars(type(function)).get("__call__"), FunctionType):
        return None
    again = copy.copy(function)
    vars(again).update(dict.fromkeys(names, inner))
    return again


def expect_keywords_taken(function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    """Refuse a decorator that does not accept starred and keyword-only parameters by keyword."""
    called: Any = function
    if not isinstance(function, (FunctionType, functools.partial)):  # an object, which may be a descriptor too
        called = functools.partial(type(function).__call__, function)
    try:
        inspect.signature(called, follow_wrapped=False).bind(*args, **keywords)
    except TypeError as error:
        raise TraceError(
            f"a decorator of {getattr(function, '__qualname__', function)} cannot be captured: {error}",
            where=defined_at(function),
            why="the function takes *args, **kwargs or keyword-only parameters, each of which becomes one input that "
            "is passed on by keyword",
            remedy="let the decorator take **kwargs and pass them on, or name the function's parameters one by one",
        ) from None


def asking_decorator(function: Any) -> SourceLocation | None:
    """Return the line where a decorator of ``function`` does more with its ``**kwargs`` than pass them on, if any."""
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
