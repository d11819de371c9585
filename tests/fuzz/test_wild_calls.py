"""No operator that a file may name ends the process, or reads other memory, whatever its arguments are."""

from __future__ import annotations

import os
import shutil
import sys

import pytest
from wild_calls import Run, run_wild_calls

TRIES = int(os.environ.get("FX_WILD_TRIES", "2"))
"""Calls of each name. More find more: a thousand take about two hours."""


@pytest.fixture(scope="module")
def found_by_run() -> list[dict[str, str]]:
    """The findings on all that a file may name, and of an operator that no file may name."""
    return run_wild_calls(
        Run(TRIES, seed=int(os.environ.get("FX_WILD_SEED", "0"))), Run(80, seed=2, only="reflection_pad2d_backward")
    )


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="memory is guarded, and limited, as Linux does it")
@pytest.mark.timeout(120 + 10 * TRIES)
def test_no_allowed_operator_trusts_its_arguments_with_memory(found_by_run: list[dict[str, str]]) -> None:
    by_call = found_by_run[0]
    assert not by_call, "\n".join(f"{name} {what}" for name, what in by_call.items())


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="the guard is C, for Linux")
@pytest.mark.timeout(120 + 10 * TRIES)
def test_an_operator_that_trusts_its_arguments_is_found(found_by_run: list[dict[str, str]]) -> None:
    by_call = found_by_run[1]
    assert any("ends the process" in what for what in by_call.values()), by_call
