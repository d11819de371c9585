"""The error rates of timing verdicts: on a program beside its copy, and beside one that computes 5 % more.

Every trial makes new copies, takes pairs as ``pytest --fx-model`` does, 30 or more until they decide, and reads the
verdict. The intervals of a timing have a joint coverage of 95 %. In addition, two copies differ slightly, since they
are at different places in memory.
"""

from __future__ import annotations

import argparse
import copy
import random
from collections import Counter

import numpy as np
import torch
from torch import nn

from pytest_fx.harness.evaluation import Arguments
from pytest_fx.options import TIMING_BUDGET
from pytest_fx.timing.contents import Contents
from pytest_fx.timing.paired import PairedTiming, time_pairs

from .paired import parse

Trials = dict[bool, list[PairedTiming]]
LAYERS = 20
"""Number of equal layers of a program; the program with 5 % more work has one more."""


def chain(layers: int, width: int) -> nn.Module:
    """Return a program of equal layers."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers))).eval()


def trials(eager: nn.Module, longer: nn.Module, shape: tuple[int, int], options: argparse.Namespace) -> Trials:
    """Time new copies of equal programs, and of one with more work, in a random order each time."""
    by_size: Trials = {False: [], True: []}
    for number in range(options.rounds):
        for more in random.Random(number).sample((False, True), 2):
            example = Arguments((torch.randn(shape),))
            pair = copy.deepcopy(eager), copy.deepcopy(longer if more else eager)
            contents = Contents(lambda _, example=example: example)
            by_size[more].append(time_pairs(*pair, budget=TIMING_BUDGET, threads=options.threads, contents=contents))
    return by_size


@torch.no_grad()
def main() -> None:
    """Print a row for each size of program."""
    options = parse(__doc__, rounds=100)
    print(f"{'':<34}{'median of eager':>16}  verdicts, of {options.rounds}, and the median speed-up with its spread")
    for batch, width in ((8, 64), (32, 256), (64, 512)):
        by_size = trials(chain(LAYERS, width), chain(LAYERS + 1, width), (batch, width), options)
        for more, timings in by_size.items():
            name = f"{LAYERS} layers of {width}, {'5 % more' if more else 'the same'}"
            seconds = float(np.median([np.median(timing.eager) for timing in timings]))
            verdicts = ", ".join(f"{times} {verdict}" for verdict, times in Counter(t.verdict for t in timings).items())
            low, middle, high = np.percentile([timing.speedup for timing in timings], [2.5, 50, 97.5])
            loaded = sum(timing.loaded for timing in timings)
            pairs = sorted(len(timing.eager) for timing in timings)
            undecided = sum(timing.is_open for timing in timings)
            print(
                f"{name:<34}{seconds * 1e3:>13.3f} ms  {verdicts}; {middle:.3f} [{low:.3f}, {high:.3f}]; "
                f"{pairs[len(pairs) // 2]} pairs (at most {pairs[-1]}), {undecided} undecided"
                f"{f'; machine loaded in {loaded}' if loaded else ''}",
                flush=True,
            )


if __name__ == "__main__":
    main()
