"""Interpreters of Python that there are on this machine, one for each version that the project is for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_ASK = """
import json, sys, sysconfig
free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
print(json.dumps([sys.implementation.name, sys.version_info[3], free_threaded, sys.version_info[:3]]))
"""
_NEWEST = 29
"""The last minor version that is looked for."""


def oldest() -> int:
    """Return the minor version of Python that ``requires-python`` begins with."""
    (minor,) = re.findall(r'^requires-python = ">=3\.(\d+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return int(minor)


def found() -> dict[str, Path]:
    """Return the interpreters that start by ``"3.13"`` and the like, ``"3.13t"`` for a build without a global lock.

    These are the one that runs, those on the path, and those of pyenv, of each version the newest.
    """
    of_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [Path(sys.executable)]
    for minor in range(oldest(), _NEWEST + 1):
        for name in (f"python3.{minor}", f"python3.{minor}t"):
            on_path = shutil.which(name)
            places += [*([Path(on_path)] if on_path else []), *sorted(of_pyenv.glob(f"*/bin/{name}"))]
    newest: dict[tuple[int, int, bool], tuple[int, Path]] = {}
    for place in places:
        version = _version(place)
        if version is not None and version >= (3, oldest()):
            major, minor, micro, free_threaded = version
            earlier = newest.get((major, minor, free_threaded))
            if earlier is None or earlier[0] < micro:
                newest[major, minor, free_threaded] = micro, place
    return {_name(*version): place for version, (_, place) in sorted(newest.items())}


def running() -> str:
    """Return the name of the running interpreter, as in ``found``."""
    major, minor, _, free_threaded = _version(Path(sys.executable)) or (*sys.version_info[:3], False)
    return _name(major, minor, free_threaded)


def _name(major: int, minor: int, free_threaded: bool) -> str:
    return f"{major}.{minor}{'t' if free_threaded else ''}"


def _version(python: Path) -> tuple[int, int, int, bool] | None:
    """The version of a released CPython, and whether it is free-threaded.

    None for anything else, and for what does not start, as shims of pyenv may.
    """
    try:
        answer = subprocess.run([python, "-c", _ASK], check=True, capture_output=True, text=True, timeout=60).stdout
        name, level, free_threaded, (major, minor, micro) = json.loads(answer)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return (major, minor, micro, free_threaded) if (name, level) == ("cpython", "final") else None
