"""The passes of torch.fx and the FX flow of torch.ao, on torch.fx's own symbolic traces."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from fx.passes import Approximate, Contract
from pytest_fx.compilers.compiler import Compiler

LEAST_SQNR = 20.0
"""The contract of quantization to 8 bits, in decibels."""
_SPECIALIZED = ("signature", "checks", "tracing")
_CONSTANT = ("gradients", *_SPECIALIZED)


@dataclass(frozen=True)
class TorchFxPass(Compiler):
    """Trace by ``torch.fx.symbolic_trace``, and apply a pass of torch.fx."""

    name: ClassVar[str] = "torch-fx"
    keeps_blocks: ClassVar[bool] = False
    may_change: ClassVar[tuple[str, ...]] = _SPECIALIZED

    pass_: Literal[
        "none", "normalize-operators", "merge-matmul", "normalize-args", "split-module", "common-subexpressions"
    ] = "none"
    """The pass; ``none`` only traces."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """Trace the module, and apply the pass."""
        names: dict[str, Any] = {}
        exec(self.recipe, {"torch": torch, "model": module, "args": args}, names)
        return names["compiled"]

    @property
    def recipe(self) -> str:
        """Lines that trace and transform ``model``."""
        return _RECIPES[self.pass_]


_RECIPES = {
    "none": "compiled = torch.fx.symbolic_trace(model)",
    "normalize-operators": (
        "from torch.fx.experimental.normalize import NormalizeOperators\n"
        "compiled = NormalizeOperators(torch.fx.symbolic_trace(model)).transform()"
    ),
    "normalize-args": (
        "from torch.fx.experimental.normalize import NormalizeArgs\n"
        "compiled = NormalizeArgs(torch.fx.symbolic_trace(model)).transform()"
    ),
    "merge-matmul": (
        "from torch.fx.experimental.merge_matmul import merge_matmul\ncompiled = merge_matmul(model)"
    ),
    "split-module": (
        "from torch.fx.passes.split_module import split_module\n"
        "traced = torch.fx.symbolic_trace(model)\n"
        "number = {node: i % 2 for i, node in enumerate(traced.graph.nodes)}\n"
        "compiled = split_module(traced, model, lambda node: int(list(number).index(node) > len(number) // 2))"
    ),
    "common-subexpressions": (
        "from torch.fx.passes.dialect.common.cse_pass import CSEPass\n"
        "compiled = CSEPass()(torch.export.export(model, args).module()).graph_module"
    ),
}  # fmt: skip


@dataclass(frozen=True)
class TorchFxFuse(Compiler):
    """Fold batch norms into convolutions by ``torch.fx.experimental.optimization.fuse``."""

    name: ClassVar[str] = "torch-fx-fuse"
    keeps_blocks: ClassVar[bool] = False
    may_change: ClassVar[tuple[str, ...]] = _CONSTANT
    modes: ClassVar[tuple[str, ...]] = ("eval",)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """Trace and fuse the module."""
        return importlib.import_module("torch.fx.experimental.optimization").fuse(module)

    @property
    def recipe(self) -> str:
        """Lines that fuse ``model``."""
        return "from torch.fx.experimental.optimization import fuse\ncompiled = fuse(model)"


@dataclass(frozen=True)
class AoFuse(Compiler):
    """Fuse layers by ``torch.ao.quantization.quantize_fx.fuse_fx``."""

    name: ClassVar[str] = "ao-fuse"
    keeps_blocks: ClassVar[bool] = False
    may_change: ClassVar[tuple[str, ...]] = _CONSTANT
    modes: ClassVar[tuple[str, ...]] = ("eval",)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """Trace and fuse the module."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("torch.ao.quantization.quantize_fx").fuse_fx(module)

    @property
    def recipe(self) -> str:
        """Lines that fuse ``model``."""
        return "from torch.ao.quantization.quantize_fx import fuse_fx\ncompiled = fuse_fx(model)"


@dataclass(frozen=True)
class AoQuantize(Compiler):
    """Quantize to 8 bits by ``prepare_fx``, a calibration on the example, and ``convert_fx``."""

    name: ClassVar[str] = "ao-quantize"
    contract: ClassVar[Contract] = Approximate(LEAST_SQNR)
    keeps_blocks: ClassVar[bool] = False
    may_change: ClassVar[tuple[str, ...]] = _CONSTANT
    modes: ClassVar[tuple[str, ...]] = ("eval",)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """Prepare, calibrate and convert the module."""
        quantization: Any = importlib.import_module("torch.ao.quantization")
        flow: Any = importlib.import_module("torch.ao.quantization.quantize_fx")
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            prepared = flow.prepare_fx(module, quantization.get_default_qconfig_mapping(), args)
            prepared(*args, **kwargs)
            return flow.convert_fx(prepared)

    @property
    def recipe(self) -> str:
        """Lines that quantize ``model``."""
        return (
            "from torch.ao.quantization import get_default_qconfig_mapping\n"
            "from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx\n"
            "prepared = prepare_fx(model, get_default_qconfig_mapping(), args)\n"
            "prepared(*args)\n"
            "compiled = convert_fx(prepared)"
        )
