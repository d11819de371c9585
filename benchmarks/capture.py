"""The speed of capture: whole and small models, a step of a chain, models to be fused (section 6.2.2)."""

from __future__ import annotations

import copy
import time
from functools import partial

from torch import nn
from torch.fx.experimental.optimization import fuse

import fx
from fx.passes import FuseConvBN
from model_zoo import get_model, list_models

from .paired import LIBRARIES, Contender, Table, each, parse, sizes
from .programs import HandlingLayers, Layers, Perceptron, chain, hooked_perceptron, trace

CLOCK = time.thread_time
"""The time of the capturing thread alone, which does all the work, so that other processes do not count."""


def capture_models(table: Table, names: list[str], rounds: int) -> None:
    """Measure ``symbolic_trace`` of each model."""
    for name in names:
        module = get_model(name).build().eval()
        if not _is_taken_by_torch_fx(module):
            print(f"{name}: torch.fx cannot capture it")
            continue
        contenders = each(lambda library, module=module: library.symbolic_trace(module), LIBRARIES)
        goal = "0.20, at most 0.30" if name == "resnet50" else ""
        table.measure(f"symbolic_trace {name}", contenders, rounds=rounds, goal=goal, clock=CLOCK)


def _is_taken_by_torch_fx(module: nn.Module) -> bool:
    """Return whether torch.fx can capture the module: it refuses slices by sizes, as in the zoo's transformers."""
    try:
        LIBRARIES["torch.fx"].symbolic_trace(module)
    except Exception:
        return False
    return True


def capture_small_models(table: Table, rounds: int) -> None:
    """Measure the fixed cost of a capture, and the additional cost of hooks and handled exceptions."""
    models = {
        "a perceptron of four layers": (Perceptron(), "0.5"),
        "the same with hooks": (hooked_perceptron(), "0.5"),
        "thirty layers": (Layers(), "0.33"),
        "the same with try and except": (HandlingLayers(), "1.5 times the row above"),
    }
    for name, (module, goal) in models.items():
        contenders = each(lambda library, module=module: library.symbolic_trace(module), LIBRARIES)
        table.measure(f"symbolic_trace, {name}", contenders, rounds=rounds, goal=goal, clock=CLOCK)


def capture_chains(table: Table, lengths: list[int], rounds: int) -> None:
    """Measure the time of one operation while the program grows; a flat column means linear capture."""
    for size in lengths:
        contenders = each(partial(trace, root=chain(size)), LIBRARIES)
        goal = "0.20 (12 µs), flat"
        table.measure_operations("trace", size, contenders, rounds=rounds, goal=goal, clock=CLOCK)


def fuse_models(rounds: int) -> None:
    """Measure the path from a module to a program with folded batch norms.

    Ours does not change the module, and does not copy it either.
    """
    table = Table("torch.fx", "no copy", "fx")
    for name in ("resnet_tiny", "resnet50"):
        module = get_model(name).build().eval()
        contenders = {
            "torch.fx": Contender(lambda _, module=module: fuse(module)),
            "no copy": Contender(lambda copied: fuse(copied, inplace=True), partial(copy.deepcopy, module)),
            "fx": Contender(lambda _, module=module: FuseConvBN()(fx.symbolic_trace(module))),
        }
        goal = "below 1" if name == "resnet50" else ""
        table.measure(f"capture and fuse-conv-bn, {name}", contenders, rounds=rounds, goal=goal)


def main() -> None:
    """Print the table."""
    options = parse(__doc__, rounds=21)
    table = Table(*LIBRARIES)
    capture_models(table, ["resnet50"] if options.quick else list_models(), options.rounds)
    capture_small_models(table, options.rounds)
    capture_chains(table, sizes(options), options.rounds)
    fuse_models(options.rounds)


if __name__ == "__main__":
    main()
