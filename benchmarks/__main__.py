"""Run all benchmarks, each in a fresh process: ``python -m benchmarks [--quick] [--only NAME] [--threads N]``."""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys

import torch

BENCHMARKS = (
    "capture",
    "codegen",
    "graph_edits",
    "memory",
    "model_memory",
    "growth",
    "forward",
    "analysis",
    "drawing",
    "simulation",
    "matching",
    "passes",
    "lowering",
    "int8",
    "threads",
    "pipelines",
    "scheduling",
    "generation",
    "properties",
    "suite",
    "verdicts",
    "candidates",
    "aten_search",
    "failures",
)


def main() -> int:
    """Run the chosen benchmarks one after the other; return the number that failed as the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and few: under two minutes")
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="run this one (repeatable)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    options = parser.parse_args()
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}"
    print(f"{versions}, threads {options.threads}")
    print("time of one call or operation; ratios: median over paired rounds [bootstrap 95 % interval]", flush=True)
    failed = 0
    for name in options.only or BENCHMARKS:
        print(f"\n{name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", "--threads", str(options.threads)]
        failed += subprocess.run([*command, *(["--quick"] if options.quick else [])], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
