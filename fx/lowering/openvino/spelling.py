"""Replacements in exported programs for operations that the importer does not take as they are.

Programs in the reference form of ``fx.quantize`` are computed on 8-bit integers (section 6.2.1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fx.graph_module import GraphModule
from fx.lowering.openvino.package import extension, operators
from fx.quantize.arithmetic import dequantize, quantize

_NAME = "fx_openvino::quantize"
"""The operator that represents :func:`fx.quantize.arithmetic.quantize` in programs for the importer.

OpenVINO would not recognize its arithmetic as a quantization, and would compute the operations behind it in float32."""


def _integers_like(input: Tensor, scale: float, zero_point: int, highest: int) -> Tensor:
    return torch.empty_like(input, dtype=torch.uint8)


torch.library.define(_NAME, "(Tensor input, float scale, int zero_point, int highest) -> Tensor")
torch.library.register_fake(_NAME, _integers_like)


def spell_for_importer(program: GraphModule) -> None:
    """Replace, in place, the functions that the importer does not take as they are."""
    for target, replacement in {quantize: _quantize, dequantize: _dequantize, torch.squeeze: _squeeze}.items():
        for node in program.graph.find_nodes(op="call_function", target=target):
            node.target = replacement
    program.recompile()


def _squeeze(input: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Squeeze only dimensions of size 1: OpenVINO (2026.4) merges others, if sizes are free, into the next one."""
    dims = dim if isinstance(dim, tuple) else (dim,)
    removed = tuple(number for number in dims if input.dim() and input.shape[number] == 1)
    return torch.squeeze(input, removed) if removed else input


def _quantize(input: Tensor, scale: float, zero_point: int, highest: int = 255) -> Tensor:
    return torch.ops.fx_openvino.quantize(input, scale, zero_point, highest)


def _dequantize(input: Tensor, scale: float, zero_point: int, highest: int = 255) -> Tensor:
    return (input.float() - zero_point) * scale


def quantization_extension() -> Any:
    """Return the extension that makes an importer build the operator."""
    return extension(f"{_NAME.replace('::', '.')}.default", _build)


def _build(context: Any) -> list[Any]:
    """Build the rounding to the nearest of ``highest + 1`` integers."""
    build: Any = operators()
    scale, zero_point, highest = (context.get_values_from_const_input(place) for place in (1, 2, 3))
    ends = (-zero_point * scale, (highest - zero_point) * scale, 0.0, float(highest))
    bounds = [build.constant(end, dtype=np.float32).output(0) for end in ends]
    rounded = build.fake_quantize(context.get_input(0), *bounds, int(highest) + 1)
    return build.convert(rounded.output(0), "u8").outputs()
