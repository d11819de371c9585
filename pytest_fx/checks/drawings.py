"""Pages of ``--fx-draw``: one for each model, and one for each pass on it with the program before and after."""

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
    """Draw the captured program of a model."""
    program = subject.capture()
    return draw(program, _file(folder, subject.name), inputs=_inputs(subject, program))


def draw_pass(subject: Subject, pass_: Pass, folder: Path) -> Path | None:
    """Draw a program before and after a pass, with the errors of its nodes; None if the pass fails, or does nothing."""
    program = subject.capture(pass_=pass_)
    try:
        history = record_passes(program, [pass_], _inputs(subject, program))
    except PassError:
        return None  # the test of the pass reports it
    if len(history.states) == 1:
        return None
    path = _file(folder, f"{subject.name}-{pass_name(pass_)}")
    return draw(history, path, figures=_errors(subject, pass_))


def _file(folder: Path, name: str) -> Path:
    """Return the path of a page, and create its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)}.html"


def _inputs(subject: Subject, program: GraphModule, float64: bool = False) -> Any:
    """Return the example inputs by position; None if there are none, or the program does not take them by position."""
    if not subject.has_inputs:
        return None
    arguments = subject.arguments(float64=float64).copies()
    try:
        return positional(program, arguments.args, arguments.kwargs)
    except TypeError:
        return None


def _errors(subject: Subject, pass_: Pass) -> list[Figure]:
    """Return the error that each node adds in float64, and eager's rounding error there in the working dtype.

    The result is empty for a large model, since two copies in float64 do not fit.
    """
    if subject.is_large or subject.is_float64 or not subject.has_inputs:
        return []
    errors: tuple[NodeError, ...] = ()
    with contextlib.suppress(Exception):  # values that cannot be compared must not lose the drawing
        original = subject.capture(float64=True, pass_=pass_)
        history: PassHistory = record_passes(original, [pass_], _inputs(subject, original, float64=True))
        eager = subject.capture(pass_=pass_)
        errors = localize(original, history.graph_module, subject.arguments(), any_error, eager).errors
    added: dict[str, float] = {}
    rounding: dict[str, float] = {}
    for error in errors:
        for name in (error.original, error.node.partition(" ")[0].lstrip("%")):
            added[name] = max(added.get(name, 0.0), error.made)
            if error.eager is not None:
                rounding[name] = max(rounding.get(name, 0.0), error.eager)
    named = {"float64 error": added, "rounding error of eager": rounding}
    return [Figure(name, "", values) for name, values in named.items() if values]
