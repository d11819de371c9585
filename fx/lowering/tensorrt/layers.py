"""Layers of a network, read back from TensorRT as plain records.

The records hold the values that TensorRT stored, so a wrong value of a converter shows in them. They need no package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fx.errors import LoweringError
from fx.lowering.tensorrt.library import library, torch_dtype
from fx.lowering.tensorrt.network import TensorRTNetwork

_WINDOW = ("stride_nd", "num_groups", "pre_padding", "post_padding", "dilation_nd", "num_output_maps", "kernel_size_nd")
_ATTENTION = ("norm_op", "causal_kind")
_LAYERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "ACTIVATION": ("Activation", ("type", "alpha", "beta")),
    "ATTENTION_INPUT": ("AttentionInput", ()),
    "ATTENTION_OUTPUT": ("AttentionOutput", ()),
    "CAST": ("Cast", ("to_type",)),
    "CONCATENATION": ("Concatenation", ("axis",)),
    "CONSTANT": ("Constant", ("shape",)),
    "CONVOLUTION": ("Convolution", _WINDOW),
    "CUMULATIVE": ("Cumulative", ("op", "exclusive", "reverse")),
    "DECONVOLUTION": ("Deconvolution", _WINDOW),
    "DEQUANTIZE": ("Dequantize", ("axis",)),
    "EINSUM": ("Einsum", ("equation",)),
    "ELEMENTWISE": ("ElementWise", ("op",)),
    "GATHER": ("Gather", ("axis", "mode", "num_elementwise_dims")),
    "GRID_SAMPLE": ("GridSample", ("interpolation_mode", "align_corners", "sample_mode")),
    "IDENTITY": ("Identity", ()),
    "ITERATOR": ("Iterator", ("axis", "reverse")),
    "LOOP_OUTPUT": ("LoopOutput", ("axis", "kind")),
    "MATRIX_MULTIPLY": ("MatrixMultiply", ("op0", "op1")),
    "NORMALIZATION": ("Normalization", ("axes", "epsilon", "num_groups")),
    "PARAMETRIC_RELU": ("ParametricReLU", ()),
    "POOLING": ("Pooling", (
        "type", "window_size_nd", "stride_nd", "padding_nd", "padding_mode", "average_count_excludes_padding")),
    "QUANTIZE": ("Quantize", ("axis",)),
    "RECURRENCE": ("Recurrence", ()),
    "REDUCE": ("Reduce", ("op", "axes", "keep_dims")),
    "RESIZE": ("Resize", (
        "resize_mode", "coordinate_transformation", "nearest_rounding", "selector_for_single_pixel", "cubic_coeff",
        "scales", "shape", "exclude_outside")),
    "SCATTER": ("Scatter", ("axis", "mode")),
    "SELECT": ("Select", ()),
    "SHAPE": ("Shape", ()),
    "SHUFFLE": ("Shuffle", ("first_transpose", "reshape_dims", "second_transpose", "zero_is_placeholder")),
    "SLICE": ("Slice", ("start", "shape", "stride", "mode")),
    "SOFTMAX": ("SoftMax", ("axes",)),
    "TOPK": ("TopK", ("op", "k", "axes")),
    "TRIP_LIMIT": ("TripLimit", ("kind",)),
    "UNARY": ("Unary", ("op",)),
}  # fmt: skip
"""For each type of layer, TensorRT's class for it and the settings to read."""
_OF_LOOPS = ("ITERATOR", "LOOP_OUTPUT", "RECURRENCE", "TRIP_LIMIT")
"""The types of layers on the boundary of a loop, whose name is one more of their settings."""
_WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "CONSTANT": ("weights",), "CONVOLUTION": ("kernel", "bias"), "DECONVOLUTION": ("kernel", "bias"),
}  # fmt: skip
"""The weights that a layer holds, in the order in which the method that adds it takes them."""


@dataclass(frozen=True, slots=True)
class LayerOutput:
    """A result of a layer."""

    name: str
    """Its name in the network."""
    dtype: torch.dtype
    """The type of its elements."""
    shape: tuple[int, ...]
    """Its sizes; -1 for those that vary."""


@dataclass(frozen=True, slots=True, eq=False)
class EngineLayer:
    """A layer of a network, as TensorRT stores it."""

    kind: str
    """Its type, such as ``"CONVOLUTION"``."""
    name: str
    """Its name, which contains the name of the operation that it belongs to."""
    settings: Mapping[str, Any]
    """Its settings, by TensorRT's names; members of enumerations are their names, dimensions are tuples."""
    weights: Mapping[str, Tensor]
    """The weights that it holds, by TensorRT's names, as flat tensors. Missing ones are left out."""
    inputs: tuple[str | None, ...]
    """The names of its inputs; ``None`` for an input that is not used."""
    outputs: tuple[LayerOutput, ...]
    """Its results."""


def read_layers(network: TensorRTNetwork) -> tuple[EngineLayer, ...]:
    """Return the layers of a network in order, which is an order of computation.

    Raises:
        LoweringError: a layer is of a type that is not read.
    """
    definition = network.definition
    return tuple(_read(network, definition.get_layer(number)) for number in range(definition.num_layers))


def _read(network: TensorRTNetwork, layer: Any) -> EngineLayer:
    kind: str = layer.type.name
    if kind not in _LAYERS:
        node = network.node_of(layer.name)
        where = None if node is None else node.source
        raise LoweringError(f"layers of the type {kind} are not emulated", where=where, value=layer.name)
    class_name, names = _LAYERS[kind]
    layer.__class__ = getattr(library(), f"I{class_name}Layer")  # the library returns all layers as ILayer
    settings = {name: _plain(getattr(layer, name)) for name in names}
    if kind == "ATTENTION_INPUT":
        settings = {name: _plain(getattr(layer.attention, name, None)) for name in _ATTENTION}
    if kind in _OF_LOOPS:
        settings["loop"] = layer.loop.name
    inputs = [layer.get_input(number) for number in range(layer.num_inputs)]
    outputs = [layer.get_output(number) for number in range(layer.num_outputs)]
    return EngineLayer(
        kind,
        layer.name,
        settings,
        _weights(network, layer, _WEIGHTS.get(kind, ())),
        tuple(None if tensor is None else tensor.name for tensor in inputs),
        tuple(LayerOutput(tensor.name, torch_dtype(tensor.dtype), tuple(tensor.shape)) for tensor in outputs),
    )


def _plain(value: Any) -> Any:
    """Return a setting without the library's classes."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    trt = library()
    if isinstance(value, (trt.Dims, trt.Permutation, tuple, list)):
        return tuple(value)
    return value.name


def _weights(network: TensorRTNetwork, layer: Any, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the weights of a layer that it has.

    Where the program computes in float64, TensorRT stores float32. The weights of the program are returned then, after
    a comparison of what TensorRT stores with their rounded values.
    """
    weights: dict[str, Tensor] = {}
    for name, pair in zip(names, network.weights_of.get(layer.name, ()), strict=False):
        if pair is None:
            continue
        original, values = pair[0], pair[1].reshape(-1)
        if values.dtype is torch.bfloat16:  # numpy, in whose form TensorRT returns weights, has no such type
            weights[name] = values.clone()
            continue
        stored = torch.from_numpy(getattr(layer, name)).reshape(-1).clone()
        if network.is_wide and values.dtype is torch.float32:
            assert torch.equal(stored.nan_to_num(), values.nan_to_num()), (layer.name, name)
            stored = original.reshape(-1).to("cpu", torch.float64, copy=True)
        weights[name] = stored
    return weights
