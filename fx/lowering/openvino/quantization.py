"""Programs in the reference form of ``fx.quantize``: OpenVINO computes them on 8-bit integers (section 6.2.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fx.lowering.openvino.network import OpenVINONetwork
from fx.lowering.openvino.predicates import add_converter, takes
from fx.lowering.support import has_constant, has_numbers
from fx.quantize.arithmetic import dequantize, dequantize_channels, quantize


def to_integers(network: OpenVINONetwork, input: Any, scale: float, zero_point: int, highest: int = 255) -> Any:
    """The nearest integers, of which there are ``highest + 1``."""
    ends = (-zero_point * scale, (highest - zero_point) * scale, 0.0, float(highest))
    bounds = [network.value(end) for end in ends]
    return network.value(network.add("fake_quantize", network.value(input), *bounds, highest + 1), torch.uint8)


def to_float_values(network: OpenVINONetwork, input: Any, scale: float, zero_point: int, highest: int = 255) -> Any:
    """Return what integers stand for."""
    shifted = network.add("subtract", network.value(input, torch.float32), network.value(float(zero_point)))
    return network.add("multiply", shifted, network.value(scale))


def to_float_weights(network: OpenVINONetwork, weight: Tensor, scale: Tensor) -> Any:
    """Return what the integers of a weight stand for, with a scale for each channel."""
    by_channel = scale.reshape(-1, *(1,) * (weight.dim() - 1))
    return network.add("multiply", network.value(network.value(weight), torch.float32), network.value(by_channel))


_has_map = has_numbers("scale", "zero_point")
add_converter(quantize, to_integers, takes((torch.float32,), "input"), _has_map)
add_converter(dequantize, to_float_values, takes((torch.uint8,), "input"), _has_map, counts=False)
add_converter(dequantize_channels, to_float_weights, has_constant("weight", "scale"), takes((torch.int8,), "weight"))
