"""Programs that fool whoever compares or times them carelessly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fooling_programs  # pyright: ignore[reportMissingImports]
import torch
from torch import nn

from pytest_fx.errors import TimedOutputError
from pytest_fx.timing.contents import Contents
from pytest_fx.timing.outputs import OutputCheck
from pytest_fx.timing.paired import time_pairs

from . import case


def _enter(says: str, make: Callable[[nn.Module], nn.Module], right: str) -> None:
    @case("calls", f"a program that {says}", right)
    def _() -> str:
        laws = fooling_programs.laws_broken_by(make)
        return f"red: {laws}" if laws else "green"


for _says, (_make, _laws) in fooling_programs.WRONG.items():
    _enter(_says, _make, f"red: {_laws}")
for _says, _make in fooling_programs.RIGHT.items():
    _enter(_says, _make, "green")


def _timed(key: Callable[[torch.Tensor], Any]) -> str:
    subject = fooling_programs.subject()
    program = fooling_programs.Remembers(subject.fresh(), key)
    try:
        time_pairs(
            subject.fresh(),
            program,
            rounds=12,
            contents=Contents(subject.arguments),
            outputs=OutputCheck("program", "mlp"),
        )
    except TimedOutputError:
        return "red"
    return "green"


@case("times", "a program that looks answers up by address", "red")
def _() -> str:
    return _timed(torch.Tensor.data_ptr)


@case("times", "a program that looks answers up by identity", "red")
def _() -> str:
    return _timed(id)


@case("times", "a program that looks answers up by contents, which it never sees again", "green")
def _() -> str:
    return _timed(lambda x: x.numpy().tobytes())
