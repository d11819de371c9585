"""The operations that OpenVINO's importer computes as PyTorch does: a list that is checked before anything is built."""

from __future__ import annotations

import builtins
import math
import operator
import sys
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.errors import with_article
from fx.lowering.converters import Converter, Converters
from fx.lowering.known_program import Operation, is_number
from fx.lowering.support import (
    Predicate,
    all_of,
    any_of,
    dtype_name,
    has_constant,
    has_numbers,
    has_rank,
    has_values,
    where,
)
from fx.naming.targets import home_of
from fx.node import Node
from fx.passes.functional_form import with_items
from fx.passes.tensor_metadata import TensorMetadata
from fx.quantize.arithmetic import dequantize, dequantize_channels, quantize
from fx.quantize.recurrence import OPERATIONS, recurrent

DTYPES = (torch.float32, torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool)
"""The dtypes of values in an engine."""
_INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.bool)
"""The dtypes that convert to float32 without loss, except for large numbers, which PyTorch rounds as well."""


def computes_numbers(operation: Operation) -> str | None:
    """Accept a function of Python whose operands and result are numbers, which are known when an engine is built."""
    nodes = (*operation.node.all_input_nodes, operation.node)
    other = next((node for node in nodes if not is_number(node)), None)
    return None if other is None else f"`%{other}` is not a number"


def _of_python(target: Any) -> Converter | None:
    """Return the converter for a function of Python that is in no list; ``None`` for all else."""
    if home_of(target) not in (builtins, math, sys.modules["_operator"]):
        return None
    return Converter(target, supports=computes_numbers, counts=0)


converters = Converters("openvino", _of_python)
"""The converters of the backend ``openvino``. They build nothing: the importer takes a whole region at a time."""


def _allow(targets: Iterable[Any], *predicates: Predicate, counts: int = 1) -> None:
    """Register functions whose calls are taken if their values are known and the predicates accept them.

    Functions of Python may also compute with numbers.
    """
    supports = all_of(knows_values, *predicates)
    for target in targets:
        may_be_of_numbers = _of_python(target) is not None
        both = any_of(computes_numbers, supports) if may_be_of_numbers else supports
        converters.register(Converter(target, supports=both, counts=counts))


# Predicates.


def knows_values(operation: Operation) -> str | None:
    """Accept an operation if its operands and result are tensors of known dtype and shape on the CPU, or integers."""
    nodes = (*operation.node.all_input_nodes, operation.node)
    return next((why for node in nodes if (why := _why_unknown(operation, node)) is not None), None)


def _why_unknown(operation: Operation, node: Node) -> str | None:
    if node.op == "get_attr":
        tensor = operation.subject.constant(node)
        if tensor is None:
            return f"`%{node}` is not a tensor of the program, or may change in a run"
        if type(tensor) not in (Tensor, torch.nn.Parameter) or not tensor.is_cpu or tensor.layout is not torch.strided:
            return f"`%{node}` is not a plain tensor on the CPU"
        return None if tensor.dtype in DTYPES else f"`%{node}` is {dtype_name(tensor.dtype)}, which engines do not take"
    recorded: Any = node.meta.get("tensor_meta")
    if recorded is None:
        kind = node.meta.get("type")
        if kind is None:
            return f"the shape of `%{node}` is not known: give example_inputs"
        if is_number(node):
            return None
        return f"`%{node}` is {with_article(kind.__name__)}, which engines do not take"
    for leaf in _flat(recorded):
        if not isinstance(leaf, TensorMetadata) or leaf.dtype not in DTYPES or leaf.is_quantized:
            what = dtype_name(leaf.dtype) if isinstance(leaf, TensorMetadata) else "something"
            return f"`%{node}` is {what}, which engines do not take"
        if 0 in leaf.shape:
            return f"`%{node}` has no elements"
    return None


def _flat(recorded: Any) -> list[Any]:
    if isinstance(recorded, TensorMetadata) or not isinstance(recorded, (tuple, list)):
        return [recorded]
    return [leaf for part in recorded for leaf in _flat(part)]


