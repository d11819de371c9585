"""Passes on ATen by an author who knew neither the plugin nor its tests, each on a model on which it acts."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from selection import thorough_except

from pytest_fx import LawViolation, check_program

FOLDER = Path(__file__).parent / "aten_round"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
QUICK = (
    *("argmax_mask", "cse_pure_ops", "decompose_batch_norm", "index_to_index_select"),
    *("fold_conv_bn", "fuse_clamp_chain"),
)
"""Wrong passes of different kinds, and right ones."""


@pytest.mark.parametrize("name", thorough_except(QUICK, NAMES))
def test_a_pass_is_judged_as_its_author_says(name, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    module = importlib.import_module(name)
    sys.modules.pop(name)
    try:
        check_program(getattr(module, name), lambda: module.witness()[0], lambda: (tuple(module.witness()[1]), {}))
    except LawViolation:
        assert hasattr(module, "WRONG")
    else:
        assert hasattr(module, "RIGHT")
