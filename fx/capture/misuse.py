"""Errors that Python itself raises when a traced value is used as a concrete one, reported in this library's form."""

from __future__ import annotations

import os
import re
from traceback import walk_tb
from types import CodeType, FrameType, TracebackType

import torch

from fx.capture.guided import GuidedProxy
from fx.checks.questions import TO_COMPUTE
from fx.errors import FxError, TracedValueError, TraceError, add_note
from fx.frames import is_users, is_users_file, package_of_file, user_location
from fx.naming.printing import describe
from fx.proxy import Proxy

_TO_SLICE = "register a tensor as a buffer of its module, or use torch.narrow: it takes traced sizes"
_TO_RESIZE = "give sizes as a tuple: torch.ones((rows, columns)), tensor.expand((rows, -1))"
_MISUSES = (
    ("cannot be interpreted as an integer", "use a traced value as an integer", TO_COMPUTE),
    ("slice indices must be", "use a traced value as a bound of a slice of a real list or tensor", _TO_SLICE),
    ("indices must be integers", "use a traced value as an index of a real list or tuple", TO_COMPUTE),
    ("int() argument must be", "convert a traced value to int", TO_COMPUTE),
    ("float() argument must be", "convert a traced value to float", TO_COMPUTE),
    ("must be a mapping", "pass a traced value as **kwargs", TO_COMPUTE),
    ("must be real number", "convert a traced value to a number", TO_COMPUTE),
    ("takes 1 positional argument but", "use traced values as sizes, one by one, for a function of real tensors",
     _TO_RESIZE),
    ("__delitem__", "delete an element of a traced value", TO_COMPUTE),
    ("object has no attribute", "set an attribute of a traced value", TO_COMPUTE),
    ("unhashable", "hash a traced value", TO_COMPUTE),
    ("", "use a traced value here", TO_COMPUTE),
)  # fmt: skip
"""Fragments of Python's messages, each with the action that is not possible and the remedy; the first match applies."""
_OF_FUNCTIONS = (
    "transform a function of traced values in this way",
    "put the call into a function marked fx.wrap, and pass it all that it uses, parameters and buffers too",
)
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_TRANSFORMS = tuple(os.path.join(_TORCH, name) + os.sep for name in ("_functorch", "_higher_order_ops"))
_TRACED = (Proxy, GuidedProxy)
_IDENTIFIER = re.compile(r"\w+")
_NAMES = ("Proxy", "'Attribute'", "fx.proxy.Attribute", "GuidedAttribute", "__delitem__")
_NAMED = re.compile(r"fx\.(proxy|capture)\.\w+'|\b(Guided)?Proxy\b")
_OF_TENSORS = re.compile(r"^slice indices must be|^(?P<function>\w+)\(\) takes 1 positional argument but")
"""Python's messages about a sliced or resized tensor, which do not name the traced value."""


def explain_misuse(error: Exception, program: CodeType | None = None) -> None:
    """Raise a ``TraceError`` for ``error`` if a traced value in the wrong place caused it.

    If code of a library raised it, the error names the line of ``program``'s package that calls the library.
    """
    refused = error if isinstance(error, TraceError) else misuse(error, error.__traceback__)
    if refused is None:
        return
    own = None if program is None else package_of_file(program.co_filename)
    frames = [frame for frame, _ in walk_tb(error.__traceback__) if is_users(frame)]
    packages = [package_of_file(frame.f_code.co_filename) for frame in frames]
    entered = max((place for place, package in enumerate(packages) if package in (None, own)), default=len(frames))
    if entered + 1 < len(frames):
        where, remedy = user_location(frames[entered], {}), _way_around(frames[entered], frames[entered + 1])
        what, *lines = [line for line in str(refused).splitlines() if not line.startswith(("  where", "  try"))]
        refused.args = ("\n".join([what, f"  where  {where}", *lines, f"  try    {remedy}"]),)
    if refused is not error:
        raise refused from error


