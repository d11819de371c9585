"""What a function says of its parameters, which of them its code asks for being given, and how decorators pass them."""

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
"""Through how many functions an input is followed."""


def annotations_of(owner: Any) -> dict[str, Any]:
    """The annotations of a function, or of a class without its bases, where text stays text.

    Python 3.14 evaluates them when somebody asks, and may lack a name then: such a one is a forward reference.
    """
    if sys.version_info >= (3, 14):
        return annotationlib.get_annotations(owner, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(owner)


def evaluated_annotations(function: Any) -> dict[str, Any]:
    """The annotations of a function, as objects where its strings can be evaluated.

    Those of generated code are what its graph holds, which may come from a file: they stay what they are.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    if getattr(code, "co_filename", None) in GENERATED_FILES:
        return annotations_of(function)
    try:
        return inspect.get_annotations(function, eval_str=True)
    except Exception:  # evaluating the user's annotations may do anything; as strings they are just names
        return annotations_of(function)


def defaults_of(function: Any) -> dict[str, Any]:
    """The defaults of a function's parameters."""
    given = inspect.signature(function, follow_wrapped=False).parameters.values()
    return {one.name: one.default for one in given if one.default is not one.empty}


def asked_for(function: Any, names: Iterable[str], owner: Any = None, depth: int = 0) -> dict[str, SourceLocation]:
    """Return those of the parameters of a function that it asks for being ``None`` or given, with the line.

    So do functions and modules that it hands them on to, as far as its byte code shows which these are.

    Args:
        function: a function that Python code defines.
        names: the parameters.
        owner: the module whose method it is.
        depth: how many functions lie around it.
    """
    code = inspect.unwrap(function).__code__
    wanted = dict.fromkeys(names)
    found: dict[str, SourceLocation] = {}
    for one in nested(code):
        for test in identities(one):
            for name in wanted.keys() & (test.one | test.other) if test.with_none else ():
                if one is code or name in one.co_freevars:
                    found.setdefault(str(name), SourceLocation(one, test.offset))
    flow = dataflow(code)
    if flow is None:
        return found
    known = Names.of_function(inspect.unwrap(function))
    if owner is not None:
        known = Names({**known.local, code.co_varnames[0]: owner}, known.namespace)
    for name in wanted:
        for index in flow.loads(name):
            for use, _ in flow.uses.get(index, ()):
                if (where := _asked(flow, index, use, known, depth)) is not None:
                    found.setdefault(name, where)
    return found


def _asked(flow: Dataflow, index: int, use: int, known: Names, depth: int) -> SourceLocation | None:
    """Return where a parameter that one instruction loads and another takes is asked for; None if it is not there."""
    where = SourceLocation(flow.code, flow.steps[use].offset)
    if flow.asks_truth(use) or (flow.kind(use) in TEXTS and flow.compares_elements(use)):
        return where
    call = flow.call(use)
    if call is None:
        return None
    if callee_of(flow, call, known) in (isinstance, bool):
        return where if any(index in given for given in call.positional[:1]) else None
    try:
        called, module, skipped = _called(value_of(flow, call.callee, known))
    except LookupError:
        return None
    if called is None or call.is_spread or depth >= _DEEPEST:
        return None
    given = parameters_given(inspect.unwrap(called).__code__, call, index, bool(skipped))
    asked = asked_for(called, filter(None, given), module, depth + 1)
    return next(iter(asked.values()), None)


def asked_keywords(function: Any, name: str) -> SourceLocation | None:
    """Return where a function spreads its ``**kwargs``, or asks what is in them; None where it does neither."""
    code = inspect.unwrap(function).__code__
    offset = keywords_asked_for(code, name)
    return None if offset is None else SourceLocation(code, offset)


def _called(value: Any) -> tuple[Any, Any, int]:
    """Return what a call runs: a function, the module whose method it is, the number of parameters not in the call."""
    if isinstance(value, torch.nn.Module):
        return _users_own(type(value).forward), value, 1
    if isinstance(value, MethodType):
        return _users_own(value.__func__), value.__self__, 1
    if isinstance(value, Method):
        return _users_own(value.function), value.owner, 1
    return _users_own(value), None, 0


def _users_own(value: Any) -> Any:
    behind = inspect.unwrap(value) if isinstance(value, FunctionType) else None
    return value if isinstance(behind, FunctionType) and is_users_file(behind.__code__.co_filename) else None


# Decorators of a function whose starred and keyword-only parameters become inputs.


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
