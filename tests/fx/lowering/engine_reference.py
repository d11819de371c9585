"""TensorRT networks without TensorRT: each layer of a network definition is read back and computed by PyTorch.

It reads the values that TensorRT stored. So a converter that sets a wrong value computes wrong numbers here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx.graph_module import GraphModule
from fx.lowering.converters import build_region
from fx.lowering.tensorrt import _PRECISIONS, TensorRT
from fx.lowering.tensorrt.library import library, torch_dtype
from fx.lowering.tensorrt.network import TensorRTNetwork

_LAYERS = {
    "CONVOLUTION": "Convolution", "DECONVOLUTION": "Deconvolution", "ACTIVATION": "Activation", "POOLING": "Pooling",
    "SOFTMAX": "SoftMax", "CONCATENATION": "Concatenation", "ELEMENTWISE": "ElementWise", "UNARY": "Unary",
    "SHUFFLE": "Shuffle", "REDUCE": "Reduce", "GATHER": "Gather", "MATRIX_MULTIPLY": "MatrixMultiply",
    "CONSTANT": "Constant", "IDENTITY": "Identity", "CAST": "Cast", "SLICE": "Slice", "SHAPE": "Shape",
    "SELECT": "Select", "QUANTIZE": "Quantize", "DEQUANTIZE": "Dequantize", "NORMALIZATION": "Normalization",
}  # fmt: skip
_ELEMENTWISE = {
    "SUM": torch.add, "PROD": torch.mul, "MAX": torch.maximum, "MIN": torch.minimum, "SUB": torch.sub,
    "DIV": torch.div, "POW": torch.pow, "FLOOR_DIV": torch.floor_divide, "AND": torch.logical_and,
    "OR": torch.logical_or, "XOR": torch.logical_xor, "EQUAL": torch.eq, "GREATER": torch.gt, "LESS": torch.lt,
}  # fmt: skip
_UNARY = {"RECIP": torch.reciprocal, "NOT": torch.logical_not}
_REDUCE = {"SUM": torch.sum, "AVG": torch.mean, "MAX": torch.amax, "MIN": torch.amin}


class ReadBack(TensorRT):
    """The backend, with networks that PyTorch computes in the place of engines."""

    __slots__ = ()
    name: ClassVar[str] = "tensorrt"

    def why_unavailable(self) -> str | None:
        return None

    def build(self, region: GraphModule) -> nn.Module:
        network = RecordingNetwork(region, _PRECISIONS[self.precision])
        build_region(region, self.converters, network)
        return NetworkReference(network)


class RecordingNetwork(TensorRTNetwork):
    """A network that records the weights of each layer."""

    def __init__(self, region: GraphModule, precision: torch.dtype | None) -> None:
        super().__init__(region, precision)
        self.given: dict[str, tuple[Tensor, ...]] = {}

    def add(self, kind: str, *args: Any, **options: Any) -> Any:
        result = super().add(kind, *args, **options)
        tensors = {id(name): tensor for tensor, name in zip(self._kept, self._kept[1:], strict=False)}
        self.given[result.name] = tuple(
            tensors[id(argument)] for argument in args if isinstance(tensors.get(id(argument)), Tensor)
        )
        return result


class NetworkReference(nn.Module):
    """Computes the outputs of a network definition."""

    _leaf_reason: ClassVar[str] = "it stands for an engine"
    _is_impure: ClassVar[bool] = False

    def __init__(self, network: RecordingNetwork) -> None:
        super().__init__()
        self.network = network

    @property
    def kinds(self) -> list[str]:
        """The kinds of the layers, in order."""
        definition = self.network.definition
        return [definition.get_layer(number).type.name for number in range(definition.num_layers)]

    def forward(self, *inputs: Tensor) -> Any:
        definition = self.network.definition
        values = {binding.name: value for binding, value in zip(self.network.inputs, inputs, strict=True)}
        with torch.no_grad():
            for number in range(definition.num_layers):
                self._run(definition.get_layer(number), values)
        outputs = tuple(values[binding.name] for binding in self.network.outputs)
        for binding, value in zip(self.network.outputs, outputs, strict=True):
            assert value.dtype == binding.dtype
        return outputs[0] if self.network.is_single else outputs

    def _run(self, layer: Any, values: dict[str, Tensor]) -> None:
        kind = layer.type.name
        layer.__class__ = getattr(library(), f"I{_LAYERS[kind]}Layer")
        tensors = [layer.get_input(number) for number in range(layer.num_inputs)]
        inputs = [None if tensor is None else values[tensor.name] for tensor in tensors]
        output = layer.get_output(0)
        operands = self.network.given.get(output.name, ())
        layer_seen = (
            _Unreadable(layer, operands) if any(tensor.dtype is torch.bfloat16 for tensor in operands) else layer
        )
        result = _RUN[kind](layer_seen, *inputs)
        assert result.dtype == torch_dtype(output.dtype), (layer.name, result.dtype, output.dtype)
        shape = tuple(output.shape)
        assert len(shape) == result.dim(), (layer.name, shape, result.shape)
        assert all(size in (-1, real) for size, real in zip(shape, result.shape, strict=True)), (layer.name, shape)
        values[output.name] = result


class _Unreadable:
    """A layer whose weights cannot be read back, with the weights that were set."""

    def __init__(self, layer: Any, given: tuple[Tensor, ...]) -> None:
        self._layer = layer
        self.weights = self.kernel = given[0]
        self.bias = given[1] if len(given) > 1 else torch.empty(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def _axes(mask: int) -> tuple[int, ...]:
    return tuple(place for place in range(8) if mask >> place & 1)


def _numbers(weights: Any, shape: tuple[int, ...] | None = None) -> Tensor | None:
    """Return stored numbers; bfloat16 ones cannot be read back, so ``_run`` replaces them by the original inputs."""
    flat = weights if isinstance(weights, Tensor) else torch.from_numpy(weights).clone()
    if flat.numel() == 0:
        return None
    return flat if shape is None else flat.reshape(shape)


def _padded(image: Tensor, layer: Any, value: float = 0.0) -> Tensor:
    before, after = tuple(layer.pre_padding), tuple(layer.post_padding)
    pads = [size for pair in zip(reversed(before), reversed(after), strict=True) for size in pair]
    return F.pad(image, pads, value=value)


def _convolution(layer: Any, image: Tensor, kernel: Tensor | None = None, *_: Any) -> Tensor:
    window = tuple(layer.kernel_size_nd)
    if kernel is None:
        shape = (layer.num_output_maps, image.shape[1] // layer.num_groups, *window)
        kernel = _numbers(layer.kernel, shape)
    convolve = F.conv2d if len(window) == 2 else F.conv3d
    settings = (tuple(layer.stride_nd), 0, tuple(layer.dilation_nd), layer.num_groups)
    return convolve(_padded(image, layer), kernel, _numbers(layer.bias), *settings)


def _deconvolution(layer: Any, image: Tensor, kernel: Tensor | None = None, *_: Any) -> Tensor:
    window = tuple(layer.kernel_size_nd)
    if kernel is None:
        kernel = _numbers(layer.kernel, (image.shape[1], layer.num_output_maps // layer.num_groups, *window))
    convolve = F.conv_transpose2d if len(window) == 2 else F.conv_transpose3d
    dilation = tuple(layer.dilation_nd)
    whole = convolve(image, kernel, _numbers(layer.bias), tuple(layer.stride_nd), 0, 0, layer.num_groups, dilation)
    ends = zip(layer.pre_padding, layer.post_padding, strict=True)
    crops = [slice(before, size - after) for (before, after), size in zip(ends, whole.shape[2:], strict=True)]
    return whole[(slice(None), slice(None), *crops)]


def _activation(layer: Any, x: Tensor) -> Tensor:
    kind = library().IActivationLayer.type.__get__(layer).name
    a, b = layer.alpha, layer.beta
    return {
        "RELU": lambda: torch.relu(x),
        "SIGMOID": lambda: torch.sigmoid(x),
        "TANH": lambda: torch.tanh(x),
        "LEAKY_RELU": lambda: F.leaky_relu(x, a),
        "ELU": lambda: F.elu(x, a),
        "SELU": lambda: b * torch.where(x > 0, x, a * torch.exp(x) - a),
        "SOFTSIGN": lambda: F.softsign(x),
        "SOFTPLUS": lambda: a * torch.log1p(torch.exp(b * x)),
        "CLIP": lambda: x.clamp(a, b),
        "HARD_SIGMOID": lambda: (a * x + b).clamp(0, 1),
        "GELU_ERF": lambda: F.gelu(x),
        "GELU_TANH": lambda: F.gelu(x, approximate="tanh"),
    }[kind]()


def _pooling(layer: Any, image: Tensor) -> Tensor:
    kind = library().IPoolingLayer.type.__get__(layer).name
    window, stride, padding = tuple(layer.window_size_nd), tuple(layer.stride_nd), tuple(layer.padding_nd)
    up = layer.padding_mode.name == "EXPLICIT_ROUND_UP"
    two = len(window) == 2
    if kind == "MAX":
        return (F.max_pool2d if two else F.max_pool3d)(image, window, stride, padding, ceil_mode=up)
    pool = F.avg_pool2d if two else F.avg_pool3d
    return pool(image, window, stride, padding, up, not layer.average_count_excludes_padding)


def _concatenation(layer: Any, *tensors: Tensor) -> Tensor:
    assert len({tensor.dtype for tensor in tensors}) == 1
    return torch.cat(tensors, layer.axis)


def _elementwise(layer: Any, left: Tensor, right: Tensor) -> Tensor:
    assert left.dtype == right.dtype and left.dim() == right.dim(), layer.name
    return _ELEMENTWISE[layer.op.name](left, right)


def _unary(layer: Any, x: Tensor) -> Tensor:
    name = layer.op.name
    return _UNARY[name](x) if name in _UNARY else getattr(torch, name.lower())(x)


def _shuffle(layer: Any, x: Tensor, sizes: Tensor | None = None) -> Tensor:
    x = x.permute(tuple(layer.first_transpose)[: x.dim()])
    target = layer.reshape_dims if sizes is None else sizes.tolist()
    target = tuple(x.shape if target is None else target)
    if layer.zero_is_placeholder:
        target = tuple(x.shape[place] if size == 0 else size for place, size in enumerate(target))
    x = x.reshape(target)
    return x.permute(tuple(layer.second_transpose)[: x.dim()])


def _gather(layer: Any, rows: Tensor, indices: Tensor) -> Tensor:
    assert layer.mode.name == "DEFAULT" and layer.num_elementwise_dims == 0
    picked = rows.index_select(layer.axis, indices.reshape(-1))
    return picked.reshape((*rows.shape[: layer.axis], *indices.shape, *rows.shape[layer.axis + 1 :]))


def _matrix_multiply(layer: Any, left: Tensor, right: Tensor) -> Tensor:
    assert left.dtype == right.dtype and left.dim() == right.dim(), layer.name
    turned = [
        operand.mT if op.name == "TRANSPOSE" else operand for operand, op in ((left, layer.op0), (right, layer.op1))
    ]
    return turned[0] @ turned[1]


def _slice(
    layer: Any, x: Tensor, start: Tensor | None = None, count: Tensor | None = None, step: Any = None, fill: Any = None
) -> Tensor:
    starts = tuple(layer.start) if start is None else start.tolist()
    counts = tuple(layer.shape) if count is None else count.tolist()
    is_filled = layer.mode.name == "FILL"
    for place, (at, number, stride) in enumerate(zip(starts, counts, layer.stride, strict=True)):
        places = at + torch.arange(number) * stride
        inside = (places >= 0) & (places < x.shape[place])
        assert is_filled or bool(inside.all()), (layer.name, at, number, stride, x.shape)
        picked = x.index_select(place, places.clamp(0, x.shape[place] - 1))
        if is_filled:
            across = inside.view([-1 if dimension == place else 1 for dimension in range(x.dim())])
            picked = torch.where(across, picked, fill if fill is not None else torch.zeros((), dtype=x.dtype))
        x = picked
    return x


def _select(layer: Any, condition: Tensor, one: Tensor, other: Tensor) -> Tensor:
    assert one.dtype == other.dtype and condition.dim() == one.dim() == other.dim()
    return torch.where(condition, one, other)


def _dequantize(layer: Any, x: Tensor, scale: Tensor) -> Tensor:
    across = (
        scale
        if scale.dim() == 0
        else scale.view([-1 if dimension == layer.axis else 1 for dimension in range(x.dim())])
    )
    return x.float() * across


def _normalization(layer: Any, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    axes = _axes(layer.axes)
    normed = F.layer_norm(x, tuple(x.shape[axis] for axis in axes), None, None, layer.epsilon)
    assert axes == tuple(range(x.dim() - len(axes), x.dim()))
    return normed * scale + shift


_RUN: dict[str, Callable[..., Tensor | None]] = {
    "CONVOLUTION": _convolution,
    "DECONVOLUTION": _deconvolution,
    "ACTIVATION": _activation,
    "POOLING": _pooling,
    "SOFTMAX": lambda layer, x: torch.softmax(x, *_axes(layer.axes)),
    "CONCATENATION": _concatenation,
    "ELEMENTWISE": _elementwise,
    "UNARY": _unary,
    "SHUFFLE": _shuffle,
    "REDUCE": lambda layer, x: _REDUCE[layer.op.name](x, _axes(layer.axes), keepdim=layer.keep_dims).to(x.dtype),
    "GATHER": _gather,
    "MATRIX_MULTIPLY": _matrix_multiply,
    "CONSTANT": lambda layer: _numbers(layer.weights, tuple(layer.shape)),
    "IDENTITY": lambda layer, x: x,
    "CAST": lambda layer, x: x.to(torch_dtype(layer.to_type)),
    "SLICE": _slice,
    "SHAPE": lambda layer, x: torch.tensor(x.shape),
    "SELECT": _select,
    "QUANTIZE": lambda layer, x, scale: torch.round(x / scale).clamp(-128, 127).to(torch.int8),
    "DEQUANTIZE": _dequantize,
    "NORMALIZATION": _normalization,
}
