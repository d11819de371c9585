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
_ASK = "import json, sys; print(json.dumps([sys.implementation.name, *sys.version_info[:3], sys.version_info[3]]))"
_NEWEST = 29
"""The last minor version that is looked for."""


def oldest() -> int:
    """Return the minor version of Python that ``requires-python`` begins with."""
    (minor,) = re.findall(r'^requires-python = ">=3\.(\d+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return int(minor)


def found() -> dict[tuple[int, int], Path]:
    """Return the interpreters that start: the one that runs, those on the path, and those of pyenv."""
    of_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [Path(sys.executable)]
    for minor in range(oldest(), _NEWEST + 1):
        on_path = shutil.which(f"python3.{minor}")
        places += [*([Path(on_path)] if on_path else []), *sorted(of_pyenv.glob(f"*/bin/python3.{minor}"))]
    newest: dict[tuple[int, int], tuple[tuple[int, ...], Path]] = {}
    for place in places:
        version = _version(place)
        if version is not None and (version[:2] not in newest or newest[version[0], version[1]][0] < version):
            newest[version[0], version[1]] = version, place
    return {version: place for version, (_, place) in sorted(newest.items()) if version >= (3, oldest())}


def _version(python: Path) -> tuple[int, int, int] | None:
    """The version of a released CPython; None for anything else, and for what does not start, as shims of pyenv may."""
    try:
        answer = subprocess.run([python, "-c", _ASK], check=True, capture_output=True, text=True, timeout=60).stdout
        name, major, minor, micro, level = json.loads(answer)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return (major, minor, micro) if (name, level) == ("cpython", "final") else None
