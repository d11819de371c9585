"""Models that their factory returns in training mode: passes are judged in that mode, too, if it makes a difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fx.passes import Pass
from pytest_fx.forms import FormedPass
from pytest_fx.harness.pass_run import applied
from pytest_fx.harness.run import Run
from pytest_fx.harness.snapshot import same_tensor
from pytest_fx.harness.structure import describe, leaves
from pytest_fx.harness.subject import Subject


def why_not_in_training(subject: Subject) -> str | None:
    """Return the reason why no pass can be judged on a model in training mode; None if one can."""
    if (error := subject.capture_error) is not None:
        return f"it cannot be captured: {type(error).__name__}"
    if (error := subject.eager().error) is not None:  # a batch norm raises for one value per channel
        return f"eager raises {type(error).__name__}"
    return None


def makes_difference(subject: Subject, in_training: Subject, pass_: Pass, *, leaves: bool) -> bool:
    """Return whether training mode changes the results of a model, or the program that a pass makes of it."""
    if isinstance(pass_, FormedPass):
        return computes_otherwise(subject, in_training)
    runs = [applied(of_mode, pass_, leaves=leaves) for of_mode in (subject, in_training)]
    if any(run.after is None for run in runs):
        return runs[0].after is not runs[1].after
    if runs[0].written != runs[1].written or runs[0].changed != runs[1].changed:
        return True
    return computes_otherwise(subject, in_training)


def computes_otherwise(subject: Subject, in_training: Subject) -> bool:
    """Return whether a model returns or writes something else in training mode."""
    numbers = range(in_training.input_set_count)
    return any(_differ(subject.eager(number), in_training.eager(number)) for number in numbers)


def _differ(eager: Run, in_training: Run) -> bool:
    """Return whether two calls return or write something else."""
    if eager.error is not None or describe(eager.output) != describe(in_training.output):
        return True
    if eager.state.keys() != in_training.state.keys() or eager.rewritten.keys() != in_training.rewritten.keys():
        return True
    return not all(
        same_tensor(value, other) if isinstance(value, torch.Tensor) else value == other
        for value, other in zip(_values(eager), _values(in_training), strict=True)
    )


def _values(run: Run) -> Iterator[Any]:
    yield from (leaf for _, leaf in leaves((run.output, run.state, run.inputs)))
