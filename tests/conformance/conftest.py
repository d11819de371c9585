"""Fixtures shared by the conformance tests."""

from __future__ import annotations

from types import ModuleType

import pytest

from .corpus import PROGRAMS
from .libraries import LIBRARIES, LIBRARY_NAMES
from .programs import Program


@pytest.fixture(params=LIBRARIES, ids=LIBRARY_NAMES)
def library(request: pytest.FixtureRequest) -> ModuleType:
    """Each library in turn: a test that takes it states a fact of torch.fx and demands it of fx."""
    return request.param


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.name)
def program(request: pytest.FixtureRequest) -> Program:
    """Each program of the corpus in turn."""
    return request.param