def _way_around(caller: FrameType, called: FrameType) -> str:
    """Return the remedy that keeps the called function of a library as one call of ``caller``."""
    code, file = called.f_code, os.path.basename(caller.f_code.co_filename)
    owner = called.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    if isinstance(owner, torch.nn.Module):
        return f"make {type(owner).__name__} a leaf (is_leaf_module of a Tracer)"
    names = (name for name, value in caller.f_globals.items() if getattr(value, "__code__", None) is code)
    name = next(names, None)
    import_text = "" if name is not None else f"from {called.f_globals.get('__name__')} import {code.co_name}, "
    name = name or code.co_name
    return f'keep it as one call: {import_text}call it as {name}, and put fx.wrap("{name}") at the top level of {file}'


def misuse(error: Exception, traceback: TracebackType | None) -> TracedValueError | None:
    """Return the error to report instead if a traced value in the wrong place caused ``error``."""
    frame = _innermost(traceback)
    if not _is_misuse(error, frame):
        return None
    what, remedy = next((what, remedy) for fragment, what, remedy in _MISUSES if fragment in str(error))
    if _is_transform(traceback):
        what, remedy = _OF_FUNCTIONS
    return TracedValueError(
        f"cannot {what}",
        where=user_location(frame, {}),
        value=_traced_values(frame),
        why=f"its value is known only when the module runs ({type(error).__name__}: {error})",
        remedy=remedy,
    )


def _is_transform(traceback: TracebackType | None) -> bool:
    """Return whether a transform of functions, or a caller of them, raised the error: not the function passed to it."""
    in_transform = False
    for frame, _ in walk_tb(traceback):
        file = frame.f_code.co_filename
        in_transform = file.startswith(_TRANSFORMS) or (in_transform and not is_users_file(file))
    return in_transform


def note_other_run(error: Exception, other: Exception, how: str) -> None:
    """Add to the error of one run of a program the error of another run, unless both are the same."""
    if str(other) != str(error):
        text = str(other) if isinstance(other, FxError) else f"{type(other).__name__}: {other}"
        add_note(error, f"{how}, it fails too: {text}")


def _says_tensor(error: BaseException | None) -> bool:
    match = _OF_TENSORS.match(str(error)) if isinstance(error, TypeError) else None
    if match is None:
        return False
    name = match["function"]
    return name is None or hasattr(torch.Tensor, name) or hasattr(torch, name)


def _is_misuse(error: Exception, frame: FrameType | None) -> bool:
    """Return whether an error is about a traced value: its message or the line that raised it names one."""
    text = str(error)
    if isinstance(error, RuntimeError):
        return _NAMED.search(text) is not None or "unpackString" in text
    if not isinstance(error, (TypeError, AttributeError, ValueError, IndexError)):
        return False
    return any(name in text for name in _NAMES) or (_says_tensor(error) and _knows_traced(frame))


def _innermost(traceback: TracebackType | None) -> FrameType | None:
    """Return the frame that raised the error; where a mode of torch made the call (``torch.device``), its caller."""
    frames = [frame for frame, _ in walk_tb(traceback) if frame.f_code.co_name != "__torch_function__"]
    return frames[-1] if frames else None


def _knows_traced(frame: FrameType | None) -> bool:
    """Return whether the failing line names traced values; if its text is unknown, whether its function has any."""
    location = user_location(frame, {})
    if frame is not None and location is not None and location.text and location.line == frame.f_lineno:
        return _traced_values(frame) is not None
    # in generated code, the location is the line of the user's code that the node was made from
    return frame is not None and any(type(value) in _TRACED for value in frame.f_locals.values())


def _traced_values(frame: FrameType | None) -> str | None:
    """Return the traced values that the failing line names."""
    location = user_location(frame, {})
    if frame is None or location is None or location.line != frame.f_lineno:
        return None
    named = set(_IDENTIFIER.findall(location.text))
    values = [value for name, value in frame.f_locals.items() if name in named and type(value) in _TRACED]
    return "; ".join(describe(value.node) for value in values) or None
