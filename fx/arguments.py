"""What public functions are given: checks that cost an ``isinstance``, and answers in the form of ``fx.errors``."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Iterable
from typing import Any, cast

from fx.errors import FxError, GraphError
from fx.frames import user_location
from fx.naming.printing import describe
from fx.provenance import SourceLocation

DEEPEST = 150
"""How deep containers in an argument may nest. Python itself compiles no more than 200 nested brackets."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120
_SHORT.maxlevel = 3


def expect(
    value: object,
    kinds: type | tuple[type, ...],
    what: str,
    *,
    error: type[FxError] = GraphError,
    why: str | None = None,
    remedy: str | None = None,
) -> None:
    """Refuse ``value`` unless it is of one of ``kinds``.

    Args:
        value: what was given.
        kinds: classes.
        what: who takes what: ``"Graph.erase_node takes a Node"``.
        error: class of the error raised.
        why: the reason, where it does not go without saying.
        remedy: what to give instead.

    >>> from fx.errors import PassError
    >>> expect(3, str, "get_pass takes the name of a pass", error=PassError)
    Traceback (most recent call last):
    ...
    fx.errors.PassError: get_pass takes the name of a pass, not an int
    ...
    """
    if not isinstance(value, kinds):
        raise refusal(what, value, error=error, why=why, remedy=remedy)


def expect_callable(
    value: object, what: str, *, error: type[FxError] = GraphError, remedy: str | None = None, optional: bool = False
) -> None:
    """Refuse ``value`` unless it can be called; None too, where it is ``optional``."""
    if not callable(value) and not (optional and value is None):
        raise refusal(what, value, error=error, remedy=remedy)


def expect_all(
    values: object, fits: Callable[[Any], bool], what: str, *, error: type[FxError] = GraphError
) -> tuple[Any, ...]:
    """The elements of ``values``; refused unless it can be iterated and all of them fit."""
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
    why: str | None = None,
    remedy: str | None = None,
) -> FxError:
    """The error that says ``what`` was expected, and that ``value`` was given, with the user's line that gave it."""
    where = here()
    return error(f"{what}, not {_named(value)}", where=where, value=shown(value), why=why, remedy=remedy)


def here() -> SourceLocation | None:
    """The user's line that is running."""
    return user_location(sys._getframe(1), {})


def _named(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"


def shown(value: Any) -> str:
    """A value in one short line, whatever it is."""
    if hasattr(type(value), "format_node"):
        return describe(value)
    try:
        return " ".join(_SHORT.repr(value).split())[:200]
    except Exception:  # its own method fails, or it is an integer with more digits than Python converts
        return f"<{type(value).__name__}>"


# Containers.


def nesting(value: Any, error: type[FxError] = GraphError) -> FxError:
    """The error for a container that nests deeper than ``DEEPEST`` levels."""
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
    """What to raise for a failure to walk ``value``: the failure itself unless ``value`` nests too deep."""
    return nesting(value, error) if _nests_too_deep(value) else failure


def _nests_too_deep(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(DEEPEST + 1):
        level = list({id(part): part for held in level for part in _parts(held)}.values())
        if not level:
            return False
    return True


def contains_itself(value: Any) -> bool:
    """Whether a container is inside itself, or holds one that is."""
    path: dict[int, Any] = {id(value): iter(_parts(value))}
    finished: set[int] = set()
    while path:
        key, parts = next(reversed(path.items()))
        part = next(parts, None)
        if part is None:
            finished.add(key)
            del path[key]
        elif id(part) in path:
            return True
        elif id(part) not in finished:
            path[id(part)] = iter(_parts(part))
    return False


def _parts(value: Any) -> list[Any]:
    """The containers that a container holds."""
    held: Iterable[Any] = ()
    if isinstance(value, (tuple, list)):
        held = cast("Iterable[Any]", value)
    elif isinstance(value, dict):
        held = cast("dict[Any, Any]", value).values()
    elif isinstance(value, slice):
        held = (value.start, value.stop, value.step)
    return [part for part in held if isinstance(part, (tuple, list, dict, slice))]
