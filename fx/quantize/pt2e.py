"""Quantized programs with the operators of PT2E, which exporters and other runtimes read."""

from __future__ import annotations

import importlib
import operator
from typing import Any

import torch

from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.node import Node
from fx.quantize.arithmetic import dequantize, dequantize_channels, quantize
from fx.quantize.conversion import reference
from fx.quantize.fake_quantization import fake_quantize_dynamic
from fx.quantize.transposed_convolution import swap_channels


def pt2e(prepared: GraphModule) -> GraphModule:
    """Return the program of :func:`~fx.quantize.conversion.reference` with ``torch.ops.quantized_decomposed``.

    ``torch.onnx.export`` makes ``QuantizeLinear`` and ``DequantizeLinear`` of these operators, with weights in int8.
    Backends of ``torch.export`` look for them, too. The results equal those of the reference form. Layers of precision
    ``"dynamic"`` get ``choose_qparams``. ``torch.export`` takes it, ``torch.onnx`` (2.13) does not.

    Args:
        prepared: what :func:`~fx.quantize.preparation.prepare` returned, after it ran on data.

    Raises:
        QuantizationError: it was not prepared, or some of its observers saw nothing; the message lists them.
    """
    importlib.import_module("torch.ao.quantization.fx._decomposed")  # registers the operators
    program = reference(prepared)
    graph = program.graph
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _WRITTEN:
            with graph.inserting_before(node):
                _WRITTEN[node.target](graph, node, **node.kwargs)
            graph.erase_node(node)
    program.recompile()
    return program


def _replace(graph: Graph, node: Node, name: str, *args: Any) -> None:
    operator = getattr(torch.ops.quantized_decomposed, name).default
    node.replace_all_uses_with(graph.call_function(operator, args))


def _quantize(graph: Graph, node: Node, input: Node, scale: float, zero_point: int, highest: int = 255) -> None:
    if highest < 255:  # ONNX has no such bound, and saturates at 255
        input = graph.call_function(torch.clamp, (input,), {"max": (highest - zero_point) * scale})
    _replace(graph, node, "quantize_per_tensor", input, scale, zero_point, 0, highest, torch.uint8)


def _dequantize(graph: Graph, node: Node, input: Node, scale: float, zero_point: int, highest: int = 255) -> None:
    _replace(graph, node, "dequantize_per_tensor", input, scale, zero_point, 0, highest, torch.uint8)


def _dequantize_channels(graph: Graph, node: Node, weight: Node, scale: Node) -> None:
    zeros = graph.call_function(torch.zeros_like, (scale,), {"dtype": torch.int64})
    _replace(graph, node, "dequantize_per_channel", weight, scale, zeros, 0, -127, 127, torch.int8)


def _fake_quantize_dynamic(graph: Graph, node: Node, input: Node, bits: int = 8) -> None:
    operators, highest = torch.ops.quantized_decomposed, 2**bits - 1
    smallest = torch.finfo(torch.float32).eps
    both = graph.call_function(operators.choose_qparams.tensor, (input, 0, highest, smallest, torch.uint8))
    affine = [graph.call_function(operator.getitem, (both, number)) for number in range(2)]
    settings = (*affine, 0, highest, torch.uint8)
    integers = graph.call_function(operators.quantize_per_tensor.tensor, (input, *settings))
    node.replace_all_uses_with(graph.call_function(operators.dequantize_per_tensor.tensor, (integers, *settings)))


def _swap_channels(graph: Graph, node: Node, weight: Node, groups: int) -> None:
    apart = graph.call_method("unflatten", (weight, 0, (groups, -1)))
    swapped = graph.call_method("transpose", (apart, 1, 2))
    node.replace_all_uses_with(graph.call_method("flatten", (swapped, 0, 1)))


_WRITTEN = {
    quantize: _quantize,
    dequantize: _dequantize,
    dequantize_channels: _dequantize_channels,
    fake_quantize_dynamic: _fake_quantize_dynamic,
    swap_channels: _swap_channels,
}
"""The functions of the reference form, each with the function that writes the operator for a call of it."""
