"""``make gpu``: all that needs a CUDA device, within the minutes that one is lent for; a later run goes on.

The steps are the tests of ``tests/gpu``, the built-in suite on models on the device, and the rows of tables that need a
GPU. A step that ended is noted with the commit, and not repeated; one that was cut off begins again. Rows of tables are
kept one by one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch

from pytest_fx.records.records import describe_machine, write_atomically

FOLDER = Path(__file__).parent
DONE = Path(".pytest_fx/gpu.json")
"""The results of steps, by name, for a commit and a device."""
_MODELS = ("resnet_tiny", "two_heads", "bert_small", "lstm_classifier_small", "deep_recommender_small", "unet_small")
_NOTHING_COLLECTED = 5
"""The exit status of pytest that selected no test."""


def steps() -> dict[str, tuple[str, ...]]:
    """Return the arguments of pytest for each step, by name."""
    files = {file.name: (str(file), "-m", "gpu") for file in sorted(FOLDER.glob("test_*.py"))}
    suite = ("--noconftest", "--fx-device", "cuda", "--fx-no-timing")
    models = {f"{model} on CUDA": (*suite, "--fx-model", model) for model in _MODELS}
    return {**files, **models, "rows of tables": ("--fx-tables", "-m", "fx_gpu")}


def conditions() -> str:
    """Return the commit and the device, for which results hold."""
    machine = describe_machine()
    return f"{machine['commit']} on {machine['device']}"


def run_steps(chosen: dict[str, tuple[str, ...]], seconds: float) -> dict[str, int]:
    """Run the steps without a result until the time has passed, and return the results of all, which are also kept."""
    stored = json.loads(DONE.read_text()) if DONE.exists() else {}
    results: dict[str, int] = stored.get(conditions(), {})
    end = time.monotonic() + seconds
    for name, arguments in chosen.items():
        if name in results:
            continue
        remaining = end - time.monotonic()
        if remaining <= 0:
            break
        print(f"{name}: {remaining:.0f} s left", flush=True)
        try:
            command = [sys.executable, "-m", "pytest", "-q", *arguments]
            status = subprocess.run(command, timeout=remaining, check=False).returncode
        except subprocess.TimeoutExpired:
            break
        results[name] = 0 if status == _NOTHING_COLLECTED else status
        write_atomically(DONE, json.dumps({conditions(): results}, indent=1))
    return results


def main() -> int:
    """Run the steps; 0 if all ended and passed."""
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--seconds", type=float, default=700, help="how long the run may take (700)")
    parser.add_argument("--again", action="store_true", help="forget the results of earlier runs")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no CUDA device here; the steps are:", *steps(), sep="\n  ")
        return 1
    if arguments.again:
        DONE.unlink(missing_ok=True)
    chosen = steps()
    results = run_steps(chosen, arguments.seconds)
    for name in chosen:
        status = results.get(name)
        print(f"{name}: {'not run yet' if status is None else 'passed' if status == 0 else f'failed ({status})'}")
    return int(any(results.get(name) != 0 for name in chosen))


if __name__ == "__main__":
    sys.exit(main())
