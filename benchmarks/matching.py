"""The speed of finding and replacing patterns, by operation of a chain in which every other pair matches."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.fx import subgraph_rewriter as torch_rewriter

from fx import subgraph_rewriter
from fx.matcher import explain

from .paired import LIBRARIES, Contender, Table, each_afresh, parse, sizes
from .programs import pairs_module

REWRITERS = {"torch.fx": torch_rewriter, "fx": subgraph_rewriter}
LARGEST_OF_TORCH_FX = 2_000
"""torch.fx's time for a match grows with the program: beyond this it takes minutes."""


def pattern(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.neg(x))


def replacement(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x)


def absent(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.tanh(x))


def replace(rewriter: ModuleType, expected: int, program: Any) -> None:
    """Replace all matches of the pattern."""
    assert len(rewriter.replace_pattern(program, pattern, replacement)) == expected


def look(rewriter: ModuleType, program: Any) -> None:
    """Search for a pattern of which only the last operation occurs."""
    assert not rewriter.replace_pattern(program, absent, replacement)


def main() -> None:
    """Print the table."""
    options = parse(__doc__, rounds=11)
    table = Table(*LIBRARIES)
    for size in sizes(options):
        makers = {label: partial(pairs_module, library, size) for label, library in LIBRARIES.items()}
        works = (
            ("replace every match", lambda rewriter, size=size: partial(replace, rewriter, size // 4)),
            ("find none", lambda rewriter: partial(look, rewriter)),
        )
        for name, work in works:
            contenders = {
                label: Contender(work(REWRITERS[label]), make)
                for label, make in makers.items()
                if label == "fx" or size <= LARGEST_OF_TORCH_FX
            }
            table.measure_operations(name, size, contenders, rounds=options.rounds, goal="at most 1, flat")
        if not options.quick:
            explained = each_afresh(lambda program: explain(program, absent), {"fx": makers["fx"]})
            table.measure_operations("explain near misses", size, explained, rounds=options.rounds, goal="flat")


if __name__ == "__main__":
    main()
