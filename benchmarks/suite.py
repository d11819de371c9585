"""The cost of the built-in suite without timing, in eager forward passes: ResNet50, one pass, one batch size.

In every round the suite runs on ResNet50 and on a tiny ResNet, in separate processes, with calls of the eager model in
between. The time of a test on the tiny model, and the time of building ResNet50, are subtracted as start-up. The rest
is printed in units of a call of ResNet50.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import torch

import model_zoo

from .paired import parse

MODEL, TINY = "resnet50", "resnet_tiny"
PASS = "fuse-conv-bn"
GOALS = {1: 60, 8: 40}
"""Maximum cost of the suite in calls, by batch: with a small batch, fixed costs are large beside a call."""
CALLS = 5
FIRST = "test_capture_is_well_formed"
"""The test in which the model is built."""


def run_suite(model: str, batch: int, threads: int) -> dict[str, float]:
    """Return the seconds of each test of the suite on a model."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ("--fx-model", model, "--fx-pass", PASS, "--fx-no-timing", f"--fx-batch={batch}")
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *options, f"--fx-threads={threads}", f"--junitxml={report}"],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        cases = ElementTree.parse(report).iter("testcase")
        return {re.sub(r"\[.*", "", case.attrib["name"]): float(case.attrib["time"]) for case in cases}


def build_and_forward_seconds(batch: int) -> tuple[float, float]:
    """Return the time of building the model, and the median time of an eager call, in seconds."""
    zoo = model_zoo.get_model(MODEL)
    started = time.perf_counter()
    module = zoo.build().eval()
    built = time.perf_counter() - started
    inputs = zoo.example_inputs(batch)
    times: list[float] = []
    with torch.no_grad():
        module(*inputs)
        for _ in range(CALLS):
            started = time.perf_counter()
            module(*inputs)
            times.append(time.perf_counter() - started)
    return built, float(np.median(times))


def main() -> None:
    """Print a table for each batch size."""
    options = parse(__doc__, rounds=3)
    for batch in list(GOALS)[:1] if options.quick else GOALS:
        costs: dict[str, list[float]] = {}
        forwards: list[float] = []
        for _ in range(options.rounds):
            tiny = run_suite(TINY, batch, options.threads)
            built, forward = build_and_forward_seconds(batch)
            tiny[FIRST] += built
            forwards.append(forward)
            for name, seconds in run_suite(MODEL, batch, options.threads).items():
                costs.setdefault(name, []).append((seconds - tiny[name]) / forwards[-1])
        total = float(np.median(np.sum(list(costs.values()), axis=0)))
        milliseconds = float(np.median(forwards)) * 1e3
        print(
            f"{MODEL}, {PASS}, batch {batch}: {total:.1f} calls of {milliseconds:.0f} ms (goal: at most {GOALS[batch]})"
        )
        for name, calls in sorted(costs.items(), key=lambda entry: -float(np.median(entry[1]))):
            print(f"  {float(np.median(calls)):5.1f}  {name}")


if __name__ == "__main__":
    main()
