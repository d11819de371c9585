"""The form ``backend``: backends of ``torch.compile``."""

from __future__ import annotations

from typing import Any

import torch.fx

from pytest_fx.forms.exported_source import ExportedSource, Level
from pytest_fx.forms.form import Form, FormResult
from pytest_fx.forms.recognition import first_annotation, required


def _apply(pass_: Any, source: ExportedSource, level: Level) -> FormResult:
    """Compile the module with the pass as backend. Dynamo calls it with the captured graphs at the first call."""
    program: Any = torch.compile(source.copied(), backend=pass_)
    return FormResult(program)


BACKEND = Form(
    "backend",
    "(graph_module, example_inputs) of torch.compile, and returns a function",
    lambda pass_: required(pass_) == 2 and first_annotation(pass_) is torch.fx.GraphModule,
    _apply,
    lambda graph_module, example_inputs: graph_module.forward,
    ("exported",),
    is_exported=False,
    imports=("torch._dynamo",),
)
"""Backends of ``torch.compile``."""
