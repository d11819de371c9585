"""This library's own lowering, judged like any other compiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

import fx
import fx.lowering
from pytest_fx.compilers.compiler import Compiler


@dataclass(frozen=True)
class OwnLowering(Compiler):
    """Capture by ``fx.symbolic_trace``, and hand the supported parts to a backend by ``fx.lowering.lower``."""

    name: ClassVar[str] = "own-lowering"
    may_change: ClassVar[tuple[str, ...]] = ("gradients", "sizes", "signature", "checks", "tracing")
    modes: ClassVar[tuple[str, ...]] = ("eval",)

    backend: str = "onednn"
    """The name of the backend: ``onednn``, ``openvino`` or ``tensorrt``."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """Capture and lower the module."""
        return fx.lowering.lower(fx.symbolic_trace(module), self.backend, args)

    @property
    def recipe(self) -> str:
        """Lines that lower ``model``."""
        return f"import fx\ncompiled = fx.lower(fx.symbolic_trace(model), {self.backend!r}, args)"
