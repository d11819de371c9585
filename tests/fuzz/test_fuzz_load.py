"""The target for atheris runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_atheris_target_finds_nothing_at_first_sight() -> None:
    pytest.importorskip("atheris", reason="atheris is not installed: pip install atheris")
    target = Path(__file__).with_name("fuzz_load.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, str(target), "-runs=300"], capture_output=True, text=True, env=environment, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert "Done 300 runs" in run.stderr
