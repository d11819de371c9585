"""The form ``module``: any callable from a module to a replacement that can be called."""

from __future__ import annotations

from typing import Any

from torch import nn

from fx.interop.pass_library import is_for_ours, is_for_torch
from pytest_fx.forms.exported_source import ExportedSource, Level
from pytest_fx.forms.form import Form, FormResult, called_as_module, without_flag
from pytest_fx.forms.recognition import first_annotation, required


def _apply(pass_: Any, source: ExportedSource, level: Level) -> FormResult:
    module = source.copied()
    returned = pass_(module)
    return FormResult(called_as_module(module if returned is None else without_flag(returned)))


def _recognizes(pass_: Any) -> bool:
    """Return whether a pass is annotated to take modules, and does not use the graph programs of either library."""
    takes_modules = first_annotation(pass_) is nn.Module and required(pass_) == 1
    return takes_modules and not is_for_torch(pass_) and not is_for_ours(pass_)


MODULE = Form(
    "module",
    "the torch.nn.Module itself, and returns something to call in its place",
    _recognizes,
    _apply,
    lambda module: module,
    ("exported",),
    is_exported=False,
)
"""Passes on modules as the user wrote them."""
