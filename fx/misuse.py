"""Errors that Python itself raises when a traced value is used as a real one, told in this library's form."""

from __future__ import annotations

import re
from types import FrameType, TracebackType

from fx.errors import TracedValueError, TraceError
from fx.frames import user_location
from fx.printing import describe
from fx.proxy import Proxy

_WHAT = (
    ("cannot be interpreted as an integer", "cannot use a traced value as an integer"),
    ("indices must be integers", "cannot use a traced value as an index of a real list or tuple"),
    ("int() argument must be", "cannot convert a traced value to int"),
    ("float() argument must be", "cannot convert a traced value to float"),
    ("must be a mapping", "cannot pass a traced value as **kwargs"),
    ("must be real number", "cannot convert a traced value to a number"),
    ("__index__", "cannot use a traced value as an index or a bound of a slice of a real list"),
    ("__delitem__", "cannot delete an element of a traced value"),
    ("object has no attribute", "cannot set an attribute of a traced value"),
    ("unhashable", "cannot hash a traced value"),
)
_IDENTIFIER = re.compile(r"\w+")
_NAMES = ("Proxy", "'Attribute'", "ParameterProxy", "__delitem__")


def explain_misuse(error: Exception) -> None:
    """Raise a ``TraceError`` for ``error`` if a traced value in the wrong place caused it."""
    if isinstance(error, TraceError):
        return None
    what = _what(error)
    if what is None:
        return None
    frame = _innermost(error.__traceback__)
    raise TracedValueError(
        what,
        where=user_location(frame, {}),
        value=_traced_values(frame),
        why=f"its value is known only when the module runs ({type(error).__name__}: {error})",
        remedy="compute it from a module attribute, fix the argument with concrete_args, or put the line in a function "
        "marked fx.wrap",
    ) from error


def _what(error: Exception) -> str | None:
    text = str(error)
    if not isinstance(error, (TypeError, AttributeError, ValueError, IndexError)) or not any(n in text for n in _NAMES):
        return None
    return next((what for fragment, what in _WHAT if fragment in text), "cannot use a traced value here")


def _innermost(traceback: TracebackType | None) -> FrameType | None:
    frame: FrameType | None = None
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
    return frame


def _traced_values(frame: FrameType | None) -> str | None:
    """The traced values that the failing line names."""
    location = user_location(frame, {})
    if frame is None or location is None or location.line != frame.f_lineno:
        return None
    named = set(_IDENTIFIER.findall(location.text))
    values = [value for name, value in frame.f_locals.items() if name in named and type(value) is Proxy]
    return "; ".join(describe(value.node) for value in values) or None
