"""Lowering to OpenVINO keeps the laws of passes on random programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fx.lowering import Lower, OpenVINO
from pytest_fx.properties.pass_check import check_pass


@pytest.mark.skipif(OpenVINO().why_unavailable() is not None, reason=f"{OpenVINO().why_unavailable()}")
def test_random_programs_compute_the_same_in_engines(tmp_path: Path) -> None:
    lower = Lower("openvino", min_size=1)
    report = check_pass(
        lower, max_examples=15, min_changed=0.2, seed=1, without=["non-finite inputs"], seconds=60, folder=tmp_path
    )
    assert report.name == "lower"
