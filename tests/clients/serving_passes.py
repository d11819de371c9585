"""Fusions of Inductor's graphs after autograd, as engines that serve language models make them, with wrong twins."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._higher_order_ops.auto_functionalize import auto_functionalized
from torch._inductor.pattern_matcher import PatternMatcherPass, fwd_only, register_replacement
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten


def quantize(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor in 8 bits, with one static scale."""
    if dtype.is_floating_point:
        limits = torch.finfo(dtype)
        return (x / scale).clamp(limits.min, limits.max).to(dtype)
    limits = torch.iinfo(dtype)
    return (x / scale).round().clamp(limits.min, limits.max).to(dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return RMS norm over the last dimension."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """Return the product of the second half and SiLU of the first."""
    half = x.shape[-1] // 2
    return nn.functional.silu(x[..., :half]) * x[..., half:]


class Block(nn.Module):
    """Two norms with different epsilons, of which one adds to the residual, and a gated layer, with 8-bit inputs."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.first, self.second = nn.Parameter(1 + torch.rand(8)), nn.Parameter(1 + torch.rand(8))
        self.mixing, self.up, self.down = (nn.Linear(*sizes, bias=False) for sizes in ((8, 8), (8, 12), (6, 8)))
        self.register_buffer("scale", torch.tensor(0.03))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output and the next residual."""
        mixed = self._linear(self.mixing, rms_norm(x, self.first, 1e-5))
        residual = mixed + residual
        gates = self._linear(self.up, rms_norm(residual, self.second, 1e-6))
        return self._linear(self.down, silu_and_mul(gates)), residual

    def _linear(self, layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return layer(quantize(x, self.scale, self.dtype).to(x.dtype) * self.scale)


class Views(nn.Module):
    """Reshapes and slices, of which some change nothing, and others do."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a tensor with all elements, and one with some."""
        heads = x.reshape(-1, 2, 4).reshape(x.shape[0], 2, 4)
        whole = heads[:, 0:2].reshape(x.shape[0], 2, 4) * 2
        return whole.reshape(-1, 4, 2).reshape(-1, 8) + x[:, :8], whole[:, :1] + whole[:, 1:]


# The fused operators.


@torch.library.custom_op("serving::rms_norm_quantized", mutates_args=())
def rms_norm_quantized(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, epsilon: float, dtype: torch.dtype
) -> torch.Tensor:
    """Normalize and quantize."""
    return quantize(rms_norm(x, weight, epsilon), scale, dtype)


@rms_norm_quantized.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, epsilon: float, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_like(x, dtype=dtype)


@torch.library.custom_op("serving::fused_add_rms_norm_quantized", mutates_args=("result", "residual"))
def fused_add_rms_norm_quantized(
    result: torch.Tensor,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    epsilon: float,
) -> None:
    """Add to the residual in place, and write its norm, quantized, to ``result``."""
    residual += x
    result.copy_(quantize(rms_norm(residual, weight, epsilon), scale, result.dtype))


@torch.library.custom_op("serving::silu_and_mul_quantized", mutates_args=())
def silu_and_mul_quantized(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Multiply by the gate and quantize."""
    return quantize(silu_and_mul(x), scale, dtype)


@silu_and_mul_quantized.register_fake
def _(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2), dtype=dtype)


# The passes.

EPSILONS = (1e-5, 1e-6)


class Fusion:
    """A pass of Inductor that applies patterns, which a subclass registers for int8 and float8."""

    def __init__(self) -> None:
        self.patterns = PatternMatcherPass()
        for dtype in (torch.int8, torch.float8_e4m3fn):
            self.register(dtype)

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Replace the matches."""
        self.patterns.apply(graph)

    def register(self, dtype: torch.dtype) -> None:
        """Register the patterns that end in a quantization to ``dtype``."""
        raise NotImplementedError

    def replace(self, search: Callable[..., Any], replacement: Callable[..., Any], *sizes: tuple[int, ...]) -> None:
        """Register one pattern with inputs of these sizes."""
        register_replacement(search, replacement, [torch.empty(size) for size in sizes], fwd_only, self.patterns)


class FuseNormQuantization(Fusion):
    """RMS norm and the quantization of its result, with a pattern for each of the usual epsilons."""

    def register(self, dtype: torch.dtype) -> None:
        for epsilon in EPSILONS:
            self._register(dtype, epsilon)

    def _register(self, dtype: torch.dtype, epsilon: float) -> None:
        self.replace(
            lambda x, weight, scale: quantize(rms_norm(x, weight, epsilon), scale, dtype),
            lambda x, weight, scale: rms_norm_quantized(x, weight, scale, self.fused_epsilon(epsilon), dtype),
            *((5, 8), (8,), ()),
        )

    def fused_epsilon(self, epsilon: float) -> float:
        """Return the epsilon of the fused operator for that of the layer."""
        return epsilon


class FuseNormQuantizationWithOneEpsilon(FuseNormQuantization):
    """Wrong: the epsilon of the second layer for all."""

    def fused_epsilon(self, epsilon: float) -> float:
        return 1e-6


class FuseAddNormQuantization(Fusion):
    """The sum with the residual, too, which the operator writes in place: its functional form is in the graph."""

    def register(self, dtype: torch.dtype) -> None:
        for epsilon in EPSILONS:
            self._register(dtype, epsilon)

    def _register(self, dtype: torch.dtype, epsilon: float) -> None:
        def search(x: Any, residual: Any, weight: Any, scale: Any) -> Any:
            total = x + residual
            return quantize(rms_norm(total, weight, epsilon), scale, dtype), total

        def replacement(x: Any, residual: Any, weight: Any, scale: Any) -> Any:
            _, result, total = auto_functionalized(
                torch.ops.serving.fused_add_rms_norm_quantized.default,
                result=torch.empty_like(x, dtype=dtype),
                x=x,
                residual=residual,
                weight=weight,
                scale=scale,
                epsilon=epsilon,
            )
            return result, self.returned(residual, total)

        self.replace(search, replacement, (5, 8), (5, 8), (8,), ())

    def returned(self, residual: Any, total: Any) -> Any:
        """Return the next residual."""
        return total


class FuseAddNormQuantizationWithOldResidual(FuseAddNormQuantization):
    """Wrong: the residual before the addition is passed on."""

    def returned(self, residual: Any, total: Any) -> Any:
        return residual.clone()


class FuseGateQuantization(Fusion):
    """SiLU, the product with the other half, and the quantization."""

    def register(self, dtype: torch.dtype) -> None:
        self.replace(
            lambda x, scale: quantize(silu_and_mul(x), scale, dtype),
            lambda x, scale: silu_and_mul_quantized(x, scale, dtype),
            *((5, 12), ()),
        )


def eliminate_noops(graph: torch.fx.Graph) -> None:
    """Remove reshapes of reshapes, and reshapes and slices to the shape of their input."""
    reshapes = (aten.view.default, aten.reshape.default)
    for node in list(graph.nodes):
        if node.target in reshapes and node.args[0].target in reshapes:
            node.update_arg(0, node.args[0].args[0])
        if node.target in (*reshapes, aten.slice.Tensor) and _have_one_shape(node, node.args[0]):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _have_one_shape(first: torch.fx.Node, second: torch.fx.Node) -> bool:
    shapes = first.meta["val"].shape, second.meta["val"].shape
    return len(shapes[0]) == len(shapes[1]) and all(map(statically_known_true, map(operator.eq, *shapes)))
