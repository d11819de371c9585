"""``torch.export``: the exported program as it is, and decomposed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from fx.capture.quiet_export import quiet_export
from pytest_fx.compilers.compiler import Compiler


@dataclass(frozen=True)
class Export(Compiler):
    """Export by ``torch.export`` for the sizes of the example."""

    name: ClassVar[str] = "export"
    may_change: ClassVar[tuple[str, ...]] = ("sizes", "signature", "checks")

    strict: bool = False
    """Whether Dynamo captures, instead of a run of the module's own Python code."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """Export the module."""
        with quiet_export():
            return torch.export.export(module, args, kwargs, strict=self.strict).module()

    @property
    def recipe(self) -> str:
        """Lines that export ``model``."""
        return f"compiled = torch.export.export(model, args{', strict=True' if self.strict else ''}).module()"


@dataclass(frozen=True)
class ExportDecomposed(Export):
    """Export by ``torch.export``, and decompose to core ATen by ``run_decompositions()``."""

    name: ClassVar[str] = "export-decomposed"
    may_change: ClassVar[tuple[str, ...]] = (*Export.may_change, "gradients")  # it is the form for inference

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """Export the module, and decompose the program."""
        with quiet_export():
            return torch.export.export(module, args, kwargs, strict=self.strict).run_decompositions().module()

    @property
    def recipe(self) -> str:
        """Lines that export ``model``."""
        strict = ", strict=True" if self.strict else ""
        return f"compiled = torch.export.export(model, args{strict}).run_decompositions().module()"
