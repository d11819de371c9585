"""Lower a model to each backend on this machine, and print the fastest one with correct outputs.

    python examples/choose_backend.py

The reason is printed for each backend that is not available. A backend may also take a part of the model only, and
leave the rest in Python; its share of the floating-point operations is printed.
"""

from functools import partial

import torch
from torch import nn

import fx
from fx.lowering import get_backend, list_backends
from pytest_fx.timing.paired import time_pairs


class Head(nn.Module):
    """Convolutions, and a cumulative sum that no engine supports."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(torch.relu(self.second(torch.relu(self.first(x)))), dim=1)


def candidates(program: fx.GraphModule, x: torch.Tensor) -> dict[str, fx.GraphModule]:
    """Return the program lowered to each available backend; print why the others are not available."""
    lowered = {}
    for name in list_backends():
        reason = get_backend(name).why_unavailable()
        if reason is not None:
            print(f"{name}: not available, {reason}")
            continue
        share = fx.lower(program, name, (x,), dry_run=True).flop_share
        print(f"{name}: takes {share:.0%} of the floating-point operations")
        lowered[name] = fx.lower(program, name, (x,))
    return lowered


def fastest(model: nn.Module, lowered: dict[str, fx.GraphModule], x: torch.Tensor, rounds: int = 20) -> str:
    """Return the name of the backend with the largest speed-up over eager, among those with correct outputs."""
    speedups = {"eager": 1.0}
    wanted = model(x)
    for name, program in lowered.items():
        torch.testing.assert_close(program(x), wanted, rtol=1e-3, atol=1e-4)
        timing = time_pairs(partial(model, x), partial(program, x), rounds=rounds)
        if timing.verdict == "faster":
            speedups[name] = timing.speedup
    return max(speedups, key=speedups.__getitem__)


if __name__ == "__main__":
    torch.manual_seed(0)
    module, example = Head().eval(), torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        print("fastest:", fastest(module, candidates(fx.symbolic_trace(module), example), example))
