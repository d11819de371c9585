"""The suite of ``pytest --fx-check NAME``: the pass on random programs (:func:`pytest_fx.check_pass`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_fx.search.check_report import CheckReport


def test_pass_keeps_the_laws(fx_checked_pass: Any, fx_check_pass: Callable[..., CheckReport]) -> None:
    """The pass keeps every law of :mod:`pytest_fx.laws` on random programs, and changes some of them."""
    fx_check_pass(fx_checked_pass)
