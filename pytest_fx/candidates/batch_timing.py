"""The speed-up of a candidate: batches of calls with fresh contents, in turns, with every output compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from pytest_fx.candidates.drawn_inputs import redrawn_in
from pytest_fx.candidates.party_process import Party
from pytest_fx.candidates.verdict import WRONG, Verdict
from pytest_fx.harness.domains import InputDomain
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.structure import leaves
from pytest_fx.timing.paired import median_interval

ROUNDS = 12
"""Timed pairs of batches."""
SECONDS_OF_BATCH = 0.01
"""Least seconds of a batch of the reference, as far as the most calls allow."""
FEWEST_CALLS, MOST_CALLS = 32, 64
"""Calls in a batch; of slow calls there are fewer."""
SECONDS_OF_FEW = 0.2
"""Most seconds of a batch of the fewest calls; slower calls get smaller batches."""
LOOSENESS = 16.0
"""Error allowed in a timed call, as a multiple of the error allowed in the judgement."""


def timed(
    reference: Party,
    candidate: Party,
    several: Sequence[Arguments],
    domain: InputDomain,
    verdict: Verdict,
    allowed: float,
) -> Verdict:
    """Time a right candidate beside the reference. A wrong output in a timed call makes the verdict wrong."""
    count = _calls_of_batch(reference, several[0])
    ratios: list[float] = []
    for number in range(ROUNDS):
        first = 10_000 + number * MOST_CALLS
        contents = [redrawn_in(domain, several[call % len(several)], first + call) for call in range(count)]
        seconds: dict[str, float] = {}
        outputs: dict[str, Any] = {}
        order = (("reference", reference), ("candidate", candidate))
        for name, party in order if number % 2 else order[::-1]:
            party.place(contents, "eval", 0)
            seconds[name] = party.go()
            outputs[name] = party.fetch()
        for expected, actual in zip(outputs["reference"], outputs["candidate"], strict=True):
            if why := _difference(expected, actual, allowed):
                return replace(verdict, verdict=WRONG, law="timed calls", evidence=why, detection_limit=None)
        ratios.append(seconds["reference"] / seconds["candidate"])
    ratios = sorted(ratios[1:])
    return replace(
        verdict, speedup=ratios[len(ratios) // 2], interval=median_interval(tuple(ratios)), why_no_speedup=""
    )


def _calls_of_batch(reference: Party, arguments: Arguments) -> int:
    reference.place([arguments], "eval", 0)
    seconds = min(reference.go() for _ in range(3))
    fewest = min(FEWEST_CALLS, int(SECONDS_OF_FEW / max(seconds, 1e-6)))
    return max(1, fewest, min(MOST_CALLS, round(SECONDS_OF_BATCH / max(seconds, 1e-6))))


def largest(tensor: torch.Tensor) -> float:
    """Return the largest finite absolute value of an element; 0 if there is none."""
    return float(tensor.detach().abs().double().nan_to_num(0.0, 0.0, 0.0).amax()) if tensor.numel() else 0.0


def _difference(expected: Any, actual: Any, allowed: float) -> str:
    if expected.error:
        return ""
    if actual.error:
        return f"the candidate raises in a timed call: {actual.error}"
    for (path, wanted), (_, other) in zip(leaves(expected.outputs), leaves(actual.outputs), strict=False):
        if not isinstance(wanted, torch.Tensor) or not wanted.numel():
            continue
        if not isinstance(other, torch.Tensor) or wanted.shape != other.shape:
            return f"output{path} has a different shape in a timed call"
        if wanted.is_floating_point():
            error = largest(wanted.double() - other.double())
            if error > LOOSENESS * allowed * largest(wanted) + 1e-30:
                return f"output{path} is off by {error:.2g} in a timed call"
        elif not torch.equal(wanted, other):
            return f"output{path} differs in a timed call"
    return ""
