"""The form ``graph``: passes on a ``torch.fx.Graph``, as Inductor's custom passes after autograd."""

from __future__ import annotations

from typing import Any

import torch.fx

from pytest_fx.forms.exported_source import ExportedSource, Level
from pytest_fx.forms.form import Form, FormResult, Snapshot, result_of_exported, with_names_of_graph
from pytest_fx.forms.recognition import first_annotation
from pytest_fx.named_objects import is_one_of

_CUSTOM = "torch._inductor.custom_graph_pass:CustomGraphPass"


def _recognizes(pass_: Any) -> bool:
    return is_one_of(pass_, _CUSTOM) or first_annotation(pass_) is torch.fx.Graph


def _apply(pass_: Any, source: ExportedSource, level: Level) -> FormResult:
    """Apply the pass to the graph of the exported program, which has parameters and buffers as inputs, as in Inductor.

    The pass edits it in place, or returns another graph.
    """
    exported = source.exported(level)
    before = Snapshot.of(exported)
    returned = pass_(exported.graph)
    if isinstance(returned, torch.fx.Graph):
        exported.graph_module.graph = returned
    return result_of_exported(with_names_of_graph(exported), before)


GRAPH = Form(
    "graph",
    "the torch.fx.Graph of a decomposed program, and edits it: Inductor's post_grad_custom_post_pass and its like",
    _recognizes,
    _apply,
    lambda graph: None,
    ("inductor", "decomposed", "exported", "fixed"),
    laws=("form well formed", "form signature", "form round trips"),
    may_change=("gradients",),
)
"""Passes on bare graphs."""
