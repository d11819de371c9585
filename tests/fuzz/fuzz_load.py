"""The loader as a target of atheris: ``python tests/fuzz/fuzz_load.py [-runs=100000] [folder of inputs]``.

Bytes that atheris makes are tried as a file, and as the program's text inside files that are otherwise in order.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Start from the saved programs, and run until something other than a ``LoadError`` comes out of the loader."""
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: pip install atheris")
    with atheris.instrument_imports(include=["fx"]):
        import fx
        from fx import serialization
    from saved_programs import saved_programs, take_apart, with_text

    def load(data: bytes) -> None:
        path.write_bytes(data)
        try:
            program = serialization.load(path)
        except serialization.LoadError as error:
            if not isinstance(error.__cause__, (fx.FxError, serialization.Refused)):
                raise RuntimeError("the last resort caught what should have been checked") from error
        else:
            program.graph.lint()

    def load_as_file_and_as_text(data: bytes) -> None:
        load(data)
        for program in saved_programs():
            load(with_text(program, data.decode("latin-1")))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program"
        inputs = Path(folder) / "inputs"
        inputs.mkdir()
        for number, data in enumerate(saved_programs()):
            (inputs / f"file_{number}").write_bytes(data)
            (inputs / f"text_{number}").write_text(json.dumps(take_apart(data)[1]), encoding="latin-1")
        atheris.Setup([*sys.argv, str(inputs)], load_as_file_and_as_text)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