def computes(*dtypes: torch.dtype) -> Predicate:
    """Return a predicate for operations whose operands and result have one of ``dtypes``; operands may be numbers."""

    def check(operation: Operation) -> str | None:
        nodes = (*operation.node.all_input_nodes, operation.node)
        return next((why for node in nodes if (why := _why_other(operation, node, dtypes)) is not None), None)

    return check


def takes(dtypes: tuple[torch.dtype, ...], *arguments: str | int) -> Predicate:
    """Return a predicate for operations with tensors of one of ``dtypes`` for these arguments."""

    def check(operation: Operation) -> str | None:
        for name in arguments:
            value = operation.arguments.get(name)
            if not isinstance(value, Node):
                return f"its {name} is not a tensor"
            if (why := _why_other(operation, value, dtypes)) is not None:
                return why
        return None

    return check


def _why_other(operation: Operation, node: Node, dtypes: tuple[torch.dtype, ...]) -> str | None:
    dtype = operation.subject.dtype(node)
    if dtype is None:
        is_plain = node.meta.get("type") in (int, bool, float)
        return None if is_plain and node is not operation.node else f"`%{node}` is not a tensor"
    wanted = " or ".join(map(dtype_name, dtypes))
    return None if dtype in dtypes else f"`%{node}` is {dtype_name(dtype)}, and only {wanted} is computed as in PyTorch"


def _is_ordered(operation: Operation) -> bool:
    low, high = operation.arguments.get("min"), operation.arguments.get("max")
    return low is None or high is None or low <= high


def _compares_tensors(operation: Operation) -> str | None:
    are_small = all(abs(number) < 2**31 for number in operation.node.args if isinstance(number, int))
    if operation.metadata() is None or not are_small:
        return "it compares no tensors, or a number that is too large for engines"
    return None


def _converts(operation: Operation) -> str | None:
    """Accept a conversion of masks or integers to float32; conversions of floats to integers differ for infinities."""
    source = operation.node.args[0]
    dtype = operation.subject.dtype(source) if isinstance(source, Node) else None
    if dtype is None or operation.metadata() is None:
        return "it does not convert a tensor"
    if any(operation.arguments.get(name) for name in ("device", "copy", "memory_format", "tensor")):
        return "it does more than convert the dtype"
    result = operation.subject.dtype(operation.node)
    keeps = result is dtype or (result is torch.float32 and dtype in _INTEGERS)
    return None if keeps else f"it converts {dtype} to {result}"


def _asks_of_a_tensor(operation: Operation) -> str | None:
    value, name = operation.node.args[:2]
    is_tensor = isinstance(value, Node) and operation.subject.dtype(value) is not None
    return None if name in ("device", "dtype", "ndim", "shape") and is_tensor else f"it reads the attribute `{name}`"


def _joins_tensors(operation: Operation) -> str | None:
    argument = operation.arguments.get("tensors")
    nodes = argument if isinstance(argument, tuple) else ()
    ranks = {len(metadata.shape) for node in nodes if isinstance(node, Node) and (metadata := operation.metadata(node))}
    are_tensors = nodes and all(isinstance(node, Node) and operation.subject.dtype(node) is not None for node in nodes)
    return None if are_tensors and len(ranks) <= 1 else "it joins a computed list, or values of different kinds"


def _has_plain_index(operation: Operation) -> str | None:
    source, index = operation.node.args
    places: Any = index if isinstance(index, tuple) else (index,)
    # The source is a tuple, such as `split` returns, not a tensor: its elements are picked when the network is built.
    if isinstance(source, Node) and operation.subject.dtype(source) is None and source.op != "placeholder":
        return None if isinstance(index, int) else "it slices a tuple"
    if _is_by_constants(operation, places):
        return None
    for place in places:
        parts = (place.start, place.stop, place.step) if isinstance(place, slice) else (place,)
        for part in parts:
            is_plain = part is None or (type(part) is int) or part is Ellipsis
            is_size = isinstance(place, slice) and isinstance(part, Node) and part.meta.get("type") is int
            if not (is_plain or is_size) or (part is Ellipsis and isinstance(place, slice)):
                return "it picks elements by a tensor or mask"
    return None


