"""What running a program node by node costs, by operation: Interpreter beside eager."""

from __future__ import annotations

import torch

from .libraries import LIBRARIES
from .paired import Table, each, measure, parse, rounds_for
from .programs import chain


def main() -> None:
    """Print the table."""
    options = parse(__doc__, rounds=21)
    table = Table(("eager", *LIBRARIES))
    one = torch.ones(1)
    for size in [1_000] if options.quick else [1_000, 10_000]:
        eager = chain(size)
        runs = {"eager": eager}
        for label, library in LIBRARIES.items():
            runs[label] = library.Interpreter(library.symbolic_trace(eager)).run
        with torch.no_grad():
            table.add(
                measure(
                    f"Interpreter, one operation of {size:,}",
                    each(lambda run: run(one), runs),
                    baseline="eager",
                    rounds=rounds_for(size, options.rounds),
                    operations=size,
                    goal="2 (under 5 µs)",
                )
            )


if __name__ == "__main__":
    main()
