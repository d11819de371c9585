"""The speed of drawing random programs for property tests, alone and with capturing and running them.

The ratios are the cost of a whole trial in units of drawing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

import fx
from pytest_fx.generation import Program, programs

from .paired import Contender, Table, parse

PROGRAMS = 100


def trials(work: Callable[[Program], Any]) -> Callable[[Any], None]:
    """Return a function that does ``work`` on random programs, the same ones in each call."""

    @seed(0)
    @settings(
        max_examples=PROGRAMS,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        # On a busy machine this check would stop the benchmark.
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(programs())
    def one_round(program: Program) -> None:
        work(program)

    return lambda _: one_round()


def nothing(program: Program) -> None:
    """Only draw the program."""


def capture(program: Program) -> Any:
    """Capture the program once more."""
    return fx.symbolic_trace(program.build(), program.concrete_args)


def capture_and_run(program: Program) -> Any:
    """Capture the program, and run both."""
    inputs, copies = program.inputs.copies(), program.inputs.copies()
    program.build()(*inputs.args, **inputs.kwargs)
    return capture(program)(*copies.args, **copies.kwargs)


def main() -> None:
    """Print the table: the time of one program in each column."""
    options = parse(__doc__, rounds=7)
    works = {"drawn": nothing, "captured": capture, "run": capture_and_run}
    contenders = {name: Contender(trials(work)) for name, work in works.items()}
    row = f"one random program of {PROGRAMS}"
    Table(*works).measure(row, contenders, rounds=options.rounds, operations=PROGRAMS, goal="drawn in 8 ms")


if __name__ == "__main__":
    main()
