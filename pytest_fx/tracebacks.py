"""Tracebacks that show the frames of the user's code, without those of the harness."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import linecache
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

import _pytest
import pluggy
import pytest

_ROOT = Path(__file__).resolve().parents[1]
_OURS = (
    *(f"{_ROOT / package}{os.sep}" for package in ("fx", "pytest_fx", "model_zoo")),
    functools.__file__,
    contextlib.__file__,
)

_RUNNER = tuple(str(Path(str(module.__file__)).parent) + os.sep for module in (_pytest, pluggy))
"""Folders of the test runner, whose frames pytest itself hides if other frames remain."""
_LIBRARY = sysconfig.get_path("stdlib") + os.sep
"""Folder of Python's standard library and, below it, of installed packages."""


def show_the_users(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Remove the frames of the harness from the error and its causes.

    The frames stay if nothing else explains the error: if it is raised inside the harness, but is not one of its own.
    """
    if isinstance(excinfo.value, (pytest.skip.Exception, pytest.fail.Exception)) or not _is_explained(excinfo.value):
        return
    excinfo.traceback = excinfo.traceback.filter(lambda entry: not str(entry.path).startswith((*_OURS, *_RUNNER)))
    for cause in list(_chain(excinfo.value))[1:]:
        if _is_explained(cause):
            cause.__traceback__ = _without_ours(cause.__traceback__)


def forget_ours(error: BaseException) -> None:
    """Clear the local variables of our frames, such as models: pytest keeps the last error with its traceback."""
    for cause in _chain(error):
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            if frame.f_code.co_filename.startswith(_OURS):
                with contextlib.suppress(RuntimeError):  # the frame is still running
                    frame.clear()


def users_line(error: BaseException, or_torchs: bool = True) -> str | None:
    """Return the innermost line of the user's code in the traceback, or else of a library.

    A line of torch is the last resort, and only if ``or_torchs``; None if no line remains.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)]
    others = [frame for frame in frames if not frame.filename.startswith(_torchs())]
    users = [frame for frame in others if not _is_installed(frame.filename)]
    frame = (users or others or (frames if or_torchs else None) or [None])[-1]
    return None if frame is None else _format_frame(frame.filename, frame.lineno or 0, frame.name)


def line_of_import(error: BaseException) -> str | None:
    """Return the line at which the import of a module failed; a line of the user's code before one of a library."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}:  {(error.text or '').strip()}"
    ignored = (*_OURS, "<", str(Path(importlib.util.__file__).parent) + os.sep)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ignored)]
    users = [frame for frame in frames if not _is_installed(frame.filename)]
    frame = (users or frames or [None])[-1]
    return None if frame is None else _format_frame(frame.filename, frame.lineno or 0, frame.name)


def _is_installed(file: str) -> bool:
    """Return whether a file belongs to Python or to an installed package."""
    return f"{os.sep}site-packages{os.sep}" in file or file.startswith((_LIBRARY, "<frozen"))


def users_place(frames: Iterable[tuple[str, int, str]]) -> str | None:
    """Return the first place in the user's code among frames ``(file, line, function)``, the innermost first."""
    others = (*_OURS, *_RUNNER, *_torchs(), _LIBRARY, "<")
    return next((_format_frame(*frame) for frame in frames if not frame[0].startswith(others)), None)


@functools.cache
def _torchs() -> tuple[str, ...]:
    """Return the folders of torch, without importing it."""
    spec = importlib.util.find_spec("torch")
    return tuple(place + os.sep for place in (spec and spec.submodule_search_locations) or ())


def _format_frame(file: str, line: int, function: str) -> str:
    return f"{file}:{line}, in {function}:  {linecache.getline(file, line).strip()}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    visited: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in visited:
        visited.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _is_explained(error: BaseException) -> bool:
    """Return whether the error is one of ours, with its own explanation, or was raised outside of our code."""
    errors = sys.modules.get("fx.errors")
    if errors is not None and isinstance(error, errors.FxError):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and not frames[-1].filename.startswith(_OURS)


def _without_ours(entry: TracebackType | None) -> TracebackType | None:
    if entry is None:
        return None
    inner = _without_ours(entry.tb_next)
    if entry.tb_frame.f_code.co_filename.startswith(_OURS):
        return inner
    return TracebackType(inner, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
