"""Capture of modules as programs. The plugin chooses the capture library here and nowhere else."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch import nn

import fx as library
from fx.canonical.forms import FIXED, FORMS, Form
from fx.interop import AdaptedPass, from_torch
from fx.interop.capturing import (
    NO_CACHE,
    Captured,
    CaptureRecord,
    defaults_left,
    example_inputs,
    export_model,
    first_way,
)
from fx.interop.exporting import ExportedModel, settings_with_cache
from fx.interop.pass_library import form_of
from fx.pipelines.pipeline import PassPipeline
from pytest_fx.harness.evaluation import Arguments

GraphModule = library.GraphModule


class LeaflessTracer(library.Tracer):
    """A tracer without leaf modules: it traces through ``torch.nn``, down to the functions called there."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return False: no module is a leaf."""
        return False


@dataclass(frozen=True, slots=True)
class Tracing:
    """Options for capturing a model."""

    leaves: tuple[str | type[nn.Module], ...] = ()
    """Additional leaf modules: paths or patterns of paths, names of classes, or classes."""
    tracer: Callable[[], Any] | None = None
    """A function that makes the tracer, ours or one of torch.fx; None for the default tracer."""
    how: str = "symbolic"
    """The method, one of :data:`fx.interop.capturing.WAYS`, or ``"auto"`` for the first that captures the model."""

    form: str = "auto"
    """The value of ``--fx-form``. One of :data:`fx.canonical.forms.FORMS` sets the form of exported programs; with any
    other value, the pass determines it."""

    def form_for(self, pass_: Any) -> Form:
        """Return the form of an exported program for ``pass_``; functional for None and others that are no pass."""
        if self.form in FORMS:
            return self.form  # type: ignore[return-value]  it is one of them
        if isinstance(pass_, PassPipeline):
            forms = {self.form_for(part) for part in pass_.passes}
            return "aten" if forms == {"aten"} else "functional"
        return (pass_.form if isinstance(pass_, AdaptedPass) else form_of(pass_)) or "functional"

    @property
    def is_usual(self) -> bool:
        """True if symbolic tracing uses the default tracer and the default leaves."""
        return not self.leaves and self.tracer is None

    def keeps(self, leaf: str | type[nn.Module], module: nn.Module, path: str) -> bool:
        """Return whether ``leaf`` selects ``module``, whose path is ``path``."""
        if isinstance(leaf, type):
            return isinstance(module, leaf)
        kinds = type(module).__mro__
        names = {*(kind.__name__ for kind in kinds), *(f"{kind.__module__}.{kind.__name__}" for kind in kinds)}
        return leaf in names or fnmatch.fnmatchcase(path, leaf)

    def trace(self, module: nn.Module, concrete_args: dict[str, Any] | None, *, leafless: bool) -> GraphModule:
        """Return the program of ``module``."""
        tracer = library.Tracer() if self.tracer is None else self.tracer()
        is_leaf = tracer.is_leaf_module

        def is_leaf_module(m: nn.Module, module_qualified_name: str) -> bool:
            if any(self.keeps(leaf, m, module_qualified_name) for leaf in self.leaves):
                return True
            return is_leaf(m, module_qualified_name) and not (leafless and type(m).__module__.startswith("torch.nn."))

        tracer.is_leaf_module = is_leaf_module
        if isinstance(tracer, torch.fx.Tracer):  # it does not know our PH; arguments that it does not get are inputs
            concrete_args = {name: value for name, value in (concrete_args or {}).items() if value is not library.PH}
        graph = tracer.trace(module, concrete_args or None)
        if isinstance(graph, torch.fx.Graph):
            return from_torch(torch.fx.GraphModule(tracer.root, graph))
        return library.GraphModule(tracer.root, graph)


USUAL = Tracing()
"""The default options."""


def capture(
    module: nn.Module, arguments: Arguments | None = None, tracing: Tracing = USUAL, *, guided: bool = False
) -> GraphModule:
    """Return the program of ``module``; the two share parameters and buffers.

    Parameters of ``forward`` that ``arguments`` omit are replaced by their defaults: as inputs, the program would
    compute with optional arguments that no call passes. With ``guided``, the shapes and dtypes of ``arguments`` also
    decide what depends on them.
    """
    if guided and arguments is not None:
        examples = example_inputs(module, arguments.args, arguments.kwargs)
        return library.symbolic_trace(module, example_inputs=examples)
    fixed = _defaults_left(module, arguments)
    return library.symbolic_trace(module, fixed) if tracing.is_usual else tracing.trace(module, fixed, leafless=False)


class Captures:
    """The captures of one model, all by the method that worked first. Exports are cached by dtype and input form."""

    def __init__(self, note: str | None = None) -> None:
        """Start without a capture. ``note`` describes a change made to the model so that it can be captured."""
        self._note = note
        self.record: CaptureRecord | None = None
        """The method that worked; None before the first capture."""
        self._exports: dict[str, ExportedModel] = {}

    def capture(
        self, module: nn.Module, arguments: Arguments | None, tracing: Tracing, pass_: Any = None
    ) -> GraphModule:
        """Return the program of ``module``, a copy of the model; the two share parameters and buffers.

        An exported program is in the form that ``pass_`` expects. Raises ``CaptureError`` if every method fails, or
        the error of symbolic tracing if that is the only method requested.
        """

        def symbolic() -> Captured:
            return capture(module, arguments, tracing), None, self._note

        def guided() -> Captured:
            return capture(module, arguments or Arguments(), tracing, guided=True), None, self._note

        def exported() -> Captured:
            call = arguments or Arguments()
            key = repr((torch.get_default_dtype(), call.form))  # integer inputs have the same form in float64
            if key not in self._exports:  # an export takes seconds
                self._exports[key] = export_model(module, call.args, call.kwargs)
            program = self._exports[key].program_for(module, tracing.form_for(pass_))
            program.meta[FIXED] = tracing.form in FORMS
            return program, self._exports[key].batch, self._note

        how = tracing.how if self.record is None else self.record.way
        ways = {"symbolic": symbolic, "guided": guided, "export": exported}
        program, record = first_way(ways, how, type(module).__name__)
        self.record = self.record or record
        return program

    def close(self) -> None:
        """Free the exports."""
        self._exports.clear()


def leave_out_caches(module: nn.Module) -> str | None:
    """Make ``module``, a copy of a model, return no cache, which is never compared; return a note of this change."""
    settings = settings_with_cache(module)
    for config in settings:
        config.use_cache = False
    return NO_CACHE if settings else None


def capture_without_leaves(
    module: nn.Module, arguments: Arguments | None = None, tracing: Tracing = USUAL
) -> GraphModule:
    """Return the program of ``module`` in functions only, except for the leaves that ``tracing`` adds.

    Raises ``TraceError`` if a module branches on values.
    """
    if not tracing.is_usual:
        return tracing.trace(module, _defaults_left(module, arguments), leafless=True)
    graph = LeaflessTracer().trace(module, _defaults_left(module, arguments))
    return library.GraphModule(module, graph)


def _defaults_left(module: nn.Module, arguments: Arguments | None) -> dict[str, Any] | None:
    """Return the parameters of ``forward`` that ``arguments`` omit, with their defaults."""
    return None if arguments is None else defaults_left(module, arguments.args, arguments.kwargs)
