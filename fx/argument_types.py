"""Checks of arguments against annotations: ``@checked(PassError)`` on a function or a class."""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from numbers import Integral, Real
from types import FunctionType, NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from fx.arguments import refusal, shown
from fx.errors import FxError, GraphError, with_article

Checked = TypeVar("Checked", bound=Callable[..., Any])
Inputs: TypeAlias = Annotated[Sequence[Any], "give a value for each input: (x,)"]
"""Example inputs."""
Calls: TypeAlias = Annotated[Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]], "give calls: [((x,), {'scale': 2})]"]
"""The positional and keyword arguments of several calls."""
_CALLABLE: Any = Callable


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range of an annotated number, which is finite: ``Annotated[int, Bounds(2, 8)]``."""

    least: float = -math.inf
    """The smallest number."""
    most: float = math.inf
    """The largest number."""
    excludes_least: bool = False
    """True if all numbers are larger than ``least``."""

    def __contains__(self, value: Any) -> bool:
        is_above = self.least < value if self.excludes_least else self.least <= value
        return is_above and value <= self.most and abs(value) != math.inf

    def __str__(self) -> str:
        low = f"above {self.least}" if self.excludes_least else f"of at least {self.least}"
        if self.most == math.inf:
            return low
        return f"{low} and at most {self.most}" if self.excludes_least else f"from {self.least} to {self.most}"


def checked(error: type[FxError] = GraphError) -> Callable[[Checked], Checked]:
    """Return a decorator for functions that refuses arguments of other types than the annotated ones.

    Of a class, the construction is checked, and calls of the public methods that it defines. Annotations are read at
    the first call. Elements of containers are checked, too, but not those of an iterator, which can be read only once.
    ``Annotated`` adds :class:`Bounds` to a number, or a text that says what to try. A default is always accepted.

    >>> @checked()
    ... def repeat(text: str, times: Annotated[int, Bounds(1, 9)] = 1) -> str:
    ...     return text * times
    >>> repeat("ab", 10)
    Traceback (most recent call last):
    ...
    fx.errors.GraphError: 'times' of repeat is an int from 1 to 9, not 10
    ...
    """

    def decorate(definition: Any) -> Any:
        if not isinstance(definition, type):
            return _guarded(definition, definition, error)
        check_construction(definition, error)
        for name, member in [*vars(definition).items()]:
            method = getattr(member, "__func__", member)
            if isinstance(method, FunctionType) and not name.startswith("_"):
                guarded = _guarded(method, method, error)
                setattr(definition, name, guarded if method is member else type(member)(guarded))
        return definition

    return decorate


def check_construction(definition: Any, error: type[FxError]) -> None:
    """Make a class refuse arguments of other types than the annotated ones; those of a dataclass are its fields."""
    original = definition.__init__
    definition.__init__ = _guarded(original, definition if is_dataclass(definition) else original, error)


def _guarded(function: Callable[..., Any], annotated: Any, error: type[FxError]) -> Callable[..., Any]:
    """Return ``function`` with a check of its arguments, which are annotated in ``annotated``."""

    @functools.cache
    def checks() -> tuple[list[Callable[[Any], bool]], dict[str, Callable[[Any], bool]]]:
        kinds, parameters = annotated_types(annotated), inspect.signature(function).parameters.values()
        plain = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        by_name = {each.name: _check_of(kinds.get(each.name, Any)) for each in plain}
        return [by_name[each.name] for each in plain if each.kind is not each.KEYWORD_ONLY], by_name

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        by_place, by_name = checks()
        for fits, value in zip(by_place, args, strict=False):
            if not fits(value):
                refuse_misfit(function, args, kwargs, error, annotated)
        for name, value in kwargs.items():
            if not by_name.get(name, _anything)(value):
                refuse_misfit(function, args, kwargs, error, annotated)
        return function(*args, **kwargs)

    return guarded


def refuse_misfit(
    function: Callable[..., Any], args: Any, kwargs: Any, error: type[FxError], annotated: Any = None
) -> None:
    """Raise the error that names the first argument of a call that is not of its annotated type."""
    signature = inspect.signature(function)
    try:
        arguments = signature.bind(*args, **kwargs).arguments
    except TypeError:  # too few or too many, which Python reports
        return
    kinds, owner = annotated_types(annotated or function), function.__qualname__.rpartition(">.")[2]
    if next(iter(signature.parameters), None) in ("self", "cls"):
        taker = args[0] if isinstance(args[0], type) else type(args[0])
        owner = taker.__name__ if function.__name__ == "__init__" else f"{taker.__name__}.{function.__name__}"
    for name, value in arguments.items():
        parameter = signature.parameters[name]
        is_one = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_one and value is not parameter.default and not holds(kinds.get(name, Any), value):
            part, kind, misfit = _innermost(kinds[name], value)
            remedies = [text for each in (kind, kinds[name]) for text in _remedies(each, misfit)]
            what, named = f"{part}{name!r} of {owner} is {in_words(kind)}", None
            if isinstance(misfit, int) and misfit.bit_length() > 63:
                named = "an int of more than 64 bits"
            elif _lists_values(kind):
                named = shown(misfit)
            raise refusal(what, misfit, error=error, named=named, remedy=next(iter(remedies), None))


def annotated_types(definition: Any) -> dict[str, Any]:
    """Return the types that annotate the parameters of a function, or the fields of a class."""
    if not isinstance(definition, type):
        parameters = {name: kind for name, kind in definition.__annotations__.items() if name != "return"}
        holder = SimpleNamespace(__annotations__=parameters)
        kinds = get_type_hints(holder, definition.__globals__, include_extras=True)
        return {name: kind.__bound__ if isinstance(kind, TypeVar) else kind for name, kind in kinds.items()}
    kinds: dict[str, Any] = {}
    for kind in reversed(definition.__mro__):
        for name, annotation in inspect.get_annotations(kind).items():
            holder = type("Holder", (), {"__annotations__": {name: annotation}, "__module__": kind.__module__})
            with suppress(NameError):  # the type is imported for type checking only
                kinds.update(get_type_hints(holder, localns=dict(vars(kind)), include_extras=True))
    return kinds


def _lists_values(annotation: Any) -> bool:
    """Return whether a value of the right class may be refused."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return any(map(_lists_values, parts))
    return origin is Literal or any(isinstance(part, Bounds) for part in parts)


