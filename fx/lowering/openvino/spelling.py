"""Operations that the importer does not take as they are, and what exported programs have in their place.

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
"""An operator that stands for :func:`fx.quantize.arithmetic.quantize` on the way to the importer.

As arithmetic, OpenVINO would not know it for a quantization, and compute what follows in float32."""


def _integers_like(input: Tensor, scale: float, zero_point: int, highest: int) -> Tensor:
    return torch.empty_like(input, dtype=torch.uint8)


torch.library.define(_NAME, "(Tensor input, float scale, int zero_point, int highest) -> Tensor")
torch.library.register_fake(_NAME, _integers_like)


def spell_for_importer(program: GraphModule) -> None:
    """Let the program, in its place, call what the importer takes."""
    for target, spelled in {quantize: _quantize, dequantize: _dequantize, torch.squeeze: _squeeze}.items():
        for node in program.graph.find_nodes(op="call_function", target=target):
            node.target = spelled
    program.recompile()


def _squeeze(input: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Squeeze dimensions of size 1 only: of free sizes OpenVINO merges others into the next one (2026.4)."""
    dims = dim if isinstance(dim, tuple) else (dim,)
    ones = tuple(one for one in dims if input.dim() and input.shape[one] == 1)
    return torch.squeeze(input, ones) if ones else input


def _quantize(input: Tensor, scale: float, zero_point: int, highest: int = 255) -> Tensor:
    return torch.ops.fx_openvino.quantize(input, scale, zero_point, highest)


def _dequantize(input: Tensor, scale: float, zero_point: int, highest: int = 255) -> Tensor:
    return (input.float() - zero_point) * scale


def quantization_extension() -> Any:
    """Return what lets an importer build the operator."""
    return extension(f"{_NAME.replace('::', '.')}.default", _build)


def _build(context: Any) -> list[Any]:
    """The nearest integers, of which there are ``highest + 1``."""
    build: Any = operators()
    scale, zero_point, highest = (context.get_values_from_const_input(place) for place in (1, 2, 3))
    ends = (-zero_point * scale, (highest - zero_point) * scale, 0.0, float(highest))
    bounds = [build.constant(end, dtype=np.float32).output(0) for end in ends]
    rounded = build.fake_quantize(context.get_input(0), *bounds, int(highest) + 1)
    return build.convert(rounded.output(0), "u8").outputs()