def _has_plain_items(operation: Operation) -> str | None:
    """Accept an assignment of a number or a tensor to elements that slices and numbers pick."""
    index, value = operation.node.args[1:]
    ends: list[Any] = []
    for place in index if isinstance(index, tuple) else (index,):
        ends += (place.start, place.stop, place.step) if isinstance(place, slice) else (place,)
    if not all(is_number(end) if isinstance(end, Node) else end in (None, ...) or type(end) is int for end in ends):
        return "it picks elements by a tensor or mask"
    return None if isinstance(value, (Node, int, float)) else "it assigns no tensor or number"


def _creates(operation: Operation) -> str | None:
    """Accept the creation of a tensor on the CPU, of a dtype of engines, from numbers or like another tensor."""
    device = operation.arguments.get("device")
    if not (device is None or isinstance(device, Node) or torch.device(device).type == "cpu"):
        return "it creates a tensor on another device"
    return (
        None
        if operation.subject.dtype(operation.node) in DTYPES
        else "it creates a tensor of a dtype that no engine has"
    )


def _is_by_constants(operation: Operation, places: tuple[Any, ...]) -> bool:
    """Return whether elements are picked by constants in the last dimensions of the index, after whole dimensions."""
    first = next((number for number, place in enumerate(places) if place != slice(None)), 0)
    tensors = [operation.subject.constant(place) if isinstance(place, Node) else None for place in places[first:]]
    return len(tensors) > 0 and all(tensor is not None and tensor.dtype is torch.int64 for tensor in tensors)


def _is_even(operation: Operation) -> str | None:
    """Refuse windows that reach beyond the padding, over which OpenVINO averages differently, and other divisors."""
    if operation.arguments.get("ceil_mode"):
        return "it rounds the number of windows up"
    return None if operation.arguments.get("divisor_override") is None else "it has a divisor_override"


def _has_one_mask(operation: Operation) -> bool:
    return not (operation.arguments.get("is_causal") and operation.arguments.get("attn_mask"))


def _has_dimensions(operation: Operation) -> str | None:
    recorded = [used.meta.get("tensor_meta") for used in operation.node.all_input_nodes]
    return None if any(metadata and metadata.shape for metadata in recorded) else "it has no dimensions"


def _is_quantized(operation: Operation) -> bool:
    weight = operation.arguments.get("weight")
    return isinstance(weight, Node) and weight.target is dequantize_channels


def _has_floats(operation: Operation) -> bool:
    return all(operation.subject.dtype(node) is torch.float32 for node in operation.node.all_input_nodes)


def _has_whole_shifts(operation: Operation) -> str | None:
    """Accept shifts along dimensions, which may be computed from sizes."""
    shifts, dims = operation.arguments.get("shifts"), operation.arguments.get("dims")
    parts = [*shifts, *dims] if isinstance(shifts, tuple) and isinstance(dims, tuple) and dims else [None]
    is_plain = all(type(part) is int or (isinstance(part, Node) and is_number(part)) for part in parts)
    return None if is_plain else "its shifts are not along dimensions"


def _has_widths(operation: Operation) -> bool:
    """Accept computed widths of padding in all but the modes whose widths the importer limits."""
    widths = operation.arguments["pad"]
    is_plain = isinstance(widths, tuple) and all(type(width) is int for width in widths)
    return is_plain or (isinstance(widths, tuple) and operation.arguments["mode"] == "constant")


def _is_negative(width: Any) -> bool:
    return not isinstance(width, Node) and width < 0


def _has_tuples(operation: Operation) -> bool:
    return all(isinstance(operation.arguments.get(name), tuple) for name in ("stride", "padding"))


_FLOAT = computes(torch.float32)
_LOGICAL = computes(torch.bool)
CREATED = (
    *(torch.Tensor.new_zeros, torch.Tensor.new_ones, torch.zeros, torch.ones, torch.full, torch.arange),
    *(torch.zeros_like, torch.ones_like),
)
"""Functions that create tensors from sizes and numbers alone."""
_IN_PLACE = has_values(inplace=False)
_of_tensor = where(
    lambda operation: operation.subject.dtype(operation.node.all_input_nodes[0]) is not None, "its operand is no tensor"
)
_is_shape = where(
    lambda operation: not any(isinstance(value, torch.dtype) for value in operation.arguments.values()),
    "it reinterprets memory as another dtype",
)

