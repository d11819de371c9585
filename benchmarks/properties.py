"""The speed of checking a pass on random programs: drawing, capturing, the pass, and all laws except the slow ones.

Every round uses the same programs, in evaluation and training mode. For each pass, the first row omits the laws that
are checked on one program in ten; the second row includes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase

from pytest_fx import check_pass
from pytest_fx.laws import TABLE

from .paired import Contender, Table, parse

PASSES = ("remove-dead-code", "fuse-conv-bn", "remove-identities")
PROGRAMS = 100
SLOW = tuple(law.name for law in TABLE if law.kind == "sampled")


def search(name: str, without: tuple[str, ...]) -> Callable[[Any], None]:
    """Return a function that checks a pass, on the same programs in each call."""
    settings = hypothesis.settings(
        max_examples=PROGRAMS,
        phases=[Phase.generate],
        database=None,
        # On a busy machine this check would stop the benchmark.
        suppress_health_check=[HealthCheck.too_slow],
    )

    def one_round(_: Any) -> None:
        check_pass(name, settings=settings, seed=0, min_changed=0, without=without)

    return one_round


def main() -> None:
    """Print the table."""
    options = parse(__doc__, rounds=5)
    table = Table("all laws", "without slow laws")
    for name in PASSES[:1] if options.quick else PASSES:
        contenders = {
            "all laws": Contender(search(name, ())),
            "without slow laws": Contender(search(name, SLOW)),
        }
        goal = "25 ms a program without slow laws"
        row = f"try {name}, one program of {PROGRAMS}"
        table.measure(row, contenders, rounds=options.rounds, operations=PROGRAMS, goal=goal)


if __name__ == "__main__":
    main()
