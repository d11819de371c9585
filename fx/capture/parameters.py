"""Parameters of functions: annotations, defaults, tests for None, and their way through decorators."""

from __future__ import annotations

import builtins
import copy
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch

from fx.bytecode.dataflow import TEXTS, CodeCall, Dataflow, dataflow, named_parameters, parameters_given
from fx.bytecode.dialects import nested
from fx.bytecode.mentions import Identity, identities, keywords_asked_for, keywords_used
from fx.bytecode.values import Method, Names, value_of
from fx.bytecode.values import behind as original
from fx.capture.leaf_calls import ProxyableClassMeta, behind_recording
from fx.capture.restore.places import contents_of
from fx.code.sources import LazyForward
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
    """By identity it is compared with ``None`` (``"none"``), with a flag (``"identity"``) or another object
    (``"object"``). ``"sequence"`` is a pattern of any length, ``"object"`` also one of a mapping. The others are
    ``"equality"``, ``"truth"``, and ``"unknown"``: byte code does not show what becomes of the input."""
    where: SourceLocation
    """The line."""


def asked_for(
    function: Any,
    kinds: Mapping[str, Collection[str]],
    owner: Any = None,
    is_leaf: Callable[[torch.nn.Module], bool] = lambda _: False,
) -> dict[str, InputQuestion]:
    """Return a question about each of these parameters that a function may ask, with its line.

    Functions and modules that it passes them to are searched too, as far as its byte code shows which these are, except
    for modules that ``is_leaf`` says are recorded whole. A method has its module as ``owner``.

    Args:
        function: the function.
        kinds: for each parameter, the kinds of questions that matter.
        owner: the module of a method.
        is_leaf: returns whether a module is recorded whole.
    """
    search = _QuestionSearch(function, owner, is_leaf)
    questions = {name: [each for each in search.about(name) if each.kind in kinds[name]] for name in kinds}
    return {
        name: min(about, key=lambda each: KINDS_ASKED.index(each.kind)) for name, about in questions.items() if about
    }


KINDS_ASKED = ("identity", "sequence", "object", "none", "truth", "equality", "unknown")
"""The kinds of questions, the one that is known best first."""