# Operations on each element.

_allow(
    (
        *(torch.sigmoid, torch.tanh, torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.reciprocal, torch.square),
        *(torch.sin, torch.cos, torch.erf, torch.floor, torch.ceil, torch.sign, torch.atan, torch.sinh, torch.cosh),
        *(torch.asinh, torch.maximum, torch.minimum, operator.neg, operator.abs, operator.truediv, operator.pow),
    ),
    _FLOAT,
)
_allow((F.relu, F.silu, F.mish, F.hardswish, F.hardsigmoid, F.selu), _FLOAT, _IN_PLACE)
_allow((F.softplus,), _FLOAT, has_values(beta=1.0, threshold=20.0))
_allow((F.gelu,), _FLOAT, has_values(approximate=("none", "tanh")))
_allow((F.elu,), _FLOAT, has_numbers("alpha"), _IN_PLACE)
_allow((F.leaky_relu,), _FLOAT, has_numbers("negative_slope"), _IN_PLACE)
_allow((F.hardtanh,), _FLOAT, has_numbers("min_val", "max_val"), _IN_PLACE)
_allow(
    (torch.clamp,),
    _FLOAT,
    has_numbers("min", "max", optional=True),
    where(_is_ordered, "its bounds are the wrong way round"),
)
_allow((F.dropout,), _FLOAT, has_values(training=False, inplace=False))
_allow((torch.Tensor.contiguous,), has_values(memory_format=torch.contiguous_format), counts=0)
_allow((operator.add, operator.sub, operator.mul), _FLOAT)
_allow((operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge), _compares_tensors)
_allow((operator.and_, operator.or_, operator.xor), _LOGICAL, counts=0)
_allow((torch.all, torch.any), _LOGICAL, counts=0)
_allow((operator.invert,), _LOGICAL)
_allow((torch.where,), any_of(takes((torch.bool,), "condition"), takes((torch.bool,), 0)))
_allow((torch.masked_fill,), takes((torch.bool,), "mask"))
_allow((torch.Tensor.to,), _converts, counts=0)

# Layers with weights.

_has_weights = all_of(
    any_of(has_constant("weight"), where(_is_quantized, "it is not quantized")),
    has_constant("bias", optional=True),
    _FLOAT,
    has_numbers("stride", "padding", "dilation"),
    where(_has_tuples, "its padding or stride is not a tuple of numbers"),
)
for _dimensions, _layers in enumerate(
    ((F.conv1d, F.conv_transpose1d), (F.conv2d, F.conv_transpose2d), (F.conv3d, F.conv_transpose3d)), 1
):
    _allow(_layers, _has_weights, has_rank("input", _dimensions + 2))
_allow((F.linear,), _FLOAT, has_rank("weight", 2))
_allow((operator.matmul, torch.bmm, torch.mm), _FLOAT)
_allow((torch.addmm, torch.baddbmm), _FLOAT, has_values(beta=1, alpha=1))
_allow(
    (F.scaled_dot_product_attention,),
    takes((torch.float32,), "query", "key", "value"),
    has_values(dropout_p=0.0, enable_gqa=False),
    has_numbers("scale", optional=True),
    has_rank("query", 3, 4),
    where(_has_one_mask, "it has both attn_mask and is_causal"),
)
_has_scale = has_constant("weight", "bias", optional=True)
_allow((F.batch_norm,), _FLOAT, has_values(training=False), has_constant("running_mean", "running_var"), _has_scale)
_allow((F.layer_norm,), _FLOAT, has_numbers("eps", "normalized_shape"))
_allow((F.group_norm,), _FLOAT, _has_scale, has_numbers("num_groups"))
_is_table = all_of(
    takes((torch.float32,), "weight"), takes((torch.int64, torch.int32), "input"), has_values(max_norm=None)
)
_allow((F.embedding,), _is_table)
_allow(
    (F.embedding_bag,),
    _is_table,
    has_rank("input", 2),
    has_values(offsets=None, per_sample_weights=None, padding_idx=None, mode=("sum", "mean")),
)

