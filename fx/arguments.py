"""Checks of the arguments of public functions: each costs an ``isinstance``, and raises a form of ``fx.errors``."""

from __future__ import annotations

import inspect
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import torch

from fx.container_kinds import held_kind
from fx.errors import FxError, GraphError, type_in_words
from fx.frames import user_location
from fx.naming.printing import describe
from fx.provenance import SourceLocation

DEEPEST = 150
"""The maximal nesting of containers in an argument. Python itself compiles no more than 200 nested brackets."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120
_SHORT.maxlevel = 3


def expect(
    value: object,
    kinds: type | tuple[type, ...],
    what: str,
    *,
    error: type[FxError] = GraphError,
    remedy: str | None = None,
) -> None:
    """Refuse ``value`` unless it is of one of ``kinds``.

    ``what`` names the function and the argument: ``"Graph.erase_node takes a Node"``. ``remedy`` is the value to pass
    instead.

    >>> from fx.errors import PassError
    >>> expect(3, str, "get_pass takes the name of a pass", error=PassError)
    Traceback (most recent call last):
    ...
    fx.errors.PassError: get_pass takes the name of a pass, not an int
    ...
    """
    if not isinstance(value, kinds):
        raise refusal(what, value, error=error, remedy=remedy)


def expect_callable(value: object, what: str, *, error: type[FxError] = GraphError, optional: bool = False) -> None:
    """Refuse ``value`` unless it can be called; if ``optional``, None is accepted too."""
    if not callable(value) and not (optional and value is None):
        raise refusal(what, value, error=error)


def expect_all(
    values: object, fits: Callable[[Any], bool], what: str, *, error: type[FxError] = GraphError
) -> tuple[Any, ...]:
    """Return the elements of ``values``; refuse it unless it can be iterated and all elements fit."""
    try:
        elements = tuple(cast("Iterable[Any]", values))
    except TypeError:
        raise refusal(what, values, error=error) from None
    for element in elements:
        if not fits(element):
            raise refusal(what, element, error=error)
    return elements


def expect_calls(data: object, *, error: type[FxError]) -> tuple[Any, ...]:
    """Return the calls in the argument of a pass's ``with_data``, each as its positional and keyword arguments."""
    what = "with_data takes the positional and keyword arguments of each call: [((x,), {})]"
    return expect_all(data, _is_call, what, error=error)


def expect_inputs(example_inputs: object, who: str, *, error: type[FxError]) -> None:
    """Refuse example inputs unless they are a value for each input, or None."""
    expect(example_inputs, (tuple, list, NoneType), f"{who} takes a value for each input: (x,)", error=error)
    expect_shallow(example_inputs, error)


def _is_call(call: Any) -> bool:
    return (
        isinstance(call, tuple)
        and len(call) == 2  # pyright: ignore[reportUnknownArgumentType]
        and isinstance(call[0], (tuple, list))
        and isinstance(call[1], Mapping)
    )


def refusal(
    what: str,
    value: object,
    *,
    error: type[FxError] = GraphError,
    why: str | None = None,
    remedy: str | None = None,
) -> FxError:
    """Return the error that ``what`` was expected instead of ``value``, with the user's line."""
    return error(f"{what}, not {_named(value)}", where=here(), value=shown(value), why=why, remedy=remedy)


def here() -> SourceLocation | None:
    """Return the user's line that is running."""
    return user_location(sys._getframe(1), {})


def _named(value: object) -> str:
    if value is None:
        return "None"
    return f"the class {value.__name__}" if isinstance(value, type) else type_in_words(value)


def shown(value: Any) -> str:
    """Return any value in one short line."""
    if hasattr(type(value), "format_node"):
        return describe(value)
    try:
        return " ".join(_SHORT.repr(value).split())[:200]
    except Exception:  # its own method fails, or it is an integer with more digits than Python converts
        return f"<{type(value).__name__}>"


# Annotated types.


def refuse_misfit(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: type[FxError]
) -> None:
    """Raise the error that names the first argument of a call that is not of its annotated type.

    Called only after the call has failed: a check before it would slow down each call of an operator.
    """
    try:
        arguments = inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError:  # too few or too many, which Python has reported
        return
    kinds = get_type_hints(function)
    for name, value in arguments.items():
        kind = kinds[name]
        classes = tuple(
            kind_or_choice for kind_or_choice in get_args(kind) or (kind,) if isinstance(kind_or_choice, type)
        )
        is_huge = isinstance(value, int) and not -(2**63) <= value < 2**63
        if is_huge or not holds(kind, value) or (torch.Tensor in classes and not isinstance(value, classes)):
            written = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
            raise refusal(f"{name!r} of {function.__name__} is {written.replace('torch.', '')}", value, error=error)


def holds(annotation: Any, value: Any) -> bool:
    """Return whether ``value`` is of an annotated type.

    Checked are numbers, text, truth values, choices and tuples; the result is True for other types.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in (int, float):
        return isinstance(value, Integral if annotation is int else Real) and not isinstance(value, bool)
    if annotation in (str, bool, NoneType):
        return isinstance(value, annotation)
    if origin is Literal:
        # In Python `True == 1`.
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if origin in (Union, UnionType):
        return any(holds(kind, value) for kind in arguments)
    if origin is tuple and arguments[1:] == (...,):
        return isinstance(value, (tuple, list)) and all(
            holds(arguments[0], element) for element in cast("tuple[Any, ...]", value)
        )
    return True


# Containers.


def nesting(value: Any, error: type[FxError] = GraphError) -> FxError:
    """Return the error for a container that nests deeper than ``DEEPEST`` levels."""
    cyclic = contains_itself(value)
    return error(
        "an argument contains itself" if cyclic else f"an argument nests more than {DEEPEST} levels deep",
        where=here(),
        value=f"{_named(value)} in it",
        why=None if cyclic else "code is generated for it, and Python compiles no more than 200 nested brackets",
        remedy="give a container that ends" if cyclic else "flatten it, or make it in a function marked fx.wrap",
    )


def expect_shallow(value: Any, error: type[FxError] = GraphError) -> None:
    """Refuse a container that nests deeper than ``DEEPEST`` levels."""
    if _nests_too_deep(value):
        raise nesting(value, error)


def explained(failure: RecursionError, value: Any, error: type[FxError]) -> Exception:
    """Return the error to raise after walking ``value`` failed: the failure itself unless ``value`` nests too deep."""
    return nesting(value, error) if _nests_too_deep(value) else failure


def _nests_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST + 1):
        level = _below(level)
        if not level:
            return False
    return True


def contains_itself(value: Any) -> bool:
    """Return whether a container is inside itself, or holds one that is: it has more levels than containers."""
    level, met, depth = [value], set[int](), 0
    while level and depth <= len(met):
        depth += 1
        met.update(map(id, level))
        level = _below(level)
    return bool(level)


def _below(level: list[Any]) -> list[Any]:
    """Return the containers inside those of a level, each once."""
    containers: dict[int, Any] = {}
    for container in level:
        if (kind := held_kind(container)) is not None:
            containers.update((id(part), part) for part in kind.parts(container) if held_kind(part) is not None)
    return list(containers.values())
