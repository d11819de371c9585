"""``EmulatedEngine``: the layers of a network computed by PyTorch, in place of an engine on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx.errors import LoweringError
from fx.lowering.tensorrt.emulated_loop import run_loop, steps_of
from fx.lowering.tensorrt.engine import check_inputs
from fx.lowering.tensorrt.layers import EngineLayer, read_layers
from fx.lowering.tensorrt.network import VARIES, EngineBinding, TensorRTNetwork


class EmulatedEngine(nn.Module):
    """A module that computes a network of TensorRT on the CPU, layer by layer.

    Each layer is computed from the settings and weights that TensorRT stored. So a wrong converter computes wrong
    numbers here. What TensorRT itself does to a network is not emulated: it chooses kernels, fuses layers, and may add
    in another order. The module checks its inputs as an engine does. It can be copied and pickled, without the package.
    """

    _is_impure: ClassVar[bool | None] = False
    _leaf_reason: ClassVar[str] = "it stands for an engine of TensorRT"

    def __init__(
        self,
        layers: Sequence[EngineLayer],
        inputs: Sequence[EngineBinding],
        outputs: Sequence[EngineBinding],
        is_single: bool,
        is_wide: bool = False,
    ) -> None:
        """Make a module for layers in the order of their computation.

        Args:
            layers: the layers.
            inputs: the inputs of the engine.
            outputs: its results.
            is_single: whether it returns a tensor rather than a tuple.
            is_wide: whether layers in float32 are computed in float64.
        """
        super().__init__()
        self.layers = tuple(layers)
        """The layers, in order."""
        self.inputs = tuple(inputs)
        """The inputs, in order."""
        self.outputs = tuple(outputs)
        """The results, in order."""
        self.is_single = is_single
        """Whether it returns a tensor rather than a tuple."""
        self.is_wide = is_wide
        """Whether layers in float32 are computed in float64."""
        self._steps = tuple(steps_of(self.layers))
        self._unused_after = _unused_after(self._steps, {binding.name for binding in self.outputs})

    @classmethod
    def of_network(cls, network: TensorRTNetwork) -> EmulatedEngine:
        """Return the module for a finished network.

        Raises:
            LoweringError: a layer is of a type that is not emulated.
        """
        bindings = network.inputs, network.outputs
        return cls(read_layers(network), *bindings, is_single=network.is_single, is_wide=network.is_wide)

    @property
    def kinds(self) -> list[str]:
        """The types of the layers, in order."""
        return [layer.kind for layer in self.layers]

    def forward(self, *inputs: Tensor) -> Any:
        """Compute the results.

        Raises:
            LoweringError: an input does not fit, requires gradients, or is not on the CPU.
        """
        check_inputs(self.inputs, inputs)
        if any(tensor.device.type != "cpu" for tensor in inputs):
            raise LoweringError("an emulated engine takes tensors of the CPU", remedy="build the engine: emulate=False")
        values = {binding.name: tensor.detach() for binding, tensor in zip(self.inputs, inputs, strict=True)}
        with torch.no_grad():
            for step, unused in zip(self._steps, self._unused_after, strict=True):
                if len(step) == 1:
                    self._run(step[0], values)
                else:
                    run_loop(step, values, self._run)
                for name in unused:
                    del values[name]
        outputs = tuple(values[binding.name] for binding in self.outputs)
        return outputs[0] if self.is_single else outputs

    def _run(self, layer: EngineLayer, values: dict[str, Tensor]) -> None:
        operands = [None if name is None else values[name] for name in layer.inputs]
        results = _KERNELS[layer.kind](layer, *operands)
        results = results if isinstance(results, tuple) else (results,)
        for output, result in zip(layer.outputs, results, strict=True):
            wanted = torch.float64 if self.is_wide and output.dtype is torch.float32 else output.dtype
            if result.dtype is not wanted and layer.kind in _CONVERTING:
                result = result.to(wanted)
            shape = tuple(result.shape)
            fits = len(shape) == len(output.shape) and all(
                size in (VARIES, real) for size, real in zip(output.shape, shape, strict=True)
            )
            _require(result.dtype is wanted and fits, layer, f"it computes {result.dtype} {shape} for {output}")
            values[output.name] = result

    def extra_repr(self) -> str:
        """Return a description, for printing."""
        return f"{len(self.layers)} layers, emulated"


def _unused_after(steps: Sequence[Sequence[EngineLayer]], returned: set[str]) -> list[tuple[str, ...]]:
    """Return, for each step, the values that no later one reads."""
    needed, unused = set(returned), list[tuple[str, ...]]()
    for step in reversed(steps):
        inputs = {name for layer in step for name in layer.inputs if name is not None}
        results = {output.name for layer in step for output in layer.outputs}
        unused.append(tuple(name for name in inputs | results if name not in needed))
        needed |= inputs
    return unused[::-1]


# Settings and weights.


def _axes(mask: int) -> tuple[int, ...]:
    return tuple(place for place in range(8) if mask >> place & 1)


def _require(holds: bool, layer: EngineLayer, why: str) -> None:
    """Raise an error if a layer is not as the kernels here need it."""
    if not holds:
        raise LoweringError(f"the emulation cannot compute the layer {layer.name}", value=layer.kind, why=why)


def _require_alike(layer: EngineLayer, *operands: Tensor) -> None:
    """Check that operands have the same type and number of dimensions, as TensorRT's layers demand."""
    facts = {(operand.dtype, operand.dim()) for operand in operands}
    _require(len(facts) == 1, layer, f"its operands differ in type or in number of dimensions: {facts}")


