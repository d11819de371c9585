"""The cost of judging a candidate: by a call of ``judge``, and by a ``Judge`` that has judged others of its reference.

Each candidate computes GELU of 192 elements, and is not timed. In every round a new candidate is judged in both ways,
so that a loaded machine slows both alike. The first candidate of the ``Judge`` costs as much as a call, and is not
counted.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from pytest_fx import Judge, judge

from .paired import Contender, Table, parse

Candidate = Callable[[torch.Tensor], torch.Tensor]


def candidate() -> Candidate:
    """Return a right candidate, a function of its own."""
    return lambda x: F.gelu(x) * 1.0


def main() -> None:
    """Print a row: the time of a candidate in both ways, and their ratio."""
    options = parse(__doc__, rounds=100)
    inputs = torch.linspace(-2.0, 2.0, 192).reshape(6, 32)
    with Judge(F.gelu, inputs, timing=False) as judge_of_gelu:

        def together(subject: Candidate) -> None:
            assert judge_of_gelu.judge(subject)

        def apart(subject: Candidate) -> None:
            assert judge(F.gelu, subject, inputs, timing=False)

        contenders = {"judge": Contender(apart, candidate), "Judge": Contender(together, candidate)}
        name = "one of many candidates of a reference"
        Table(*contenders).measure(name, contenders, rounds=options.rounds, goal="at most 0.7")


if __name__ == "__main__":
    main()
