"""Compilers by name, as transforms like any other: ``pytest --fx-check inductor`` (``docs/hunting.md``)."""

from pytest_fx.compilers.compiler import Compiler
from pytest_fx.compilers.table import COMPILERS, compiler_called

__all__ = ["COMPILERS", "Compiler", "compiler_called"]
