"""The loader as a target of atheris: ``python tests/fuzz/fuzz_load.py [-runs=100000] [folder of inputs]``.

Bytes that atheris makes are tried as a file, and as the program's text inside a file that is otherwise in order.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

try:
    import atheris
except ImportError:
    sys.exit("atheris is not installed: pip install atheris (it has no builds for Python 3.10, Windows and macOS)")

with atheris.instrument_imports(include=["fx"]):
    from fx import serialization

from saved_programs import saved_programs, take_apart, with_text

import fx
from fx.errors import LoadError

_FOLDER = tempfile.TemporaryDirectory()
_PATH = Path(_FOLDER.name) / "program"


def _load(data: bytes) -> None:
    _PATH.write_bytes(data)
    try:
        program = serialization.load(_PATH)
    except LoadError as error:
        assert isinstance(error.__cause__, (fx.FxError, serialization.Refused)), f"unchecked: {error}"
        return
    program.graph.lint()


def try_one(data: bytes) -> None:
    """What atheris calls: nothing but a ``LoadError`` may come out of the loader."""
    _load(data)
    for program in saved_programs():
        _load(with_text(program, data.decode("latin-1")))


def main() -> None:
    """Start from the saved programs."""
    inputs = Path(_FOLDER.name) / "inputs"
    inputs.mkdir()
    for number, data in enumerate(saved_programs()):
        (inputs / f"file_{number}").write_bytes(data)
        (inputs / f"text_{number}").write_text(json.dumps(take_apart(data)[1]), encoding="latin-1")
    atheris.Setup([*sys.argv, str(inputs)], try_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
