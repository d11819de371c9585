"""Parameters of functions: annotations, defaults, tests for None, and their way through decorators."""

from __future__ import annotations

import builtins
import copy
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch

from fx.bytecode.dataflow import TEXTS, CodeCall, Dataflow, dataflow, named_parameters, parameters_given
from fx.bytecode.dialects import nested
from fx.bytecode.mentions import identities, keywords_asked_for, keywords_used
from fx.bytecode.values import Method, Names, value_of
from fx.bytecode.values import behind as original
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


class InputQuestion(NamedTuple):
    """A use of an input, by which the program may ask for its identity or truth."""

    kind: str
    """``"none"`` (compared with ``None``), ``"identity"`` (with others), ``"equality"``, ``"truth"``, or ``"unknown"``:
    byte code does not show what becomes of the input."""
    where: SourceLocation
    """The line."""


def asked_for(function: Any, names: Iterable[str], owner: Any = None, depth: int = 0) -> dict[str, InputQuestion]:
    """Return the parameters that a function may compare by identity or test for their truth, each with one line.

    Functions and modules that it passes them to are searched too, as far as its byte code shows which these are. A
    method has its module as ``owner``. ``depth`` is the number of functions around it.
    """
    behind = inspect.unwrap(function)
    if behind.__code__.co_filename in GENERATED_FILES:
        return {}  # a graph asks by recorded operations only
    constants = Names.of_function(behind)
    if owner is not None:
        constants = Names({**constants.local, behind.__code__.co_varnames[0]: owner}, constants.namespace)
    likeliest: dict[str, InputQuestion] = {}
    for name in names:
        questions = list(_questions(behind.__code__, name, constants, depth))
        if questions:
            likeliest[name] = min(questions, key=lambda question: _KINDS_ASKED.index(question.kind))
    return likeliest


_KINDS_ASKED = ("identity", "none", "truth", "equality", "unknown")


def _questions(code: CodeType, name: str, known: Names, depth: int) -> Iterator[InputQuestion]:
    """Yield the questions about a variable of a function, also of the functions in it."""
    visible = {name}
    """The variables with its value that inner functions see."""
    for inner in nested(code):  # the function itself is the first
        flow = dataflow(inner)
        known_here = visible if inner is code else visible.intersection(inner.co_freevars)
        if flow is None:
            yield from (InputQuestion("unknown", SourceLocation(inner, 0)) for _ in known_here)
            continue
        variables = {variable for known_name in known_here for variable in flow.variables_with(known_name)}
        visible |= variables.intersection(inner.co_cellvars)
        for test in identities(inner):
            # of two variables, computed values are checked where they are computed
            if not variables.isdisjoint(test.left | test.right) and not (test.left and test.right):
                yield InputQuestion("none" if test.with_none else "identity", SourceLocation(inner, test.offset))
        is_returned = inner is code and depth == 0
        for index in (index for variable in variables for index in flow.loads(variable)):
            for use in flow.takers(index):
                if not (is_returned and flow.kind(use) == "return"):
                    yield from _questions_of_use(flow, index, use, known, depth)
        if any(id(known.namespace.get(each, vars(builtins).get(each))) in _READ_VARIABLES for each in inner.co_names):
            yield InputQuestion("unknown", SourceLocation(inner, 0))


_READ_VARIABLES = frozenset(map(id, (locals, vars, eval, exec)))
"""The identities of functions that read variables without naming them."""


def compared_with_each_other(function: Any, names: Collection[str]) -> Iterator[tuple[str, str, SourceLocation]]:
    """Yield the pairs of parameters that a function compares with ``is``, each with the line."""
    code = inspect.unwrap(function).__code__
    for inner in nested(code):
        tests = [test for test in identities(inner) if test.left and test.right]
        flow = dataflow(inner) if tests else None
        if flow is None or code.co_filename in GENERATED_FILES:
            continue
        of_input = {variable: name for name in names for variable in flow.variables_with(name)}
        for test in tests:
            pairs = itertools.product(*({of_input.get(str(each)) for each in side} for side in (test.left, test.right)))
            for name, other in pairs:
                if name is not None and other is not None and name != other:
                    yield name, other, SourceLocation(inner, test.offset)


def _questions_of_use(flow: Dataflow, index: int, use: int, known: Names, depth: int) -> Iterator[InputQuestion]:
    """Yield the questions about a variable that one instruction loads and another uses."""
    where = SourceLocation(flow.code, flow.steps[use].offset)
    call = flow.call(use)
    if flow.asks_truth(use):
        yield InputQuestion("truth", where)
    elif flow.kind(use) in TEXTS and flow.compares_elements(use):
        yield InputQuestion("none", where)
    elif call is not None:
        yield from _questions_of_call(flow, index, call, known, depth, where)
    elif flow.kind(use) == "compare":
        yield InputQuestion("equality", where)
    elif not flow.shows(use):
        yield InputQuestion("unknown", where)


def _questions_of_call(
    flow: Dataflow, index: int, call: CodeCall, known: Names, depth: int, where: SourceLocation
) -> Iterator[InputQuestion]:
    try:
        value = value_of(flow, call.callee, known)
    except LookupError:
        value = None
    if original(value) is isinstance or original(value) is bool:
        if any(index in argument for argument in call.positional[:1]):
            yield InputQuestion("truth", where)
        return
    called, owner = _called(value)
    if called is None:
        if not _is_recorded(value):
            yield InputQuestion("unknown", where)
        return
    code = inspect.unwrap(called).__code__
    parameters = list(parameters_given(code, call, index, owner is not None))
    if call.is_spread or depth >= _DEEPEST or not set(parameters) <= set(code.co_varnames[: named_parameters(code)]):
        yield InputQuestion("unknown", where)
    else:
        yield from asked_for(called, parameters, owner, depth + 1).values()


def _is_recorded(value: Any) -> bool:
    """Return whether a function or module is torch's, so that a call with traced values is recorded whole."""
    if isinstance(value, torch.nn.Module):
        return all(type(module).__module__.startswith("torch.") for module in value.modules())
    function = value.function if isinstance(value, Method) else value
    return callable(function) and (getattr(function, "__module__", None) or "").partition(".")[0] == "torch"


def around(function: Any, root: Any) -> SourceLocation | None:
    """Return the place of a hook of the root, or of a decorator that the user wrote: code that gets inputs, too."""
    hooks = () if root is None else (*root._forward_pre_hooks.values(), *root._forward_hooks.values())
    while hasattr(function, "__wrapped__"):
        hooks, function = (*hooks, function), function.__wrapped__
    codes = (getattr(hook, "__code__", None) for hook in hooks)
    return next((SourceLocation(code, 0) for code in codes if code and is_users_file(code.co_filename)), None)


def asked_keywords(function: Any, name: str) -> SourceLocation | None:
    """Return the line where a function spreads its ``**kwargs``, or queries its contents; None if it does neither."""
    code = inspect.unwrap(function).__code__
    offset = keywords_asked_for(code, name)
    return None if offset is None else SourceLocation(code, offset)


def _called(value: Any) -> tuple[Any, Any]:
    """Return the user's function that a call runs, and the object that its first parameter is bound to."""
    function, owner = value, None
    if isinstance(value, torch.nn.Module):
        function, owner = inspect.getattr_static(type(value), "forward"), value
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
