"""Fixtures of tests of the judge."""

import pytest

from pytest_fx.candidates import drawn_inputs


@pytest.fixture
def fewer_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try inputs of fewer elements, and fewer calls: a verdict takes half the time."""
    monkeypatch.setattr(drawn_inputs, "LARGE", 100_000)
    monkeypatch.setattr(drawn_inputs, "BATCHES", 2)
