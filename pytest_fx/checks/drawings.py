"""What ``--fx-draw`` writes: a page for each model, and for each pass on it one with the program before and after."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

from fx import GraphModule, draw
from fx.drawing import Figure, PassHistory, record_passes
from fx.errors import PassError
from fx.interpreter import positional
from fx.passes import Pass, pass_name
from pytest_fx.failures.localization import NodeError, localize
from pytest_fx.failures.node_error import any_error
from pytest_fx.harness.subject import Subject


def draw_capture(subject: Subject, folder: Path) -> Path:
    """Draw the program captured of a model."""
    program = subject.capture()
    return draw(program, _file(folder, subject.name), inputs=_inputs(subject, program))


def draw_pass(subject: Subject, pass_: Pass, folder: Path) -> Path | None:
    """Draw a program before and after a pass, with the errors of its nodes; None if the pass fails, or does nothing."""
    program = subject.capture(pass_=pass_)
    try:
        history = record_passes(program, [pass_], _inputs(subject, program))
    except PassError:
        return None  # the test of the pass tells why
    if len(history.states) == 1:
        return None
    path = _file(folder, f"{subject.name}-{pass_name(pass_)}")
    return draw(history, path, figures=_errors(subject, pass_))


def _file(folder: Path, name: str) -> Path:
    """A file of that name, in a folder that is made."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)}.html"


def _inputs(subject: Subject, program: GraphModule, float64: bool = False) -> Any:
    """The example inputs by position; None where there are none, or the program does not take them so."""
    if not subject.has_inputs:
        return None
    arguments = subject.arguments(float64=float64).copies()
    try:
        return positional(program, arguments.args, arguments.kwargs)
    except TypeError:
        return None


def _errors(subject: Subject, pass_: Pass) -> list[Figure]:
    """Return what each node adds to the error in float64, and what rounding alone makes there in the working dtype.

    Of a large model, which is not there in float64 twice, neither is known.
    """
    if subject.is_large or subject.is_float64 or not subject.has_inputs:
        return []
    errors: tuple[NodeError, ...] = ()
    with contextlib.suppress(Exception):  # the drawing must not be lost where values cannot be compared
        original = subject.capture(float64=True, pass_=pass_)
        history: PassHistory = record_passes(original, [pass_], _inputs(subject, original, float64=True))
        eager = subject.capture(pass_=pass_)
        errors = localize(original, history.graph_module, subject.arguments(), any_error, eager).errors
    made: dict[str, float] = {}
    own: dict[str, float] = {}
    for error in errors:
        for name in (error.original, error.node.partition(" ")[0].lstrip("%")):
            made[name] = max(made.get(name, 0.0), error.made)
            if error.eager is not None:
                own[name] = max(own.get(name, 0.0), error.eager)
    named = {"float64 error": made, "rounding error of eager": own}
    return [Figure(name, "", values) for name, values in named.items() if values]
