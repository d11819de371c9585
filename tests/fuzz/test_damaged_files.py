"""For any bytes of a file, loading gives a usable program or a ``LoadError``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from damage import damaged_files
from hypothesis import HealthCheck, given, settings
from saved_programs import saved_programs

import fx
from fx import serialization
from fx.errors import LoadError


def try_to_load(path: Path, data: bytes) -> fx.GraphModule | None:
    """Load ``data`` from a file; return None if it is refused. A program is looked at, and compiled but not run."""
    path.write_bytes(data)
    try:
        program = serialization.load(path)
    except LoadError as error:
        expected = (fx.FxError, serialization.Refused)
        if not isinstance(error.__cause__, expected):  # the last resort caught a missing check
            raise AssertionError(f"unchecked: {error}") from error
        return None
    assert str(program.graph)
    program.graph.lint()
    try:
        assert program.forward
    except fx.CodegenError:
        return None
    return program


@settings(
    max_examples=max(200, settings().max_examples),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=damaged_files)
def test_a_damaged_file_is_refused_or_is_a_program(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged"
    program = try_to_load(path, data)
    if program is not None:
        try:
            serialization.save(program, path)
        except fx.FxError:  # such as a module with arguments that are not in its attributes
            return
        again = serialization.load(path)
        assert str(again.graph) == str(program.graph)


def test_the_files_themselves_load(tmp_path: Path) -> None:
    for data in saved_programs():
        assert try_to_load(tmp_path / "program", data) is not None


def test_the_atheris_target_finds_nothing_at_first_sight() -> None:
    pytest.importorskip("atheris", reason="atheris is not installed: pip install atheris")
    target = Path(__file__).with_name("fuzz_load.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, str(target), "-runs=300"], capture_output=True, text=True, env=environment, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert "Done 300 runs" in run.stderr
