"""Layers with weights: convolutions, products, normalization, embeddings, and recurrent ones."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx.lowering.known_program import Operation
from fx.lowering.openvino.network import OpenVINONetwork
from fx.lowering.openvino.predicates import add_converter, computes, takes
from fx.lowering.support import all_of, any_of, has_constant, has_numbers, has_rank, has_values, where
from fx.node import Node
from fx.quantize.arithmetic import dequantize_channels

_FLOAT = computes(torch.float32)
_INDICES = (torch.int64, torch.int32)


# Convolutions.


def convolve(
    network: OpenVINONetwork, input: Any, weight: Any, bias: Tensor | None, stride: Any, padding: Any, dilation: Any,
    groups: int,
) -> Any:  # fmt: skip
    """A convolution over one to three dimensions."""
    settings = (list(stride), list(padding), list(padding), list(dilation))
    kernel, name = _by_group(network, weight, groups), "group_convolution" if groups > 1 else "convolution"
    return add_bias(network, network.add(name, network.value(input), kernel, *settings), bias, len(stride))


def convolve_back(
    network: OpenVINONetwork, input: Any, weight: Any, bias: Tensor | None, stride: Any, padding: Any,
    output_padding: Any, groups: int, dilation: Any,
) -> Any:  # fmt: skip
    """A transposed convolution over one to three dimensions."""
    name = "group_convolution_backprop_data" if groups > 1 else "convolution_backprop_data"
    result = network.add(
        name,
        network.value(input),
        _by_group(network, weight, groups),
        strides=list(stride),
        pads_begin=list(padding),
        pads_end=list(padding),
        dilations=list(dilation),
        output_padding=list(output_padding),
    )
    return add_bias(network, result, bias, len(stride))


def _by_group(network: OpenVINONetwork, weight: Any, groups: int) -> Any:
    """A weight with a dimension for groups, if there are several."""
    if groups == 1:
        return network.value(weight)
    if isinstance(weight, Tensor):
        return network.value(weight.unflatten(0, (groups, -1)))
    channels, *rest = network.sizes(weight)
    return network.add("reshape", weight, network.numbers((groups, channels // groups, *rest)), False)


def add_bias(network: OpenVINONetwork, value: Any, bias: Tensor | None, dimensions: int) -> Any:
    """Add a number by channel, behind which there are so many dimensions."""
    if bias is None:
        return value
    return network.add("add", value, network.value(bias.reshape(1, -1, *(1,) * dimensions)))


def _is_quantized(operation: Operation) -> bool:
    weight = operation.arguments.get("weight")
    return isinstance(weight, Node) and weight.target is dequantize_channels


_has_weight = any_of(has_constant("weight"), where(_is_quantized, "it is not quantized"))
_has_weights = all_of(_has_weight, has_constant("bias", optional=True), _FLOAT)
for _dimensions, _forward, _backward in (
    (1, F.conv1d, F.conv_transpose1d), (2, F.conv2d, F.conv_transpose2d), (3, F.conv3d, F.conv_transpose3d),
):  # fmt: skip
    _settings = (_has_weights, has_numbers("stride", "padding", "dilation"), has_rank("input", _dimensions + 2))
    _is_tuple = where(
        lambda operation: all(isinstance(operation.arguments.get(name), tuple) for name in ("stride", "padding")),
        "its padding or stride has no fixed numbers",
    )
    add_converter(_forward, convolve, *_settings, _is_tuple)
    add_converter(_backward, convolve_back, *_settings, _is_tuple)


# Products.


def multiply(network: OpenVINONetwork, input: Any, weight: Any, bias: Any) -> Any:
    """A linear layer."""
    product = network.add("matmul", network.value(input), network.value(weight), False, True)
    return product if bias is None else network.add("add", product, network.value(bias))


def matmul(network: OpenVINONetwork, left: Any, right: Any) -> Any:
    """A product of matrices."""
    return network.add("matmul", network.value(left), network.value(right), False, False)


def add_product(network: OpenVINONetwork, input: Any, left: Any, right: Any, **_: Any) -> Any:
    """A product of matrices, plus something."""
    return network.add("add", matmul(network, left, right), network.value(input))


add_converter(F.linear, multiply, _FLOAT, has_rank("weight", 2))
add_converter(operator.matmul, matmul, _FLOAT)
for _target in (torch.bmm, torch.mm):
    add_converter(_target, lambda network, *, input, mat2: matmul(network, input, mat2), _FLOAT)
add_converter(
    torch.addmm,
    lambda network, input, mat1, mat2, **_: add_product(network, input, mat1, mat2),
    _FLOAT,
    has_values(beta=1, alpha=1),
)
add_converter(
    torch.baddbmm,
    lambda network, input, batch1, batch2, **_: add_product(network, input, batch1, batch2),
    _FLOAT,
    has_values(beta=1, alpha=1),
)


def attend(
    network: OpenVINONetwork, query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool,
    scale: float | None, enable_gqa: bool,
) -> Any:  # fmt: skip
    """Attention by scaled products."""
    operands = [network.value(one) for one in (query, key, value, *(() if attn_mask is None else (attn_mask,)))]
    if scale is not None:
        operands += [network.value(0.0)] if attn_mask is None else []
        operands.append(network.value(float(scale)))
    return network.add("scaled_dot_product_attention", *operands, causal=is_causal)


add_converter(
    F.scaled_dot_product_attention,
    attend,
    takes((torch.float32,), "query", "key", "value"),
    has_values(dropout_p=0.0, enable_gqa=False),
    has_numbers("scale", optional=True),
    has_rank("query", 3, 4),
    where(
        lambda operation: not (operation.arguments.get("is_causal") and operation.arguments.get("attn_mask")),
        "it has two masks",
    ),
)


# Normalization.


def normalize_batch(
    network: OpenVINONetwork, input: Any, running_mean: Tensor, running_var: Tensor, weight: Tensor | None,
    bias: Tensor | None, training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    """A batch norm in evaluation mode."""
    scale = torch.ones_like(running_var) if weight is None else weight
    shift = torch.zeros_like(running_mean) if bias is None else bias
    constants = [network.value(one) for one in (scale, shift, running_mean, running_var)]
    return network.add("batch_norm_inference", network.value(input), *constants, eps)


def normalize_layer(
    network: OpenVINONetwork, input: Any, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> Any:
    """A layer norm."""
    axes = network.numbers(range(-len(normalized_shape), 0))
    result = network.add("mvn", network.value(input), axes, True, eps, "inside_sqrt")
    if weight is not None:
        result = network.add("multiply", result, network.value(weight))
    return result if bias is None else network.add("add", result, network.value(bias))


def normalize_group(
    network: OpenVINONetwork, input: Any, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    """A group norm."""
    channels = network.size(input, 1)
    scale = torch.ones(channels) if weight is None else weight
    shift = torch.zeros(channels) if bias is None else bias
    operands = [network.value(one) for one in (input, scale, shift)]
    return network.add("group_normalization", *operands, num_groups, eps)


add_converter(
    F.batch_norm,
    normalize_batch,
    _FLOAT,
    has_values(training=False),
    has_constant("running_mean", "running_var"),
    has_constant("weight", "bias", optional=True),
)
add_converter(F.layer_norm, normalize_layer, _FLOAT, has_numbers("eps", "normalized_shape"))
add_converter(
    F.group_norm, normalize_group, _FLOAT, has_constant("weight", "bias", optional=True), has_numbers("num_groups")
)


# Embeddings.


def embed(network: OpenVINONetwork, input: Any, weight: Any, **_: Any) -> Any:
    """Rows of a table."""
    return network.add("gather", network.value(weight), network.value(input), network.value(0, torch.int64))


def embed_bags(network: OpenVINONetwork, input: Any, weight: Any, mode: str, **_: Any) -> Any:
    """Sums or means of rows of a table, where all bags have the same size."""
    return network.add(f"reduce_{mode}", embed(network, input, weight), network.numbers([1]), False)


_is_table = all_of(takes((torch.float32,), "weight"), takes(_INDICES, "input"), has_values(max_norm=None))
add_converter(F.embedding, embed, _is_table)
add_converter(
    F.embedding_bag,
    embed_bags,
    _is_table,
    has_rank("input", 2),
    has_values(offsets=None, per_sample_weights=None, padding_idx=None, mode=("sum", "mean")),
)


# Recurrent layers.


def run_lstm(network: OpenVINONetwork, input: Any, states: Any = None) -> Any:
    """An LSTM of any number of layers and both directions: the results of all steps, and the last states."""
    module: Any = network.region.get_submodule(str(network.node.target))
    value = network.value(input)
    if not module.batch_first:
        value = network.add("transpose", value, network.numbers((1, 0, 2)))
    batch, steps = network.size(value, 0), network.size(value, 1)
    lengths = network.add("broadcast", network.value(steps, torch.int64), network.numbers((batch,)))
    directions = 2 if module.bidirectional else 1
    zeros = network.add("broadcast", network.value(0.0), network.numbers((batch, directions, module.hidden_size)))
    last: list[tuple[Any, Any]] = []
    for layer in range(module.num_layers):
        start = (
            (zeros, zeros) if states is None else tuple(_states_of(network, one, layer, directions) for one in states)
        )
        weights = [network.value(one) for one in _lstm_weights(module, layer)]
        kind = "bidirectional" if directions == 2 else "forward"
        node = network.op.lstm_sequence(value, *start, lengths, *weights, module.hidden_size, kind)
        merged = network.add("transpose", node.output(0), network.numbers((0, 2, 1, 3)))
        value = network.add("reshape", merged, network.numbers((0, 0, -1)), True)
        last.append((node.output(1), node.output(2)))
    final = tuple(
        network.add("transpose", network.add("concat", [state[index] for state in last], 1), network.numbers((1, 0, 2)))
        for index in (0, 1)
    )
    if not module.batch_first:
        value = network.add("transpose", value, network.numbers((1, 0, 2)))
    return value, final


def _states_of(network: OpenVINONetwork, states: Any, layer: int, directions: int) -> Any:
    """The states that a layer starts from, batch first."""
    places = network.numbers(range(layer * directions, (layer + 1) * directions))
    taken = network.add("gather", network.value(states), places, network.value(0, torch.int64))
    return network.add("transpose", taken, network.numbers((1, 0, 2)))


def _lstm_weights(module: Any, layer: int) -> list[Tensor]:
    """Weights of the input, of the state, and biases of a layer, by direction, gates in the order of OpenVINO."""
    found: list[list[Tensor]] = [[], [], []]
    for suffix in ("", "_reverse") if module.bidirectional else ("",):
        named: list[Any] = [
            getattr(module, f"{kind}_l{layer}{suffix}", None)
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]
        bias = torch.zeros(4 * module.hidden_size) if named[2] is None else named[2].detach() + named[3].detach()
        for place, tensor in zip(found, (named[0], named[1], bias), strict=True):
            entry, forget, cell, out = tensor.detach().chunk(4)
            place.append(torch.cat([forget, entry, cell, out]))
    return [torch.stack(one) for one in found]


def _is_simple(operation: Operation) -> str | None:
    module: Any = operation.subject.graph_module.get_submodule(str(operation.node.target))
    if module.proj_size or (module.training and module.dropout and module.num_layers > 1):
        return "it has projections or dropout"
    if any(type(one) is not nn.Parameter or one.dtype is not torch.float32 for one in module.parameters()):
        return "its weights are not plain float32 tensors"
    return None


add_converter(nn.LSTM, run_lstm, takes((torch.float32,), 0), has_rank(0, 3), _is_simple)
