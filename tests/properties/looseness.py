"""``make looseness``: the smallest error of outputs that the harness reports; writes ``results/looseness.md``.

A program that exists already is judged in its own dtype alone, by eager's own rounding error. For each model this looks
for the smallest relative change of its outputs that is judged wrong, and gives it in units of that error. It starts at
the detection limit in the table of a run. Models of torchvision and timm are tried if these are installed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from building import Scaled
from models.libraries import declare_operators
from torch import nn

import model_zoo
from fx.passes import close
from pytest_fx.harness.detection import detection_limit
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import LawViolation, contract
from pytest_fx.laws.judging import compared
from pytest_fx.records.baseline import describe
from pytest_fx.records.records import describe_machine, write_atomically

RESULT = Path(__file__).parents[2] / "results" / "looseness.md"
TORCHVISION = "resnet18 mobilenet_v2 vgg11 densenet121 efficientnet_b0 convnext_tiny vit_b_16".split()
TIMM = "resnet26d mixer_b16_224 ghostnet_100".split()
LARGEST = 0.1
"""The largest relative change that is tried."""


@dataclass(frozen=True, slots=True)
class Row:
    """The results for one model."""

    name: str
    """The model."""
    note: str = ""
    """The reason why it was not tried, if it was not."""
    own: float = 0.0
    """The largest rounding error of eager's output."""
    limit: float = 0.0
    """The detection limit that a run shows."""
    wrong_from: float = 0.0
    """The relative change of all outputs from which on the harness calls them wrong."""
    units: float = 0.0
    """The error of that change, in units of eager's own."""


def images(seed: int) -> tuple[torch.Tensor]:
    return (torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(seed)),)


def models() -> dict[str, Callable[[], tuple[nn.Module, Callable[[int], tuple[Any, ...]]]]]:
    """Return a maker of each model and its inputs."""

    def of_the_zoo(name: str) -> tuple[nn.Module, Callable[[int], tuple[Any, ...]]]:
        model = model_zoo.get_model(name)
        return model.build(), lambda seed: model.example_inputs(2, seed=seed)

    def of_a_library(make: Callable[[], nn.Module]) -> tuple[nn.Module, Callable[[int], tuple[Any, ...]]]:
        torch.manual_seed(0)
        return make(), images

    small = [name for name in model_zoo.list_models() if f"{name}_small" not in model_zoo.list_models()]
    measurements: dict[str, Any] = {name: partial(of_the_zoo, name) for name in small}

    def of_torchvision(name: str) -> nn.Module:
        declare_operators()
        return import_module("torchvision.models").get_model(name)

    for name in TORCHVISION:
        measurements[f"torchvision {name}"] = partial(of_a_library, partial(of_torchvision, name))
    for name in TIMM:
        measurements[f"timm {name}"] = partial(of_a_library, lambda name=name: import_module("timm").create_model(name))
    return measurements


def measure(name: str, make: Callable[[], tuple[nn.Module, Callable[[int], tuple[Any, ...]]]]) -> Row:
    """Return the looseness of the bound for one model."""
    try:
        module, inputs = make()
    except ImportError as error:
        return Row(name, note=str(error))
    subject = Subject(name, module.eval(), lambda input_set: Arguments(inputs(input_set)))
    same = PassRun.given(subject, subject.fresh(), close)
    comparison = compared(same, range(same.input_set_count), lambda run: run.output)
    limit = detection_limit(comparison, close)
    if limit is None:
        return Row(name, note="all its outputs are zero")
    bounds = [bound for bound in comparison.rounding_bounds(close) if bound.leaf.actual.is_floating_point()]
    scale = max(bound.leaf.scale for bound in bounds)
    own = max(bound.eager_error for bound in bounds)
    change = limit.all_elements
    while change < LARGEST and not any(is_wrong(subject, 1 + sign * change) for sign in (1, -1)):
        change *= 1.02
    return Row(name, own=own, limit=limit.all_elements, wrong_from=change, units=change * scale / own)


def is_wrong(subject: Subject, times: float) -> bool:
    """Return True if the harness rejects a program with outputs off by a factor."""
    try:
        contract(PassRun.given(subject, Scaled(subject.fresh(), times), close))
    except LawViolation:
        return True
    return False


def table(rows: list[Row]) -> str:
    """The rows as a page of Markdown."""
    tried = [row for row in rows if not row.note]
    lines = [
        "# How far outputs may be off",
        "",
        f"`make looseness` on {describe(describe_machine())}, float32.",
        "A program that is compared without a pass is judged in its own dtype by eager's rounding error in it.",
        "That error is measured by a run in float64. To find how large an error must be, all outputs are multiplied by",
        "one factor, slightly above or below 1. *Called wrong from* is the smallest relative change with the verdict",
        "*wrong*. The last column is the error that this change causes in the largest output.",
        "",
        f"**The median is {statistics.median(row.units for row in tried):.1f} times eager's own error, the largest "
        f"{max(row.units for row in tried):.1f} times.**",
        "",
        "| model | eager's own error | detection limit | called wrong from | in units of eager's own error |",
        "|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = (f"{row.own:.1e}", f"{row.limit:.1e}", f"{row.wrong_from:.1e}", f"{row.units:.1f}")
        lines.append(f"| {row.name} | " + (" | ".join(cells) if not row.note else f"{row.note} | | | ") + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure each model, or those that are named; 1 if one is looser than 64 times eager's own error."""
    parser = argparse.ArgumentParser(prog="python tests/properties/looseness.py", description=__doc__)
    parser.add_argument("names", nargs="*", help="models to measure; by default all, into results/looseness.md")
    names = parser.parse_args().names
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    for name, make in models().items():
        if not names or name in names:
            rows.append(measure(name, make))
            print(rows[-1], flush=True)
    if not names:
        write_atomically(RESULT, table(rows))
    return int(any(row.units > 64 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
