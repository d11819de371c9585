"""The form ``graph``: ``torch.fx.Graph``, as Inductor gives it to its custom passes after autograd."""

from __future__ import annotations

from typing import Any

import torch.fx

from pytest_fx.forms.exported_source import ExportedSource, Level
from pytest_fx.forms.form import Form, FormResult, result_of_exported, with_names_of_graph, written
from pytest_fx.forms.recognition import first_annotation, is_one_of

_CUSTOM = "torch._inductor.custom_graph_pass:CustomGraphPass"


def _recognizes(pass_: Any) -> bool:
    return is_one_of(pass_, _CUSTOM) or first_annotation(pass_) is torch.fx.Graph


def _apply(pass_: Any, source: ExportedSource, level: Level) -> FormResult:
    """Give the graph whose parameters and buffers are inputs, as Inductor has it; an edit in place is the result."""
    exported = source.exported(level)
    before = written(exported)
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
    ("inductor", "decomposed", "exported"),
    laws=("form well formed", "form signature", "form round trips"),
    may_change=("gradients",),
)
"""Passes on graphs alone."""
