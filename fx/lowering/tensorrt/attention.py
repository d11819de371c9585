"""TensorRT's converters for attention: its own layer where it has one, and products and softmax elsewhere."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from fx.lowering.known_program import Operation
from fx.lowering.support import has_values, shape_of
from fx.lowering.tensorrt.activations import combine
from fx.lowering.tensorrt.arrangement import transpose
from fx.lowering.tensorrt.elementwise import matmul
from fx.lowering.tensorrt.indexing import repeat_interleave
from fx.lowering.tensorrt.network import Size, TensorRTNetwork
from fx.lowering.tensorrt.predicates import FLOATS, is_one_of, register, setting, takes_floats
from fx.lowering.tensorrt.ranges import sizes_of
from fx.node import Node
from fx.quantize.attention import add_attention_mask, attention_mask

_RANK = 4
"""The number of dimensions of TensorRT's attention: batch, heads, length and features."""


def attend(
    network: TensorRTNetwork, query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool,
    scale: float | None, enable_gqa: bool,
) -> Any:  # fmt: skip
    """Add attention."""
    dtype, rank = network.dtype(query), network.rank(query)
    features = network.sizes(query)[-1]
    assert isinstance(features, int)
    factor = 1 / math.sqrt(features) if scale is None else scale
    query = combine(network, "PROD", query, factor)
    key, value = network.tensor(key), network.tensor(value)
    mask = _causal_mask(network, query, key) if is_causal else attn_mask
    if mask is not None:
        mask = network.tensor(mask, None if network.dtype(mask) is torch.bool else dtype)
    shape = network.shape(query)
    is_plain = 2 <= rank <= _RANK and network.shape(key) == network.shape(value)
    same_batch = network.shape(key)[:-3] == shape[:-3] and (enable_gqa or network.shape(key)[-3:-2] == shape[-3:-2])
    if is_plain and same_batch and hasattr(network.definition, "add_attention"):
        return _add_attention(network, query, key, value, mask)
    if enable_gqa:
        groups = shape[-3] // network.shape(key)[-3]
        key, value = (repeat_interleave(network, tensor, groups, -3) for tensor in (key, value))
    scores = matmul(network, query, transpose(network, key, -2, -1))
    if mask is not None:
        scores = combine(network, "SUM", scores, _as_summand(network, mask, dtype))
    weights = network.add("softmax", scores, axes=1 << (network.rank(scores) - 1))
    return matmul(network, weights, value)


def _add_attention(network: TensorRTNetwork, query: Any, key: Any, value: Any, mask: Any) -> Any:
    """Add TensorRT's own layer, which takes four dimensions and does not scale."""
    sizes = network.sizes(query)
    four = [network.tensor(tensor, rank=_RANK) for tensor in (query, key, value)]
    settings = {} if mask is None else {"mask": network.tensor(mask, rank=_RANK)}
    softmax = setting("AttentionNormalizationOp", "SOFTMAX")
    result = network.add("attention", *four, softmax, False, decomposable=True, **settings)
    return result if len(sizes) == _RANK else network.reshape(result, sizes)


def _causal_mask(network: TensorRTNetwork, query: Any, key: Any) -> Any:
    """Return a mask that is true where a query sees a key: those up to its own position, counted from the first."""
    length, keys = (network.sizes(tensor)[-2] for tensor in (query, key))
    positions = [_positions(network, size) for size in (length, keys)]
    rows = network.reshape(positions[0], [length, 1])
    columns = network.reshape(positions[1], [1, keys])
    return network.add("unary", combine(network, "GREATER", columns, rows), setting("UnaryOperation", "NOT"))


def _positions(network: TensorRTNetwork, size: int | Size) -> Any:
    """Return the numbers 0, 1, … up to a size."""
    if not isinstance(size, Size):
        return network.tensor(torch.arange(size))
    ones = network.add("slice", network.tensor(torch.ones(1, dtype=torch.int64)), (0,), (0,), (0,), inputs={
        2: network.size_tensor(size)})  # fmt: skip
    axis = network.tensor(torch.tensor(0, dtype=torch.int64))
    total = network.add("cumulative", ones, axis, setting("CumulativeOperation", "SUM"), False, False)
    return combine(network, "SUB", total, network.tensor(torch.ones(1, dtype=torch.int64)))


