"""How fast programs are captured: models through ``symbolic_trace``, whole and small ones, and a step of a chain."""

from __future__ import annotations

import time
from functools import partial

from torch import nn

from model_zoo import get_model, list_models

from .libraries import LIBRARIES
from .paired import Table, each, measure, parse, rounds_for
from .programs import HandlingLayers, Layers, Perceptron, chain, hooked_perceptron, trace

of_thread = partial(measure, baseline="torch.fx", clock=time.thread_time)
"""Measures what the thread takes that captures, which does all of it, and not what other processes take meanwhile."""


def capture_models(table: Table, names: list[str], rounds: int) -> None:
    """Module in, GraphModule out."""
    for name in names:
        module = get_model(name).build().eval()
        if not _is_taken_by_torch_fx(module):
            print(f"{name}: torch.fx cannot capture it")
            continue
        contenders = each(lambda library, module=module: library.symbolic_trace(module), LIBRARIES)
        goal = "0.20, at most 0.30" if name == "resnet50" else ""
        table.add(of_thread(f"symbolic_trace {name}", contenders, rounds=rounds, goal=goal))


def _is_taken_by_torch_fx(module: nn.Module) -> bool:
    """Return whether there is anything to compare with: torch.fx refuses slices by sizes, as in the zoo's
    transformers.
    """
    try:
        LIBRARIES["torch.fx"].symbolic_trace(module)
    except Exception:
        return False
    return True


def capture_small_models(table: Table, rounds: int) -> None:
    """What a capture takes anyway, and what hooks and handled exceptions add to it."""
    models = {
        "a perceptron of four layers": (Perceptron(), "0.5"),
        "the same with hooks": (hooked_perceptron(), "0.5"),
        "thirty layers": (Layers(), "0.33"),
        "the same with try and except": (HandlingLayers(), "1.5 times the row above"),
    }
    for name, (module, goal) in models.items():
        contenders = each(lambda library, module=module: library.symbolic_trace(module), LIBRARIES)
        table.add(of_thread(f"symbolic_trace, {name}", contenders, rounds=rounds, goal=goal))


def capture_chains(table: Table, sizes: list[int], rounds: int) -> None:
    """Time of one operation while the program grows; a flat column means linear capture."""
    for size in sizes:
        table.add(
            of_thread(
                f"trace, one operation of {size:,}",
                each(partial(trace, root=chain(size)), LIBRARIES),
                rounds=rounds_for(size, rounds),
                operations=size,
                goal="0.20 (12 µs), flat",
            )
        )


def main() -> None:
    """Print the table."""
    options = parse(__doc__, rounds=21)
    table = Table(tuple(LIBRARIES))
    capture_models(table, ["resnet50"] if options.quick else list_models(), options.rounds)
    capture_small_models(table, options.rounds)
    capture_chains(table, [1_000, 10_000] if options.quick else [1_000, 10_000, 100_000], options.rounds)


if __name__ == "__main__":
    main()
