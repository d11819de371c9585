"""The form ``export-pass``: subclasses of ``PassBase`` on the graphs of exported programs, as in ExecuTorch."""

from __future__ import annotations

from typing import Any

from torch.fx.passes.infra.pass_base import PassBase, PassResult

from fx.interop.pass_library import is_for_ours
from pytest_fx.forms.exported_source import ExportedSource, Level
from pytest_fx.forms.form import Form, FormResult, Snapshot, result_of_exported
from pytest_fx.forms.recognition import uses_aten


def _recognizes(pass_: Any) -> bool:
    """Return whether a pass is a ``PassBase`` that interprets programs by operator, or that uses ATen operators."""
    is_interpreter = callable(getattr(pass_, "call_operator", None))
    return isinstance(pass_, PassBase) and (is_interpreter or uses_aten(pass_)) and not is_for_ours(pass_)


def _apply(pass_: Any, source: ExportedSource, level: Level) -> FormResult:
    """Let torch apply the pass and update the signature to the new graph."""
    exported = source.exported(level)
    before = Snapshot.of(exported)
    return result_of_exported(exported._transform_do_not_use(pass_), before)


class _Identity(PassBase):
    def call(self, graph_module: Any) -> PassResult:
        return PassResult(graph_module, False)


EXPORT_PASS = Form(
    "export-pass",
    "the graph module of an ExportedProgram, by ep._transform_do_not_use(pass_): a subclass of PassBase or ExportPass",
    _recognizes,
    _apply,
    _Identity(),
    laws=("form well formed", "form signature", "form round trips", "decomposes again"),
)
"""Passes of ``torch.export`` and ExecuTorch."""
