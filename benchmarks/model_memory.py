"""The memory that the built-in suite needs on a user's model, as a multiple of the bytes of its parameters.

Each model is judged in a process of its own, after a tiny one with the same layers, so that imports and code compiled
once are not counted. The kernel gives the peak of a test (VmHWM, which is reset before each).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from .memory import MEBIBYTE, in_fresh_process, process_bytes

GOAL = 4.0
"""Times the size of the parameters."""
TINY = 64
"""The width of the model that goes first."""
MODELS = ("linears", "convolutions", "tables")


class Linears(nn.Module):
    """A chain of large matrices, which only a lowering changes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) + 0
        return x


class Convolutions(nn.Module):
    """Large kernels with batch norms, whose folding changes every parameter of the model."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = torch.relu(norm(convolution(x)))
        return x


class Tables(nn.Module):
    """A large table, and two matrices on the same input, which can be merged into one product."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(8 * width, width)
        self.left, self.right = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)
        self.head = nn.Linear(4 * width, 4)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        x = self.table(indices)
        return self.head(torch.relu(self.left(x)) + torch.tanh(self.right(x)))


def build(name: str, width: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return one of the models with inputs of one sample."""
    torch.manual_seed(0)
    if name == "linears":
        return Linears(width), (torch.randn(1, width),)
    if name == "convolutions":
        return Convolutions(width), (torch.randn(1, width, 4, 4),)
    return Tables(width), (torch.arange(8)[None],)


def width_for(name: str, mebibytes: int) -> int:
    """Return the width at which the parameters of a model take about that many MiB."""
    numbers = mebibytes * MEBIBYTE / 4
    return int((numbers / {"linears": 4, "convolutions": 36, "tables": 16}[name]) ** 0.5) // 16 * 16


def parameter_bytes(module: nn.Module) -> int:
    """Return the bytes of the parameters and buffers of a model."""
    return sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))


@dataclass
class Recorder:
    """A pytest plugin that records the memory of each test of a model."""

    model: str
    """The name of the model; tests of other models are not recorded."""
    needed: dict[str, int] = field(default_factory=dict[str, int])
    """Peak bytes during each test, above those before the first test."""
    remaining: dict[str, int] = field(default_factory=dict[str, int])
    """Bytes after each test, above those before the first test."""
    outcomes: dict[str, str] = field(default_factory=dict[str, str])
    """The outcome of each test."""
    before: int | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Reset the peak, run a test, and record its memory."""
        if self.model not in item.nodeid:
            return (yield)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        if self.before is None:
            self.before = process_bytes("VmRSS")
        result = yield
        name = item.nodeid.rpartition("::")[2].replace(self.model, "").replace("[-", "[")
        self.needed[name] = process_bytes("VmHWM") - self.before
        self.remaining[name] = process_bytes("VmRSS") - self.before
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the outcome of a test."""
        if self.model in report.nodeid and (report.when == "call" or not report.passed):
            name = report.nodeid.rpartition("::")[2].replace(self.model, "").replace("[-", "[")
            self.outcomes[name] = report.outcome


def measure_here(name: str, mebibytes: int, options: list[str]) -> dict[str, Any]:
    """Run the suite in this process, on the tiny model and on the large one, in the current folder."""
    Path("fx_memory_models.py").write_text(
        f"from benchmarks.model_memory import build\n"
        f"def tiny():\n    return build({name!r}, {TINY})\n"
        f"def large():\n    return build({name!r}, {width_for(name, mebibytes)})\n",
        encoding="utf-8",
    )
    recorder = Recorder("fx_memory_models:large")
    models = ["--fx-model", "fx_memory_models:tiny", "--fx-model", "fx_memory_models:large"]
    pytest.main(["-q", "-rA", "--tb=short", "--fx-rounds=2", *models, *options], plugins=[recorder])
    size = parameter_bytes(build(name, width_for(name, mebibytes))[0])
    return {"size": size, "needed": recorder.needed, "left": recorder.remaining, "outcomes": recorder.outcomes}


def main() -> None:
    """Print a table for each model, or, with ``--here``, measure one in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", choices=MODELS, help="measure this one in this process and print JSON")
    parser.add_argument("--model", action="append", choices=MODELS, help="measure this one (repeatable)")
    parser.add_argument("--mebibytes", type=int, default=1024, help="size of the parameters (default 1024)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    parser.add_argument("--quick", action="store_true", help="models of 64 MiB")
    options, others = parser.parse_known_args()
    if options.here:
        print(json.dumps(measure_here(options.here, options.mebibytes, others)))
        return
    mebibytes = 64 if options.quick else options.mebibytes
    for name in options.model or MODELS:
        how = ["--here", name, "--mebibytes", str(mebibytes), *others]
        with tempfile.TemporaryDirectory() as folder:
            result = in_fresh_process("model_memory", *how, folder=Path(folder), threads=options.threads)
        size, needed, left_over = result["size"], result["needed"], result["left"]
        most = max(needed.values()) / size
        print(f"{name}, {size / MEBIBYTE:.0f} MiB of parameters: at most {most:.2f} times that (goal: {GOAL:g})")
        print(f"  {'most':>6}{'after':>7}  test")
        for test in needed:
            print(
                f"  {needed[test] / size:6.2f}{left_over[test] / size:7.2f}  {result['outcomes'].get(test, '')} {test}"
            )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