def holds(annotation: Any, value: Any) -> bool:
    """Return whether ``value`` is of an annotated type."""
    return _check_of(annotation)(value)


def in_words(annotation: Any) -> str:
    """Return an annotated type in words: ``a Node or None``."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return " ".join((in_words(parts[0]), *(str(part) for part in parts[1:] if isinstance(part, Bounds))))
    if origin in (Union, UnionType):
        return " or ".join(map(in_words, parts))
    if origin is Literal:
        return " or ".join(map(repr, parts))
    kind = origin or annotation
    return _WORDS.get(kind) or with_article(getattr(kind, "__name__", str(kind)))


_WORDS = {None: "None", NoneType: "None", bool: "True or False", float: "a number", _CALLABLE: "a function"}


def _anything(value: Any) -> bool:
    return True


def _is_unchecked(kind: Any) -> bool:
    """Return whether a class is a protocol whose methods Python does not look for."""
    return getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False)


def _is_int(value: Any) -> bool:
    number: Any = value
    is_integer = type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))
    return is_integer and -(2**63) <= number < 2**63


def _is_float(value: Any) -> bool:
    number: Any = value
    if isinstance(value, float) or not isinstance(value, Integral):
        return isinstance(value, (float, Real))
    return not isinstance(value, bool) and abs(number) <= sys.float_info.max


def _check_of(annotation: Any) -> Callable[[Any], bool]:
    """Return the function that tells whether a value is of an annotated type; ``_anything`` if each is."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        fits, bounds = _check_of(parts[0]), [part for part in parts[1:] if isinstance(part, Bounds)]
        return (lambda value: fits(value) and all(value in each for each in bounds)) if bounds else fits
    if origin in (Union, UnionType):
        checks = [_check_of(part) for part in parts]
        return _anything if _anything in checks else lambda value: any(fits(value) for fits in checks)
    if origin is Literal:  # in Python `True == 1`
        return lambda value: any(type(value) is type(choice) and value == choice for choice in parts)
    kind: Any = origin or (NoneType if annotation is None else annotation)
    if kind in (int, float, _CALLABLE):
        return {int: _is_int, float: _is_float, _CALLABLE: callable}[kind]
    if not isinstance(kind, type) or kind in (Any, object) or _is_unchecked(kind):
        return _anything
    if kind is type and parts and isinstance(parts[0], type) and parts[0] is not Any:
        return lambda value: isinstance(value, type) and issubclass(value, parts[0])
    if parts and issubclass(kind, Iterable) and not issubclass(kind, Iterator):
        return _check_of_container(kind, parts)
    return lambda value: isinstance(value, kind)


def _check_of_container(kind: Any, parts: tuple[Any, ...]) -> Callable[[Any], bool]:
    checks = [_check_of(part) for part in parts if part is not ...]
    if issubclass(kind, Mapping):
        of_keys, of_values = checks
        return lambda value: isinstance(value, kind) and all(of_keys(key) and of_values(value[key]) for key in value)
    if kind is tuple and ... not in parts:
        return lambda value: (
            _is_container(kind, value)
            and len(value) == len(checks)
            and all(fits(element) for fits, element in zip(checks, value, strict=True))
        )

    def fits(value: Any) -> bool:
        return _is_container(kind, value) and (isinstance(value, Iterator) or all(map(checks[0], value)))

    return (lambda value: _is_container(kind, value)) if checks[0] is _anything else fits


def _is_container(kind: Any, value: Any) -> bool:
    """Return whether a value is a container of an annotated class; a list counts as a tuple, a text as no sequence."""
    return isinstance(value, (tuple, list) if kind is tuple else kind) and not isinstance(value, (str, bytes))


def _innermost(annotation: Any, value: Any) -> tuple[str, Any, Any]:
    """Return the innermost part of a value that is not as annotated: which part, its annotation, and the part."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        containers = [part for part in parts if isinstance(get_origin(part), type)]
        fitting = [part for part in containers if _is_container(get_origin(part), value)]
        return _innermost(fitting[0], value) if fitting else ("", annotation, value)
    if isinstance(origin, type) and issubclass(origin, Iterable) and _is_container(origin, value):
        kinds = parts if origin is tuple and ... not in parts else parts[:1] * len(value)
        elements = [("an element of ", kind, element) for kind, element in zip(kinds, value, strict=False)]
        if issubclass(origin, Mapping):
            elements = [("a key of ", parts[0], key) for key in value]
            elements += [("a value of ", parts[1], value[key]) for key in value]
        for part, kind, element in elements:
            if not holds(kind, element):
                within, kind, misfit = _innermost(kind, element)
                return within + part, kind, misfit
    return "", annotation, value


def _remedies(annotation: Any, misfit: object) -> list[str]:
    """Return the remedies for a wrong value: the texts in its annotation, and the advice of annotated classes."""
    texts: list[str] = []
    for kind in (annotation, *get_args(annotation)):
        texts += (part for part in getattr(kind, "__metadata__", ()) if isinstance(part, str))
        if isinstance(kind, type) and (advice := getattr(kind, "_advice_for", None)) is not None:
            texts.append(advice(misfit))
    return texts
