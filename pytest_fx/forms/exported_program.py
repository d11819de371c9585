"""The form ``exported-program``: passes on a ``torch.export.ExportedProgram``."""

from __future__ import annotations

from typing import Any

from torch.export import ExportedProgram

from pytest_fx.forms.exported_source import ExportedSource, Level
from pytest_fx.forms.form import Form, FormResult, Snapshot, called_as_module, result_of_exported
from pytest_fx.forms.recognition import first_annotation


def _apply(pass_: Any, source: ExportedSource, level: Level) -> FormResult:
    exported = source.exported(level)
    before = Snapshot.of(exported)
    returned = pass_(exported)
    returned = exported if returned is None else returned
    if not isinstance(returned, ExportedProgram):
        return FormResult(called_as_module(returned), nodes_before=len(before.nodes))
    return result_of_exported(returned, before)


EXPORTED_PROGRAM = Form(
    "exported-program",
    "what torch.export.export returns, an ExportedProgram, and returns one, or edits it",
    lambda pass_: first_annotation(pass_) is ExportedProgram,
    _apply,
    lambda exported: exported,
    laws=("form well formed", "form signature", "form round trips", "decomposes again"),
)
"""Passes on exported programs."""
