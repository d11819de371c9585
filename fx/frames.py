"""Frames of the user's code: the running line is in the innermost frame that is neither this package's nor torch's."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType, FrameType, TracebackType

import torch

from fx.provenance import GENERATED_FILES, SourceLocation

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LIBRARIES = (_TORCH, os.path.abspath(contextlib.__file__))
"""Files besides numpy's whose lines are not the user's: torch's, and those of ``with`` statements over generators."""
_NUMPY = os.path.join("-packages", "numpy") + os.sep  # site-packages, and dist-packages of Debian
_PYTHON = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_USER, _LIBRARY, _SELF = range(3)

_kinds: dict[str, int] = {}
_boundaries: set[CodeType] = set()


def _kind(file: str) -> int:
    kind = _kinds.get(file)
    if kind is None:
        of_library = file.startswith(_LIBRARIES) or _NUMPY in file
        kind = _SELF if file.startswith(_OURS) else _LIBRARY if of_library else _USER
        _kinds[file] = kind
    return kind


def clear_interrupted(interrupted: TracebackType | None, belongs: Callable[[CodeType], bool]) -> None:
    """Clear the frames of a traceback that ``belongs`` picks by their code.

    The exception of a signal handler (Ctrl-C, a time limit) can come inside contextlib's ``__enter__`` when the
    generator has already yielded, or inside ``__exit__`` before it continues::

        with patched():  # __enter__ has let patched() replace Module.__call__; a signal comes before __enter__ returns
            ...          # not reached, and `with` never calls __exit__

    Then the generator is suspended, and the frame of ``__enter__`` holds it as long as the traceback exists. When the
    traceback is freed, perhaps in a later test, the generator is closed. Its ``finally`` then restores a value that is
    outdated. Clearing the frame closes the generator now.
    """
    while interrupted is not None:
        if belongs(interrupted.tb_frame.f_code):
            with suppress(RuntimeError):  # it is still running
                interrupted.tb_frame.clear()
        interrupted = interrupted.tb_next


def boundary(function: object) -> None:
    """Mark the function below which frames do not belong to the traced program."""
    _boundaries.add(function.__code__)  # type: ignore[attr-defined]


def user_location(frame: FrameType | None, known: dict[tuple[int, int], SourceLocation]) -> SourceLocation | None:
    """Return the user's line that is running in ``frame`` or outside it; torch's line if there is none of the user's.

    ``known`` has the locations met before, by code and instruction, so that nodes of one line share one.
    """
    fallback: FrameType | None = None
    kind_of = _kinds.get
    while frame is not None:
        code = frame.f_code
        kind = kind_of(code.co_filename)
        if kind is None:
            kind = _kind(code.co_filename)
        if kind == _USER:
            break
        if kind == _SELF:
            if code.co_name == "trace" and code in _boundaries:
                frame = None
                break
        elif fallback is None:
            fallback = frame
        frame = frame.f_back
    if frame is None and (frame := fallback) is None:
        return None
    code = frame.f_code
    key = (id(code), frame.f_lasti)
    location = known.get(key)
    if location is None:
        origin_of = GENERATED_FILES.get(code.co_filename)
        origin = None if origin_of is None else origin_of(frame.f_lineno)
        if origin is not None:
            return origin  # a program that is traced again: the line its code was made from says more
        location = known[key] = SourceLocation(code, frame.f_lasti)
    return location


def is_users(frame: FrameType) -> bool:
    """Return whether a frame belongs neither to this package nor to torch."""
    return _kind(frame.f_code.co_filename) == _USER


def is_of_torch(frame: FrameType) -> bool:
    """Return whether a frame belongs to torch."""
    return frame.f_code.co_filename.startswith(_TORCH)


def is_ours(frame: FrameType) -> bool:
    """Return whether a frame belongs to this package."""
    return _kind(frame.f_code.co_filename) == _SELF


def users_frame(frame: FrameType) -> FrameType:
    """Return the nearest frame of the user's code."""
    current: FrameType | None = frame
    while current is not None and not is_users(current):
        current = current.f_back
    return frame if current is None else current


def is_users_file(file: str) -> bool:
    """Return whether a file belongs neither to this package nor to torch."""
    return _kind(file) == _USER


def is_our_file(file: str) -> bool:
    """Return whether a file belongs to this package."""
    return _kind(file) == _SELF


def package_of_file(file: str) -> str | None:
    """Return the name of the installed package that a file belongs to; None if it is not in an environment."""
    _, separator, path = file.rpartition(f"-packages{os.sep}")
    return path.partition(os.sep)[0].removesuffix(".py") if separator else None


def is_pythons_file(file: str) -> bool:
    """Return whether a file is one of Python's standard library."""
    return file.startswith(_PYTHON) and "site-packages" not in file


def callers(frame: FrameType) -> Iterator[FrameType]:
    """Yield the frames of the traced program outside ``frame``, innermost first."""
    outer = frame.f_back
    while outer is not None:
        code = outer.f_code
        if _kind(code.co_filename) != _SELF:
            yield outer
        elif code.co_name == "trace" and code in _boundaries:  # the name first: a look-up of code computes its hash
            return
        outer = outer.f_back


def user_stack(frame: FrameType | None) -> str:
    """Return the stack of the traced program as traceback text, outermost first."""
    entries: list[FrameType] = []
    while frame is not None and frame.f_code not in _boundaries:
        if _kind(frame.f_code.co_filename) != _SELF:
            entries.append(frame)
        frame = frame.f_back
    summary = traceback.StackSummary.extract((entry, entry.f_lineno) for entry in reversed(entries))
    return "".join(summary.format())