class _QuestionSearch:
    """The search for questions in one function."""

    def __init__(self, function: Any, owner: Any, is_leaf: Callable[[torch.nn.Module], bool], depth: int = 0) -> None:
        behind = inspect.unwrap(function)
        self.code: CodeType = behind.__code__
        self.known = Names.of_function(behind)
        if owner is not None:
            self.known = Names({**self.known.local, self.code.co_varnames[0]: owner}, self.known.namespace)
        self.is_leaf = is_leaf
        self.depth = depth

    def about(self, name: str) -> Iterator[InputQuestion]:
        """Yield the questions about a variable, also in inner functions."""
        if self.code.co_filename in GENERATED_FILES:
            return  # a graph asks by recorded operations only
        visible = {name}
        """The variables with its value that inner functions see."""
        for inner in nested(self.code):  # the function itself is the first
            flow = dataflow(inner)
            known_here = visible if inner is self.code else visible.intersection(inner.co_freevars)
            if flow is None:
                yield from (InputQuestion("unknown", SourceLocation(inner, 0)) for _ in known_here)
                continue
            pending = flow.loads_of_argument(name) if inner is self.code else []
            stored = flow.stored_in(pending) if inner is self.code else known_here
            variables = {variable for known_name in stored for variable in flow.variables_with(known_name)}
            visible |= variables.intersection(inner.co_cellvars)
            parameters = self.code.co_varnames[: named_parameters(self.code)] if (tests := identities(inner)) else ()
            inputs = {variable for parameter in parameters for variable in flow.variables_with(parameter)}
            for test in tests:
                sides = test.left, test.right
                # two inputs are checked to be different, see `compared_with_each_other`
                if not (variables | known_here).isdisjoint(test.left | test.right) and not all(
                    side & inputs for side in sides
                ):
                    yield InputQuestion(_kind_asked(test), SourceLocation(inner, test.offset))
            is_returned = inner is self.code and self.depth == 0
            pending += [load for variable in variables for load in flow.loads(variable) if load not in pending]
            for index in pending:
                for use in flow.takers(index):
                    if (elements := self._only_kept(flow, use)) is not None:
                        pending += [element for element in elements if element not in pending]
                    elif not (is_returned and flow.kind(use) == "return"):
                        yield from self._of_use(flow, index, use)
            values = (self.known.namespace.get(each, vars(builtins).get(each)) for each in inner.co_names)
            if any(id(value) in _READ_VARIABLES for value in values):
                yield InputQuestion("unknown", SourceLocation(inner, 0))

    def _only_kept(self, flow: Dataflow, index: int, inside: frozenset[int] = frozenset()) -> list[int] | None:
        """Return the instructions that take a value out again, if the one at ``index`` puts it into a container.

        None if the container, or new object, may be used otherwise than by calls that are recorded whole, or returned.
        ``inside`` are the instructions that make the containers in it.
        """
        call = flow.call(index)
        if flow.kind(index) not in ("tuple", "list", "dict") and (
            call is None or call.is_spread or not isinstance(self._called_value(flow, call), type)
        ):
            return None
        elements: list[int] = []
        pending = flow.takers(index)
        for use in pending:
            nested_elements = None if use in inside else self._only_kept(flow, use, inside | {index})
            call = flow.call(use)
            if flow.kind(use) == "store":
                if (uses := flow.uses_of_stored(use)) is None:
                    return None
                pending += [other for other in uses if other not in pending]
            elif flow.kind(use) == "element":
                elements.append(use)
            elif nested_elements is not None:
                elements += nested_elements
            elif flow.kind(use) not in ("return", "drop", "converted") and (
                call is None or not self._is_recorded(self._called_value(flow, call))
            ):
                return None
        return elements

    def _of_use(self, flow: Dataflow, index: int, use: int) -> Iterator[InputQuestion]:
        """Yield the questions about a variable that one instruction loads and another uses."""
        where = SourceLocation(flow.code, flow.steps[use].offset)
        call = flow.call(use)
        if flow.asks_truth(use) or flow.asks_class(use):
            yield InputQuestion("truth", where)
        elif flow.kind(use) in TEXTS and flow.compares_elements(use):
            yield InputQuestion("none", where)
        elif call is not None:
            yield from self._of_call(flow, index, call, where)
        elif flow.kind(use) == "compare":
            yield InputQuestion("equality", where)
        elif not flow.shows(use):
            yield InputQuestion("unknown", where)

    def _of_call(self, flow: Dataflow, index: int, call: CodeCall, where: SourceLocation) -> Iterator[InputQuestion]:
        value = self._called_value(flow, call)
        if original(value) is isinstance or original(value) is bool:
            if any(index in argument for argument in call.positional[:1]):
                yield InputQuestion("truth", where)
            return
        # Python's functions in C compare no argument by identity but those of `operator`, which a trace replaces
        if isinstance(value, BuiltinFunctionType) or self._is_recorded(value) or _is_graph(value):
            return
        called, owner = _called(value)
        code = None if called is None else inspect.unwrap(called).__code__
        parameters = [] if code is None else list(parameters_given(code, call, index, owner is not None))
        named = set() if code is None else set(code.co_varnames[: named_parameters(code)])
        if code is None or call.is_spread or self.depth >= _DEEPEST or not set(parameters) <= named:
            yield InputQuestion("unknown", where)
        else:
            search = _QuestionSearch(called, owner, self.is_leaf, self.depth + 1)
            yield from (question for parameter in parameters for question in search.about(parameter))

    def _called_value(self, flow: Dataflow, call: CodeCall) -> Any:
        """Return the called object; of the result of another call, its callee, which decides whether it is recorded."""
        inner = [flow.call(maker) for maker in call.callee if maker >= 0]
        if len(inner) == 1 and inner[0] is not None:
            value = self._called_value(flow, inner[0])
            return value if self._is_recorded(value) else None
        try:
            return value_of(flow, call.callee, self.known)
        except LookupError:
            return None

    def _is_recorded(self, value: Any) -> bool:
        """Return whether a call with traced values is recorded whole: of torch's functions, leaves and ``fx.wrap``."""
        if isinstance(value, torch.nn.Module):
            of_torch = all(type(module).__module__.startswith("torch.") for module in value.modules())
            return of_torch or self.is_leaf(value)
        if behind_recording(value) is not value or isinstance(value, ProxyableClassMeta):
            return True
        function = value.function if isinstance(value, Method) else value
        return callable(function) and (getattr(function, "__module__", None) or "").partition(".")[0] == "torch"


def _is_graph(value: Any) -> bool:
    """Return whether a value is a captured program that was not compiled yet; it asks by recorded operations only."""
    return isinstance(value, torch.nn.Module) and isinstance(
        inspect.getattr_static(type(value), "forward", None), LazyForward
    )


def _kind_asked(test: Identity) -> str:
    """Return the kind of the question that a comparison asks about an input."""
    if test.pattern == "sequence":
        return "sequence"
    return "none" if test.with_none else "identity" if test.with_truth else "object"


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