def _choose(name: str, choices: Mapping[Any, Any], layer: EngineLayer) -> Any:
    """Return the choice for the value of a setting."""
    value = layer.settings[name]
    _require(value in choices, layer, f"its {name} is {value}")
    return choices[value]


def _along(vector: Tensor, axis: int, rank: int) -> Tensor:
    """Return a vector along one dimension of a tensor."""
    return vector if vector.dim() == 0 else vector.view([-1 if place == axis else 1 for place in range(rank)])


# Kernels: each computes the layers of one type.


def _convolution(layer: EngineLayer, image: Tensor, kernel: Tensor | None = None, *_: Any) -> Tensor:
    settings = layer.settings
    window, groups = settings["kernel_size_nd"], settings["num_groups"]
    if kernel is None:
        kernel = layer.weights["kernel"].reshape(settings["num_output_maps"], image.shape[1] // groups, *window)
    ends = zip(reversed(settings["pre_padding"]), reversed(settings["post_padding"]), strict=True)
    padded = F.pad(image, [size for pair in ends for size in pair])
    convolve = F.conv2d if len(window) == 2 else F.conv3d
    bias = layer.weights.get("bias")
    return convolve(padded, kernel, bias, settings["stride_nd"], 0, settings["dilation_nd"], groups)


def _deconvolution(layer: EngineLayer, image: Tensor, kernel: Tensor | None = None, *_: Any) -> Tensor:
    settings = layer.settings
    window, groups = settings["kernel_size_nd"], settings["num_groups"]
    if kernel is None:
        kernel = layer.weights["kernel"].reshape(image.shape[1], settings["num_output_maps"] // groups, *window)
    convolve = F.conv_transpose2d if len(window) == 2 else F.conv_transpose3d
    bias = layer.weights.get("bias")
    whole = convolve(image, kernel, bias, settings["stride_nd"], 0, 0, groups, settings["dilation_nd"])
    ends = zip(settings["pre_padding"], settings["post_padding"], strict=True)
    crops = [slice(before, size - after) for (before, after), size in zip(ends, whole.shape[2:], strict=True)]
    return whole[(slice(None), slice(None), *crops)]


_ACTIVATIONS: Mapping[str, Callable[[Tensor, float, float], Tensor]] = {
    "RELU": lambda x, a, b: torch.relu(x),
    "SIGMOID": lambda x, a, b: torch.sigmoid(x),
    "TANH": lambda x, a, b: torch.tanh(x),
    "LEAKY_RELU": lambda x, a, b: F.leaky_relu(x, a),
    "ELU": lambda x, a, b: F.elu(x, a),
    "SELU": lambda x, a, b: b * torch.where(x > 0, x, a * torch.exp(x) - a),
    "SOFTSIGN": lambda x, a, b: F.softsign(x),
    "SOFTPLUS": lambda x, a, b: a * F.softplus(b * x),
    "CLIP": lambda x, a, b: x.clamp(a, b),
    "HARD_SIGMOID": lambda x, a, b: (a * x + b).clamp(0, 1),
    "GELU_ERF": lambda x, a, b: F.gelu(x),
    "GELU_TANH": lambda x, a, b: F.gelu(x, approximate="tanh"),
}
"""The activations, with the numbers alpha and beta."""


def _activation(layer: EngineLayer, x: Tensor) -> Tensor:
    return _choose("type", _ACTIVATIONS, layer)(x, layer.settings["alpha"], layer.settings["beta"])


def _pooling(layer: EngineLayer, image: Tensor) -> Tensor:
    settings = layer.settings
    rounds_up = _choose("padding_mode", {"EXPLICIT_ROUND_DOWN": False, "EXPLICIT_ROUND_UP": True}, layer)
    window = settings["window_size_nd"], settings["stride_nd"], settings["padding_nd"]
    is_image = len(settings["window_size_nd"]) == 2
    if _choose("type", {"MAX": True, "AVERAGE": False}, layer):
        return (F.max_pool2d if is_image else F.max_pool3d)(image, *window, ceil_mode=rounds_up)
    pool = F.avg_pool2d if is_image else F.avg_pool3d
    return pool(image, *window, rounds_up, not settings["average_count_excludes_padding"])


def _concatenation(layer: EngineLayer, *tensors: Tensor) -> Tensor:
    _require_alike(layer, *tensors)
    return torch.cat(tensors, layer.settings["axis"])


_ELEMENTWISE: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add, "PROD": torch.mul, "MAX": torch.maximum, "MIN": torch.minimum, "SUB": torch.sub,
    "POW": torch.pow, "FLOOR_DIV": torch.floor_divide, "AND": torch.logical_and, "OR": torch.logical_or,
    "XOR": torch.logical_xor, "EQUAL": torch.eq, "GREATER": torch.gt, "LESS": torch.lt,
    "DIV": lambda left, right: torch.div(left, right, rounding_mode=None if left.is_floating_point() else "trunc"),
}  # fmt: skip


def _elementwise(layer: EngineLayer, left: Tensor, right: Tensor) -> Tensor:
    _require_alike(layer, left, right)
    return _choose("op", _ELEMENTWISE, layer)(left, right)


_UNARY: Mapping[str, Callable[[Tensor], Tensor]] = {
    "RECIP": torch.reciprocal, "NOT": torch.logical_not, "EXP": torch.exp, "LOG": torch.log, "SQRT": torch.sqrt,
    "ABS": torch.abs, "NEG": torch.neg, "SIN": torch.sin, "COS": torch.cos, "TAN": torch.tan, "SINH": torch.sinh,
    "COSH": torch.cosh, "ASIN": torch.asin, "ACOS": torch.acos, "ATAN": torch.atan, "ASINH": torch.asinh,
    "ACOSH": torch.acosh, "ATANH": torch.atanh, "CEIL": torch.ceil, "FLOOR": torch.floor, "ERF": torch.erf,
    "SIGN": torch.sign, "ROUND": torch.round, "ISINF": torch.isinf, "ISNAN": torch.isnan,
}  # fmt: skip


def _shuffle(layer: EngineLayer, x: Tensor, sizes: Tensor | None = None) -> Tensor:
    settings = layer.settings
    x = x.permute(settings["first_transpose"][: x.dim()])
    target = settings["reshape_dims"] if sizes is None else tuple(sizes.tolist())
    target = tuple(x.shape) if target is None else target
    if settings["zero_is_placeholder"]:
        target = tuple(x.shape[place] if size == 0 else size for place, size in enumerate(target))
    x = x.reshape(target)
    return x.permute(settings["second_transpose"][: x.dim()])


_REDUCE: Mapping[str, Callable[..., Tensor]] = {
    "SUM": torch.sum, "AVG": torch.mean, "MAX": torch.amax, "MIN": torch.amin,
}  # fmt: skip


def _reduce(layer: EngineLayer, x: Tensor) -> Tensor:
    result = _choose("op", _REDUCE, layer)(x, _axes(layer.settings["axes"]), keepdim=layer.settings["keep_dims"])
    return result.to(x.dtype)


def _gather(layer: EngineLayer, rows: Tensor, indices: Tensor) -> Tensor:
    axis = layer.settings["axis"]
    _require(layer.settings["num_elementwise_dims"] == 0, layer, "it gathers from batches")
    if _choose("mode", {"ELEMENT": True, "DEFAULT": False}, layer):
        return rows.gather(axis, indices.long())
    picked = rows.index_select(axis, indices.reshape(-1))
    return picked.reshape((*rows.shape[:axis], *indices.shape, *rows.shape[axis + 1 :]))


def _scatter(layer: EngineLayer, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    _choose("mode", {"ELEMENT": None}, layer)
    return x.scatter(layer.settings["axis"], indices.long(), updates)


def _matrix_multiply(layer: EngineLayer, left: Tensor, right: Tensor) -> Tensor:
    _require_alike(layer, left, right)
    turns = {"NONE": False, "TRANSPOSE": True}
    first, second = (
        operand.mT if _choose(name, turns, layer) else operand for name, operand in (("op0", left), ("op1", right))
    )
    return first @ second


def _slice(
    layer: EngineLayer, x: Tensor, start: Tensor | None = None, count: Tensor | None = None,
    stride: Tensor | None = None, fill: Tensor | None = None,
) -> Tensor:  # fmt: skip
    settings = layer.settings
    starts, counts, strides = (
        settings[name] if value is None else value.tolist()
        for name, value in (("start", start), ("shape", count), ("stride", stride))
    )
    is_filled = _choose("mode", {"STRICT_BOUNDS": False, "FILL": True}, layer)
    for place, (first, number, step) in enumerate(zip(starts, counts, strides, strict=True)):
        places = first + torch.arange(number) * step
        inside = (places >= 0) & (places < x.shape[place])
        _require(is_filled or bool(inside.all()), layer, f"{number} steps of {step} from {first} leave {x.shape}")
        picked = x.index_select(place, places.clamp(0, x.shape[place] - 1))
        if is_filled and not bool(inside.all()):
            value = torch.zeros((), dtype=x.dtype) if fill is None else fill
            picked = torch.where(_along(inside, place, x.dim()), picked, value)
        x = picked
    return x


def _select(layer: EngineLayer, condition: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
    _require_alike(layer, chosen, other)
    _require(condition.dim() == chosen.dim(), layer, "its condition has another number of dimensions")
    return torch.where(condition, chosen, other)


def _dequantize(layer: EngineLayer, x: Tensor, scale: Tensor) -> Tensor:
    return x.to(scale.dtype) * _along(scale, layer.settings["axis"], x.dim())


def _normalization(layer: EngineLayer, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Normalize over some dimensions, and over those of a group of channels."""
    axes, groups, shape = _axes(layer.settings["axes"]), layer.settings["num_groups"], x.shape
    if groups > 1:
        x = x.reshape(shape[0], groups, -1)
        axes = (2,)
    wide = x if x.dtype is torch.float64 else x.float()
    variance, mean = torch.var_mean(wide, axes, correction=0, keepdim=True)
    normed = (wide - mean) * torch.rsqrt(variance + layer.settings["epsilon"])
    return normed.to(x.dtype).reshape(shape) * scale + shift


def _attention(
    layer: EngineLayer, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *_: Any
) -> Tensor:
    """Compute attention without a scale: TensorRT leaves that to the network."""
    _choose("norm_op", {"SOFTMAX": None}, layer)
    _choose("causal_kind", {"NONE": None, None: None}, layer)
    _require(mask is None or mask.dtype in (torch.bool, query.dtype), layer, "its mask has another type")
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(groups, 1) if groups > 1 else tensor for tensor in (key, value))
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)


def _cumulative(layer: EngineLayer, x: Tensor, axis: Tensor) -> Tensor:
    settings = layer.settings
    how = settings["op"], settings["exclusive"], settings["reverse"]
    _require(how == ("SUM", False, False), layer, f"it accumulates by {how}")
    return x.cumsum(int(axis), dtype=x.dtype)


def _topk(layer: EngineLayer, x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    (axis,) = _axes(layer.settings["axes"])
    largest = _choose("op", {"MAX": True, "MIN": False}, layer)
    # of equal elements the first comes first, as in TensorRT; torch.topk promises no order
    values, indices = x.sort(dim=axis, descending=largest, stable=True)
    count = layer.settings["k"]
    return values.narrow(axis, 0, count), indices.narrow(axis, 0, count)


def _resize(layer: EngineLayer, image: Tensor, sizes: Tensor | None = None) -> Tensor:
    settings = layer.settings
    spatial = image.shape[2:]
    mode = _choose("resize_mode", {"NEAREST": "nearest", "LINEAR": "linear", "CUBIC": "bicubic"}, layer)
    target = list(settings["shape"] if sizes is None else sizes.tolist())[2:]
    if mode == "nearest":
        kinds = {("ASYMMETRIC", "FLOOR"): "nearest", ("HALF_PIXEL", "HALF_UP"): "nearest-exact"}
        key = settings["coordinate_transformation"], settings["nearest_rounding"]
        _require(key in kinds, layer, f"it rounds coordinates by {key}")
        return F.interpolate(image, target, mode=kinds[key])
    aligned = _choose("coordinate_transformation", {"ALIGN_CORNERS": True, "HALF_PIXEL": False}, layer)
    if mode == "bicubic":
        _require(abs(settings["cubic_coeff"] + 0.75) < 1e-6, layer, f"its coefficient is {settings['cubic_coeff']}")
    elif len(spatial) > 1:
        mode = "bilinear" if len(spatial) == 2 else "trilinear"
    return F.interpolate(image, target, mode=mode, align_corners=aligned)


def _grid_sample(layer: EngineLayer, image: Tensor, grid: Tensor) -> Tensor:
    mode = _choose("interpolation_mode", {"NEAREST": "nearest", "LINEAR": "bilinear", "CUBIC": "bicubic"}, layer)
    padding = _choose("sample_mode", {"FILL": "zeros", "CLAMP": "border", "REFLECT": "reflection"}, layer)
    return F.grid_sample(image, grid, mode, padding, layer.settings["align_corners"])


def _quantize(layer: EngineLayer, x: Tensor, scale: Tensor) -> Tensor:
    return torch.round(x / _along(scale, layer.settings["axis"], x.dim())).clamp(-128, 127).to(torch.int8)


_CONVERTING = ("CAST", "TOPK", "DEQUANTIZE")
"""The types of layers whose results have the type that the network states."""
_KERNELS: Mapping[str, Callable[..., Any]] = {
    "ACTIVATION": _activation,
    "ATTENTION_INPUT": _attention,
    "ATTENTION_OUTPUT": lambda layer, x: x,
    "CAST": lambda layer, x: x,
    "CONCATENATION": _concatenation,
    "CONSTANT": lambda layer: layer.weights["weights"].reshape(layer.settings["shape"]),
    "CONVOLUTION": _convolution,
    "CUMULATIVE": _cumulative,
    "DECONVOLUTION": _deconvolution,
    "DEQUANTIZE": _dequantize,
    "EINSUM": lambda layer, *operands: torch.einsum(layer.settings["equation"], *operands),
    "ELEMENTWISE": _elementwise,
    "GATHER": _gather,
    "GRID_SAMPLE": _grid_sample,
    "IDENTITY": lambda layer, x: x,
    "MATRIX_MULTIPLY": _matrix_multiply,
    "NORMALIZATION": _normalization,
    "PARAMETRIC_RELU": lambda layer, x, slopes: torch.where(x < 0, x * slopes, x),
    "POOLING": _pooling,
    "QUANTIZE": _quantize,
    "REDUCE": _reduce,
    "RESIZE": _resize,
    "SCATTER": _scatter,
    "SELECT": _select,
    "SHAPE": lambda layer, x: torch.tensor(x.shape),
    "SHUFFLE": _shuffle,
    "SLICE": _slice,
    "SOFTMAX": lambda layer, x: torch.softmax(x, _axes(layer.settings["axes"])[0]),
    "TOPK": _topk,
    "UNARY": lambda layer, x: _choose("op", _UNARY, layer)(x),
}
