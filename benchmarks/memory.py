"""Resident memory of a process that has captured a chain of operations, each library in a fresh process."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from .programs import chain

OPERATIONS = 100_000
MEBIBYTE = 2**20
ROOT = Path(__file__).resolve().parents[1]


def process_bytes(what: str = "VmRSS") -> int:
    """Return the kernel's figure for this process in bytes: ``VmRSS`` is the memory held now, ``VmHWM`` the peak."""
    with open("/proc/self/status", encoding="ascii") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith(f"{what}:"))


def resident_mebibytes() -> float:
    return process_bytes() / MEBIBYTE


def measure_here(library_name: str, operations: int) -> dict[str, float]:
    """Capture a chain in this process; return the memory before and after, in MiB."""
    import importlib

    import torch

    library = importlib.import_module(library_name)
    library.symbolic_trace(torch.nn.Identity())  # so that "before" includes modules that are imported on first use
    before = resident_mebibytes()
    graph = library.Tracer().trace(chain(operations))
    traced = resident_mebibytes()
    module = library.GraphModule(torch.nn.Module(), graph)
    written = resident_mebibytes()
    module(torch.zeros(1))
    return {"before": before, "traced": traced, "as a module": written, "after its first run": resident_mebibytes()}


def in_fresh_process(benchmark: str, *arguments: str, folder: Path = ROOT, threads: int = 1) -> Any:
    """Run a benchmark in a fresh interpreter, and return the JSON value in the last line of its output."""
    finished = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{benchmark}", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if finished.returncode:
        sys.exit(finished.stdout)
    return json.loads(finished.stdout.splitlines()[-1])


def main() -> None:
    """Print the table, or, with ``--library``, measure in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", help="measure this one here and print JSON")
    parser.add_argument("--operations", type=int, default=OPERATIONS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="accepted for uniformity; capture uses one")
    parser.add_argument("--quick", action="store_true", help="one round of a tenth of the operations")
    options = parser.parse_args()
    if options.library:
        print(json.dumps(measure_here(options.library, options.operations)))
        return
    rounds = 1 if options.quick else options.rounds
    operations = options.operations // 10 if options.quick else options.operations
    how = ("memory", "--operations", str(operations), "--library")
    results = {name: [in_fresh_process(*how, name) for _ in range(rounds)] for name in ("torch.fx", "fx")}
    print(f"resident memory in MiB, chain of {operations:,} operations, median of {rounds} processes")
    print(f"{'':<24}{'torch.fx':>12}{'fx':>12}{'fx / torch.fx':>16}   goal")
    goals = {"before": "", "traced": "below 1", "as a module": "below 1", "after its first run": "below 1"}
    if operations == OPERATIONS:
        goals["after its first run"] = "below 1, under 450 MiB"
    for stage, goal in goals.items():
        theirs, ours = (statistics.median(run[stage] for run in results[name]) for name in ("torch.fx", "fx"))
        print(f"{stage:<24}{theirs:>12.0f}{ours:>12.0f}{ours / theirs:>16.3f}   {goal}")


if __name__ == "__main__":
    main()
