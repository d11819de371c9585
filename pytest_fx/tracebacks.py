"""The frames that a failure shows: those of the user's code, not those of the harness between them."""

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
"""What calls tests: pytest itself leaves it out where something else is left."""
_LIBRARY = sysconfig.get_path("stdlib") + os.sep
"""Python's own library, and below it what is installed."""


def show_the_users(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Leave out the frames of the harness, in the error and in its causes.

    They stay where nothing else explains the error: one that is not the harness's own, though raised inside of it.
    """
    if isinstance(excinfo.value, (pytest.skip.Exception, pytest.fail.Exception)) or not _is_explained(excinfo.value):
        return
    excinfo.traceback = excinfo.traceback.filter(lambda entry: not str(entry.path).startswith((*_OURS, *_RUNNER)))
    for cause in list(_chain(excinfo.value))[1:]:
        if _is_explained(cause):
            cause.__traceback__ = _without_ours(cause.__traceback__)


def forget_ours(error: BaseException) -> None:
    """Let go of what frames of ours hold, such as models: pytest keeps the last error with its traceback."""
    for cause in _chain(error):
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            if frame.f_code.co_filename.startswith(_OURS):
                with contextlib.suppress(RuntimeError):  # it still runs
                    frame.clear()


def users_line(error: BaseException, or_torchs: bool = True) -> str | None:
    """Return where the user's code was when ``error`` was raised, or else a library's, or torch's if that will do."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)]
    others = [frame for frame in frames if not frame.filename.startswith(_torchs())]
    users = [frame for frame in others if not _is_installed(frame.filename)]
    frame = (users or others or (frames if or_torchs else None) or [None])[-1]
    return None if frame is None else _format_frame(frame.filename, frame.lineno or 0, frame.name)


def line_of_import(error: BaseException) -> str | None:
    """Return the line of a module at which its import failed, the user's rather than a library's."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}:  {(error.text or '').strip()}"
    ignored = (*_OURS, "<", str(Path(importlib.util.__file__).parent) + os.sep)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ignored)]
    users = [frame for frame in frames if not _is_installed(frame.filename)]
    frame = (users or frames or [None])[-1]
    return None if frame is None else _format_frame(frame.filename, frame.lineno or 0, frame.name)


def _is_installed(file: str) -> bool:
    """Return whether a file is Python's own, or was installed beside it."""
    return f"{os.sep}site-packages{os.sep}" in file or file.startswith((_LIBRARY, "<frozen"))


def users_place(frames: Iterable[tuple[str, int, str]]) -> str | None:
    """Return the first place in the user's code: of ``(file, line, function)`` frames, the innermost first."""
    others = (*_OURS, *_RUNNER, *_torchs(), _LIBRARY, "<")
    return next((_format_frame(*frame) for frame in frames if not frame[0].startswith(others)), None)


@functools.cache
def _torchs() -> tuple[str, ...]:
    """Return where torch lies, which need not be imported."""
    spec = importlib.util.find_spec("torch")
    return tuple(place + os.sep for place in (spec and spec.submodule_search_locations) or ())


def _format_frame(file: str, line: int, function: str) -> str:
    return f"{file}:{line}, in {function}:  {linecache.getline(file, line).strip()}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _is_explained(error: BaseException) -> bool:
    """Return whether the error says itself what is wrong, or the user's code raised it."""
    errors = sys.modules.get("fx.errors")
    if errors is not None and isinstance(error, errors.FxError):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and not frames[-1].filename.startswith(_OURS)


def _without_ours(found: TracebackType | None) -> TracebackType | None:
    if found is None:
        return None
    inner = _without_ours(found.tb_next)
    if found.tb_frame.f_code.co_filename.startswith(_OURS):
        return inner
    return TracebackType(inner, found.tb_frame, found.tb_lasti, found.tb_lineno)
