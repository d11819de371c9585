"""How the plugin turns modules into programs. The one place that names the capture library."""

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
from fx.passes.pipeline import PassPipeline
from pytest_fx.harness.evaluation import Arguments

GraphModule = library.GraphModule


class LeaflessTracer(library.Tracer):
    """Captures through the modules of ``torch.nn`` as well, down to the functions that they call."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Keep no module whole."""
        return False


@dataclass(frozen=True, slots=True)
class Tracing:
    """What is asked for beside the usual way to capture a model."""

    leaves: tuple[str | type[nn.Module], ...] = ()
    """Modules that are leaves: paths, or patterns of them; names of classes, or classes."""
    tracer: Callable[[], Any] | None = None
    """Makes the tracer, ours or one of torch.fx; None for the usual."""
    how: str = "symbolic"
    """The way in, one of :data:`fx.interop.capturing.WAYS`, or ``"auto"`` for the first that takes the model."""

    form: str = "auto"
    """What ``--fx-form`` says: one of :data:`fx.canonical.forms.FORMS` decides on that of exported programs; any other
    leaves it to the pass."""

    def form_for(self, pass_: Any) -> Form:
        """The form in which a pass gets an exported program; what is not a pass, as None, gets functions."""
        if self.form in FORMS:
            return self.form  # type: ignore[return-value]  it is one of them
        if isinstance(pass_, PassPipeline):
            forms = {self.form_for(one) for one in pass_.passes}
            return "aten" if forms == {"aten"} else "functional"
        return (pass_.form if isinstance(pass_, AdaptedPass) else form_of(pass_)) or "functional"

    @property
    def is_usual(self) -> bool:
        """Return whether nothing is asked of symbolic tracing."""
        return not self.leaves and self.tracer is None

    def keeps(self, leaf: str | type[nn.Module], module: nn.Module, path: str) -> bool:
        """Return whether ``leaf`` is a name of ``module``, which is at ``path``."""
        if isinstance(leaf, type):
            return isinstance(module, leaf)
        kinds = type(module).__mro__
        names = {*(kind.__name__ for kind in kinds), *(f"{kind.__module__}.{kind.__name__}" for kind in kinds)}
        return leaf in names or fnmatch.fnmatchcase(path, leaf)

    def trace(self, module: nn.Module, concrete_args: dict[str, Any] | None, *, leafless: bool) -> GraphModule:
        """Return the program of ``module``."""
        tracer = library.Tracer() if self.tracer is None else self.tracer()
        is_leaf = tracer.is_leaf_module

        def is_kept(m: nn.Module, module_qualified_name: str) -> bool:
            if any(self.keeps(leaf, m, module_qualified_name) for leaf in self.leaves):
                return True
            return is_leaf(m, module_qualified_name) and not (leafless and type(m).__module__.startswith("torch.nn."))

        tracer.is_leaf_module = is_kept
        if isinstance(tracer, torch.fx.Tracer):  # whose optional inputs are given, and whose mark is another one
            concrete_args = {name: value for name, value in (concrete_args or {}).items() if value is not library.PH}
        graph = tracer.trace(module, concrete_args or None)
        if isinstance(graph, torch.fx.Graph):
            return from_torch(torch.fx.GraphModule(tracer.root, graph))
        return library.GraphModule(tracer.root, graph)


USUAL = Tracing()
"""Nothing."""


def capture(
    module: nn.Module, arguments: Arguments | None = None, tracing: Tracing = USUAL, *, guided: bool = False
) -> GraphModule:
    """Return the program of ``module``, with which it shares parameters and buffers.

    Parameters of ``forward`` that ``arguments`` leave to their defaults are captured as those: a program for an
    optional argument that nobody gives would compute with it all the same. With ``guided``, ``arguments`` also answer
    what the model asks of shapes and dtypes.
    """
    if guided and arguments is not None:
        examples = example_inputs(module, arguments.args, arguments.kwargs)
        return library.symbolic_trace(module, example_inputs=examples)
    left = _defaults_left(module, arguments)
    return library.symbolic_trace(module, left) if tracing.is_usual else tracing.trace(module, left, leafless=False)


class Captures:
    """The captures of one model: all in the way that took it first; exports are kept, by dtype and form of inputs."""

    def __init__(self, note: str | None = None) -> None:
        """Know nothing of the model yet but what was changed in it to be captured, if anything."""
        self._note = note
        self.record: CaptureRecord | None = None
        """The way that took it; None before the first capture."""
        self._exports: dict[str, ExportedModel] = {}

    def capture(
        self, module: nn.Module, arguments: Arguments | None, tracing: Tracing, pass_: Any = None
    ) -> GraphModule:
        """Return the program of ``module``, a copy of the model, with which it shares parameters and buffers.

        An exported one is in the form in which ``pass_`` knows operations. Raises ``CaptureError`` where no way takes
        the model, or what symbolic tracing raises where that alone is asked for.
        """

        def symbolic() -> Captured:
            return capture(module, arguments, tracing), None, self._note

        def guided() -> Captured:
            return capture(module, arguments or Arguments(), tracing, guided=True), None, self._note

        def exported() -> Captured:
            call = arguments or Arguments()
            key = repr((torch.get_default_dtype(), call.form))  # in float64 indices are what they were
            if key not in self._exports:  # which takes seconds
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
        """Let go of what was exported."""
        self._exports.clear()


def leave_out_caches(module: nn.Module) -> str | None:
    """Let ``module``, a copy of a model, return no cache, with which no output is compared; return a note of that."""
    settings = settings_with_cache(module)
    for config in settings:
        config.use_cache = False
    return NO_CACHE if settings else None


def capture_without_leaves(
    module: nn.Module, arguments: Arguments | None = None, tracing: Tracing = USUAL
) -> GraphModule:
    """Return the program of ``module`` in functions only, but for what is asked to be a leaf.

    Raises ``TraceError`` where a module branches on values.
    """
    if not tracing.is_usual:
        return tracing.trace(module, _defaults_left(module, arguments), leafless=True)
    graph = LeaflessTracer().trace(module, _defaults_left(module, arguments))
    return library.GraphModule(module, graph)


def _defaults_left(module: nn.Module, arguments: Arguments | None) -> dict[str, Any] | None:
    """Return the parameters that a call with ``arguments`` does not give, with their defaults."""
    return None if arguments is None else defaults_left(module, arguments.args, arguments.kwargs)