def _as_summand(network: TensorRTNetwork, mask: Any, dtype: torch.dtype) -> Any:
    """Return a mask as what is added to scores: minus infinity where a truth value is false."""
    if network.dtype(mask) is not torch.bool:
        return mask
    rank = network.rank(mask)
    zero, infinity = (network.tensor(number, dtype, rank) for number in (0.0, -math.inf))
    return network.add("select", network.tensor(mask), zero, infinity)


def mask_of(network: TensorRTNetwork, query: Any, attn_mask: Any, key_padding_mask: Any) -> Any:
    """Add :func:`fx.quantize.attention.attention_mask`: the sum of the masks, as what is added to scores."""
    summands: list[Any] = []
    if attn_mask is not None:
        if network.rank(attn_mask) > 2:
            sizes = network.sizes(query)[:-2], network.sizes(attn_mask)[-2:]
            attn_mask = network.reshape(network.tensor(attn_mask), [*sizes[0], *sizes[1]])
        summands.append(attn_mask)
    if key_padding_mask is not None:
        *batch, keys = network.sizes(key_padding_mask)
        summands.append(network.reshape(network.tensor(key_padding_mask), [*batch, 1, 1, keys]))
    masks = [_excluded(network, mask, network.dtype(query)) for mask in summands]
    return masks[0] if len(masks) == 1 else combine(network, "SUM", *masks)


def _excluded(network: TensorRTNetwork, mask: Any, dtype: torch.dtype) -> Any:
    """Return a mask as what is added to scores: minus infinity where a truth value is true."""
    mask = network.tensor(mask)
    if network.dtype(mask) is torch.bool:
        mask = network.add("unary", mask, setting("UnaryOperation", "NOT"))
    return _as_summand(network, mask, dtype)


def add_mask(network: TensorRTNetwork, scores: Any, attn_mask: Any, key_padding_mask: Any) -> Any:
    """Add :func:`fx.quantize.attention.add_attention_mask`."""
    return combine(network, "SUM", scores, mask_of(network, scores, attn_mask, key_padding_mask))


def _attends(operation: Operation) -> str | None:
    """Accept attention over matrices; the number of features and of heads is fixed."""
    arguments = operation.arguments
    query, key = arguments["query"], arguments["key"]
    shapes = [shape_of(operation, arguments[name]) for name in ("query", "key", "value")]
    if not all(shape is not None and len(shape) == len(shapes[0] or ()) >= 2 for shape in shapes):
        return "its queries, keys and values have different numbers of dimensions"
    assert isinstance(query, Node)
    assert isinstance(key, Node)
    for node in (query, key):
        if node.op != "get_attr":
            least, _, most = sizes_of(node)
            fixed = [ends[-1:] + (ends[-3:-2] if len(ends) >= _RANK else ()) for ends in (least, most)]
            if fixed[0] != fixed[1]:
                return "its number of heads or features varies"
    mask = arguments["attn_mask"]
    if mask is not None and operation.subject.dtype(mask) not in (torch.bool, *FLOATS):
        return "its mask holds neither truth values nor floating-point numbers"
    return None


def _has_mask(operation: Operation) -> str | None:
    masks = [operation.arguments.get(name) for name in ("attn_mask", "key_padding_mask")]
    return None if any(mask is not None for mask in masks) else "it has no mask"


_scale = is_one_of(is_causal=bool, enable_gqa=bool, scale=(int, float, type(None)))
register(
    F.scaled_dot_product_attention,
    attend,
    takes_floats("query", "key", "value"),
    has_values(dropout_p=0.0),
    _scale,
    _attends,
)
register(attention_mask, mask_of, _has_mask)
register(add_attention_mask, add_mask, takes_floats(0), _has_mask)
