"""Checks of the arguments of public functions: each costs an ``isinstance``, and raises a form of ``fx.errors``."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Iterable
from typing import Any, cast

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


def refusal(
    what: str,
    value: object,
    *,
    error: type[FxError] = GraphError,
    named: str | None = None,
    why: str | None = None,
    remedy: str | None = None,
) -> FxError:
    """Return the error that ``what`` was expected instead of ``value``, which is ``named`` so, with the user's line."""
    return error(f"{what}, not {named or _named(value)}", where=here(), value=shown(value), why=why, remedy=remedy)


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
