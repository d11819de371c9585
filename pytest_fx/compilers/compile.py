"""``torch.compile`` with one of its backends."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from pytest_fx.compilers.compiler import Compiler

_AS_EAGER = {"fallback_random": True, "emulate_precision_casts": True}
"""By default Inductor draws other random numbers than eager, and leaves out casts to a half and back, by intention."""


@dataclass(frozen=True)
class Compile(Compiler):
    """Compile by ``torch.compile``."""

    name: ClassVar[str] = "compile"
    keeps_state: ClassVar[bool] = True

    backend: str = "inductor"
    """The backend: ``inductor``, ``aot_eager``, ``aot_eager_decomp_partition``, or another registered one."""
    dynamic: bool = False
    """Whether sizes stay free, instead of being compiled for the sizes of the first call."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """Compile the module. Compilation happens at the first call."""
        # Programs share the code of nn.Module.__call__, whose compilations Dynamo counts. Without a reset, it would
        # fall back to eager after a few programs, and find nothing.
        torch.compiler.reset()
        options: Any = _AS_EAGER if self.backend == "inductor" else None
        compiled: Any = torch.compile(module, backend=self.backend, dynamic=self.dynamic or None, options=options)
        return compiled

    @property
    def recipe(self) -> str:
        """Lines that compile ``model``."""
        dynamic = ", dynamic=True" if self.dynamic else ""
        dynamic += f", options={_AS_EAGER}" if self.backend == "inductor" else ""
        return f"compiled = torch.compile(model, backend={self.backend!r}{dynamic})"


@dataclass(frozen=True)
class CompileToEager(Compile):
    """Capture the joint graph of forward and backward pass by AOTAutograd, and run it without a code generator."""

    name: ClassVar[str] = "aot-eager"

    backend: str = "aot_eager"
    """The backend."""


@dataclass(frozen=True)
class CompileDecomposed(Compile):
    """Capture by AOTAutograd, decompose and partition as for Inductor, and run without a code generator."""

    name: ClassVar[str] = "aot-eager-decomposed"

    backend: str = "aot_eager_decomp_partition"
    """The backend."""


@dataclass(frozen=True)
class CompileByInductor(Compile):
    """Compile by ``torch.compile`` with Inductor."""

    name: ClassVar[str] = "inductor"


@dataclass(frozen=True)
class CompileFrozen(Compile):
    """Compile by Inductor for inference, with parameters as constants (``freezing``)."""

    name: ClassVar[str] = "inductor-frozen"
    keeps_state: ClassVar[bool] = False
    may_change: ClassVar[tuple[str, ...]] = ("gradients",)
    modes: ClassVar[tuple[str, ...]] = ("eval",)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """Compile the module. Inductor freezes parameters only where no gradients are recorded."""
        compiled = super().__call__(module, args, kwargs)
        config: Any = importlib.import_module("torch._inductor.config")

        def call(*args: Any, **kwargs: Any) -> Any:
            with torch.no_grad(), config.patch(freezing=True):
                return compiled(*args, **kwargs)

        return call

    @property
    def recipe(self) -> str:
        """Lines that compile ``model``."""
        return (
            f"torch._inductor.config.freezing = True\ntorch.set_grad_enabled(False)\n"
            f"compiled = torch.compile(model, backend={self.backend!r})"
        )
