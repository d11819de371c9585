"""The form ``aten``: passes on a ``torch.fx.GraphModule`` from ``torch.export``, in ATen operators."""

from __future__ import annotations

from typing import Any

from fx.interop.pass_library import is_for_ours
from pytest_fx.forms.exported_source import ExportedSource, Level
from pytest_fx.forms.form import Form, FormResult, Snapshot, result_of_module
from pytest_fx.forms.recognition import required, takes_module, uses_aten


def _recognizes(pass_: Any) -> bool:
    return takes_module(pass_) and required(pass_) <= 1 and uses_aten(pass_) and not is_for_ours(pass_)


def _apply(pass_: Any, source: ExportedSource, level: Level) -> FormResult:
    graph_module = source.graph_module(level)
    before = Snapshot.of(graph_module)
    return result_of_module(graph_module, pass_(graph_module), before)


ATEN = Form(
    "aten",
    "the torch.fx.GraphModule of torch.export, ep.module(), and returns it, or nothing",
    _recognizes,
    _apply,
    lambda graph_module: graph_module,
    ("exported", "decomposed", "inductor", "fixed"),
    laws=("form well formed", "form signature", "form round trips"),
)
"""Passes on graph modules of ATen operators."""
