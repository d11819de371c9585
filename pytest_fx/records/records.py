"""Measured rows on disk: lines of JSON that are only ever appended, and files replaced in one step."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import torch

from pytest_fx.records.reading import parsed

if sys.platform != "win32":
    import fcntl

_PACKAGES = ("pytest-fx", "pytest", "pytest-benchmark")
"""Packages whose versions a record names, beside that of torch."""
_SUFFIX = ".pytest-fx"
"""The suffix of the names of temporary files."""
_ABANDONED = 3600.0
"""Seconds after which the writer of a temporary file counts as killed."""


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Append ``record`` to the JSON lines in ``path``, one process at a time.

    A line that an interrupted run left unfinished is closed first. The line is on disk when this returns.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> append_record(Path(folder.name, "rows.jsonl"), {"speedup": 1.5})
    >>> read_records(Path(folder.name, "rows.jsonl"))
    [{'speedup': 1.5}]
    >>> folder.cleanup()
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(record, allow_nan=True, default=str) + "\n"
    with path.open("a+b") as file:
        _wait_for_others(file)
        if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END) and file.read(1)) != b"\n":
            line = "\n" + line
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def _wait_for_others(file: IO[bytes]) -> None:
    """Lock ``file`` until it is closed, if the system can."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX)


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records in ``path``, without a line that a run did not finish; none if there is no such file."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [record for line in lines if (record := parsed(line)) is not None]


def write_atomically(path: Path, text: str) -> None:
    """Replace the contents of ``path`` by ``text`` in one step: a reader or an interruption sees the old or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}."
    for leftover in path.parent.glob(f"{glob.escape(prefix)}*{_SUFFIX}"):
        with contextlib.suppress(OSError):  # another run removes it, or it is another user's
            if time.time() - leftover.stat().st_mtime > _ABANDONED:
                leftover.unlink()
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=_SUFFIX)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@cache
def describe_machine() -> dict[str, Any]:
    """Return the conditions of a measurement beside the model: host, processor, cores, device, versions and commit."""
    return {
        "host": platform.node(),
        "machine": _processor(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "system": platform.system(),
        "versions": {
            "torch": str(torch.__version__),  # with its build, which the package's version may lack
            **{name: text for name in _PACKAGES if (text := _version(name)) is not None},
        },
        "commit": _commit(),
    }


def _processor() -> str:
    """Return the processor's name, as the system reports it."""
    try:
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in described.splitlines() if line.startswith("model name")]
    return named[0] if named else platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of pytest's working directory, marked if files differ from it; None outside of git.

    Results that earlier measurements have written do not count: they are no code.
    """
    commit = _git("describe", "--always", "--exclude=*")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(exclude,top)results")
    return f"{commit}-dirty" if commit and changed else commit or None


def _git(*arguments: str) -> str:
    """Return the output of git; empty outside of a repository."""
    try:
        answer = subprocess.run(["git", *arguments], check=False, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()
