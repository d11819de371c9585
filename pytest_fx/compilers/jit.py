"""TorchScript: ``torch.jit.trace``, then ``freeze`` and ``optimize_for_inference``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from pytest_fx.compilers.compiler import COMPUTES_ALONE, Compiler, require_plain

_jit: Any = torch.jit


@dataclass(frozen=True)
class JitTrace(Compiler):
    """Trace by ``torch.jit.trace``, which records the operations of one call with their sizes."""

    name: ClassVar[str] = "jit-trace"
    may_change: ClassVar[tuple[str, ...]] = ("sizes", "signature", "checks", "result")

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """Trace the module. Its own check is off, since the caller compares."""
        if kwargs:
            raise ValueError("torch.jit.trace takes positional arguments")
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            require_plain(module(*(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._optimized(_jit.trace(module, args, check_trace=False))

    def _optimized(self, traced: Any) -> Any:
        """Return the traced program after the compiler's next steps."""
        return traced

    @property
    def recipe(self) -> str:
        """Lines that trace ``model``."""
        return "compiled = torch.jit.trace(model, args, check_trace=False)"


@dataclass(frozen=True)
class JitFreeze(JitTrace):
    """Trace, and freeze parameters and attributes to constants by ``torch.jit.freeze``."""

    name: ClassVar[str] = "jit-freeze"
    may_change: ClassVar[tuple[str, ...]] = (*COMPUTES_ALONE, "result")
    modes: ClassVar[tuple[str, ...]] = ("eval",)

    def _optimized(self, traced: Any) -> Any:
        return _jit.freeze(traced)

    @property
    def recipe(self) -> str:
        """Lines that trace and freeze ``model``."""
        return "compiled = torch.jit.freeze(torch.jit.trace(model, args, check_trace=False))"


@dataclass(frozen=True)
class JitOptimize(JitFreeze):
    """Trace, freeze, and fuse for the CPU by ``torch.jit.optimize_for_inference``."""

    name: ClassVar[str] = "jit-optimize"

    def _optimized(self, traced: Any) -> Any:
        return _jit.optimize_for_inference(_jit.freeze(traced))

    @property
    def recipe(self) -> str:
        """Lines that trace, freeze and optimize ``model``."""
        traced = "torch.jit.trace(model, args, check_trace=False)"
        return f"compiled = torch.jit.optimize_for_inference(torch.jit.freeze({traced}))"
