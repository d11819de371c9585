"""Bisection: find the edit that breaks a program, by running a pipeline with different fuel (paper, section 5.5)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

from fx.errors import PassError
from fx.graph_module import GraphModule
from fx.pipelines.pass_report import PipelineListener
from fx.pipelines.rewriting import Edit

Predicate = Callable[[GraphModule], object]
"""A function that returns a true value for a good program; a false value or an exception means a bad one."""

Run = Callable[[GraphModule, int | None, PipelineListener], GraphModule]
"""A function that runs a pipeline on a program with some fuel (None for all edits) and a listener, and returns it."""

_UNANNOUNCED = Edit("before it announced an edit")


@dataclass(frozen=True, slots=True)
class Culprit:
    """The edit that turns a good program into a bad one."""

    pass_name: str
    """Name of the pass that makes it."""
    number: int
    """Number of the edit among those of the pass, from 1."""
    edit: Edit
    """The edit."""
    overall: int
    """Number of the edit among those of the pipeline, from 1: the program is good with ``fuel=overall - 1``."""
    error: Exception | None = None
    """The exception that the pass or the predicate raised after this edit, if any."""

    def __str__(self) -> str:
        return f"edit {self.number} of {self.pass_name}: {self.edit}"


def find_culprit(run: Run, graph_module: GraphModule, predicate: Predicate) -> Culprit | None:
    """Return the edit that breaks ``graph_module``, if any: :meth:`fx.passes.PassPipeline.bisect`.

    Raises :class:`~fx.errors.PassError` if the program is bad before any edit.
    """
    failing = _probe(run, graph_module, predicate, None)
    if failing.is_good:
        return None
    start = _probe(run, graph_module, predicate, 0)
    if not start.is_good:
        reason = (
            f"it raised {type(start.error).__name__}: {start.error}" if start.error else "it returned a false value"
        )
        raise PassError(
            "the program fails before any edit",
            value=f"the predicate {getattr(predicate, '__qualname__', repr(predicate))}",
            why=reason,
            remedy="give a program that the predicate holds for: it is called with the program as its only argument",
        ) from start.error
    low, high = 0, len(failing.edits)
    while high - low > 1:
        middle = (low + high) // 2
        probe = _probe(run, graph_module, predicate, middle)
        if probe.is_good:
            low = middle
        else:
            failing, high = probe, middle
    name, number, edit = failing.edits[high - 1]
    return Culprit(name, number, edit, high, failing.error)


@dataclass(frozen=True, slots=True)
class _Probe:
    """The outcome of one run on a copy."""

    is_good: bool
    edits: list[tuple[str, int, Edit]]
    error: Exception | None


class _EditRecorder(PipelineListener):
    """A listener that records each edit with the name of its pass and its number within that pass."""

    def __init__(self) -> None:
        self.edits: list[tuple[str, int, Edit]] = []
        self.name = ""
        self.count = 0

    def before_pass(self, name: str, graph_module: GraphModule) -> None:
        self.name, self.count = name, 0

    def edit(self, name: str, edit: Edit) -> None:
        self.count += 1
        self.edits.append((name, self.count, edit))


def _probe(run: Run, graph_module: GraphModule, predicate: Predicate, fuel: int | None) -> _Probe:
    recorder = _EditRecorder()
    program = copy.deepcopy(graph_module)
    try:
        program = run(program, fuel, recorder)
    except PassError as error:
        if recorder.count == 0 and recorder.name:
            recorder.edit(recorder.name, _UNANNOUNCED)
        if not recorder.edits:
            raise  # the pipeline refuses the program itself
        return _Probe(False, recorder.edits, error)
    try:
        return _Probe(bool(predicate(program)), recorder.edits, None)
    except Exception as error:
        return _Probe(False, recorder.edits, error)
