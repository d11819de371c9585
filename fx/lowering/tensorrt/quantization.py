"""TensorRT's converters for quantized programs in the reference form: layers that quantize and dequantize.

TensorRT stores int8 centred about zero, quantized programs store uint8 with a zero point. An engine stores
``whole - zero_point``. This fits int8 in programs that were quantized with ``symmetric=True``, but not in others.
"""

from __future__ import annotations

from typing import Any

import torch

from fx.lowering.known_program import Operation
from fx.lowering.support import has_constant
from fx.lowering.tensorrt.activations import clamp
from fx.lowering.tensorrt.library import trt_dtype
from fx.lowering.tensorrt.network import TensorRTNetwork
from fx.lowering.tensorrt.predicates import is_one_of, register, takes_floats
from fx.node import Node
from fx.quantize import arithmetic

_LEAST, _MOST = -128, 127


def quantize(network: TensorRTNetwork, input: Any, scale: float, zero_point: int, highest: int = 255) -> Any:
    """Quantize to integers, which are stored centred about zero."""
    low, high = -zero_point, highest - zero_point
    tensor = network.cast(network.tensor(input), torch.float32)
    if (low, high) != (_LEAST, _MOST):
        tensor = clamp(network, tensor, low * scale, high * scale)
    return network.add("quantize", tensor, _scale(network, scale), trt_dtype(torch.int8))


def dequantize(network: TensorRTNetwork, input: Any, scale: float, zero_point: int, highest: int = 255) -> Any:
    """Convert integers back to their float values."""
    result = network.add("dequantize", input, _scale(network, scale), trt_dtype(torch.float32))
    return network.cast(result, network.working(torch.float32))


def dequantize_channels(network: TensorRTNetwork, weight: Any, scale: Any) -> Any:
    """Convert a weight, which is stored with a scale for each channel, back to its float values."""
    stored, steps = network.tensor(weight), network.tensor(scale, torch.float32)
    result = network.add("dequantize", stored, steps, trt_dtype(torch.float32), axis=0)
    return network.cast(result, network.working(torch.float32))


def _scale(network: TensorRTNetwork, scale: float) -> Any:
    return network.tensor(torch.tensor(scale), torch.float32)


def _stores(operation: Operation) -> str | None:
    """Accept a quantization whose integers, centred about zero, all fit int8."""
    arguments = operation.arguments
    zero_point, highest = arguments["zero_point"], arguments.get("highest", 255)
    if zero_point > -_LEAST or highest - zero_point > _MOST:
        return "TensorRT stores integers about zero: quantize with symmetric=True"
    return None


def _is_stored_by_engine(operation: Operation) -> str | None:
    stored = operation.arguments.get("input")
    if not isinstance(stored, Node) or stored.target is not arithmetic.quantize:
        return "its integers are not the result of a quantization"
    settings = ("scale", "zero_point", "highest")
    if any(stored.kwargs.get(name) != operation.arguments.get(name) for name in settings):
        return "its integers were quantized with another scale or zero point"
    return _stores(operation.subject.operation(stored))


_numbers = is_one_of(scale=float, zero_point=int)
register(arithmetic.quantize, quantize, takes_floats("input"), _numbers, _stores, counts=0, stored=True)
register(arithmetic.dequantize, dequantize, _numbers, _is_stored_by_engine, counts=0, stored=True)
register(arithmetic.dequantize_channels, dequantize_channels, has_constant("weight", "scale"), counts=0, stored=True)