_allow(
    (recurrent,),
    takes((torch.float32,), "input"),
    has_rank("input", 2, 3),
    where(_has_floats, "a state is no float"),
    counts=OPERATIONS,
)

# Windows and whole dimensions.

for _dimensions, (_largest, _mean, _to_size) in enumerate(
    (
        (F.max_pool1d, F.avg_pool1d, F.adaptive_avg_pool1d),
        (F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d),
        (F.max_pool3d, F.avg_pool3d, F.adaptive_avg_pool3d),
    ),
    1,
):
    _is_batch = all_of(_FLOAT, has_rank("input", _dimensions + 2))
    _has_windows = has_numbers("kernel_size", "stride", "padding")
    _allow((_largest,), _is_batch, _has_windows, has_numbers("dilation"), has_values(return_indices=False))
    _allow((_mean,), _is_batch, _has_windows, _is_even)
    _allow((_to_size,), _is_batch, has_numbers("output_size"))
_allow(
    (torch.mean, torch.sum, torch.amax, torch.amin),
    _FLOAT,
    has_numbers("dim", optional=True),
    has_values(dtype=None),
    _has_dimensions,
)
_allow((F.softmax, F.log_softmax, torch.cumsum), _FLOAT, has_numbers("dim"), has_values(dtype=None), _has_dimensions)

# Operations that move values, pick some, or read sizes.

_allow((torch.Tensor.size,), _of_tensor, has_numbers("dim", optional=True), counts=0)
_allow((torch.Tensor.dim,), _of_tensor, counts=0)
_allow((getattr,), _asks_of_a_tensor, counts=0)
_allow((torch.reshape, torch.Tensor.expand), counts=0)
_allow((torch.Tensor.view,), _is_shape, counts=0)
_allow((torch.flatten,), has_numbers("start_dim", "end_dim"), counts=0)
_allow((torch.unflatten, torch.squeeze, torch.unsqueeze, torch.unbind), has_numbers("dim"), counts=0)
_allow(
    (F.pad,),
    _FLOAT,
    where(_has_widths, "its pad is not a tuple of numbers"),
    has_numbers("value", optional=True),
    has_values(mode=("constant", "reflect", "replicate")),
    where(lambda operation: not any(map(_is_negative, operation.arguments["pad"])), "it crops the input"),
    counts=0,
)
_allow((with_items,), takes((torch.float32, torch.int64, torch.bool), 0), _has_plain_items, counts=0)
_allow(CREATED, _creates, counts=0)
_allow((torch.roll,), _has_whole_shifts, counts=0)
_allow((torch.permute,), has_numbers("dims"), counts=0)
_allow((torch.transpose,), has_numbers("dim0", "dim1"), has_rank("input", 1, 2, 3, 4, 5, 6), counts=0)
_allow((torch.pixel_shuffle,), has_rank("input", 4), has_numbers("upscale_factor"), counts=0)
_allow((torch.cat, torch.stack), _joins_tensors, has_numbers("dim"), counts=0)
_allow((torch.split,), has_numbers("split_size_or_sections", "dim"), counts=0)
_allow((torch.chunk,), has_numbers("chunks", "dim"), counts=0)
_allow((torch.repeat_interleave,), has_numbers("repeats", "dim"), counts=0)
_allow((operator.getitem,), _has_plain_index, counts=0)
_allow((torch.narrow,), has_numbers("dim", "start", "length"), counts=0)

# The reference form of `fx.quantize`, which engines compute on 8-bit integers.

_has_map = has_numbers("scale", "zero_point")
_allow((quantize,), takes((torch.float32,), "input"), _has_map)
_allow((dequantize,), takes((torch.uint8,), "input"), _has_map, counts=0)
_allow((dequantize_channels,), has_constant("weight", "scale"), takes((torch.int8,), "weight"))
