"""The form ``export-pass``: subclasses of ``PassBase`` on the graphs of exported programs, as in ExecuTorch."""

from __future__ import annotations

import contextlib
from typing import Any

import torch.fx
from torch._guards import detect_fake_mode
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
    """Let torch apply the pass and update the signature to the new graph.

    A pass for graph modules in general may add nodes without values in ``meta``, which torch refuses in an exported
    program. These get their values.
    """
    exported = source.exported(level)
    before = Snapshot.of(exported)

    def applied(graph_module: torch.fx.GraphModule) -> Any:
        result = pass_(graph_module)
        _add_values((graph_module if result is None else result.graph_module).graph)
        return result

    return result_of_exported(exported._transform_do_not_use(applied), before)


def _add_values(graph: torch.fx.Graph) -> None:
    """Write the values of nodes that have none into ``meta``, as far as they are known of their arguments."""
    calls = [node for node in graph.nodes if node.op == "call_function" and "val" not in node.meta]
    mode = detect_fake_mode([node.meta.get("val") for node in graph.nodes]) if calls else None
    for node in calls:
        with mode or contextlib.nullcontext(), contextlib.suppress(Exception):
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda read: read.meta["val"])
            node.meta["val"] = node.target(*args, **kwargs)


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
