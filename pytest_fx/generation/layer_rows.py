"""Rows: layers of torch.nn and their functional forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from pytest_fx.generation.operands import (
    DTYPE,
    FLOAT,
    IMAGES,
    INDICES,
    MATRICES,
    ROWS,
    ROWS_AS_MANY,
    SEQUENCES,
    VECTORS,
    VOLUMES,
    argument,
    drawn_size,
    leading,
    one_of,
    place,
    size,
    size_like,
)
from pytest_fx.generation.productions import OMITTED, Drawing, NewTensor, Operand, Production, row

NO_BIAS = argument("bias", one_of(False), 3)
EPS = argument("eps", one_of(0.1, 1e-3), 2)
NO_AFFINE = argument("affine", one_of(False), 4)
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _is_channels_last(value: torch.Tensor) -> bool:
    layout = _CHANNELS_LAST.get(value.dim())
    return layout is not None and value.is_contiguous(memory_format=layout) and not value.is_contiguous()


_GROUPED = replace(MATRICES, fits=lambda value, earlier: MATRICES.fits(value, earlier) and not _is_channels_last(value))
"""Operands of group norms: with channels last, PyTorch 2.13 crashes on gradients for the weight alone."""
WIDTH = argument("width", size(-1))
FEATURES = place("num_features", size(1))
LAYER, NORM, RECURRENT = frozenset({"layer"}), frozenset({"norm"}), frozenset({"recurrent"})
CONTAINER = LAYER | {"container"}
BATCH_NORM = NORM | {"batch-norm"}
DROPOUT = frozenset({"dropout"})


def _divisor(of: int) -> Any:
    """Return a function that draws a divisor of a size, not always 1."""

    def draw(builder: Drawing, objects: list[Any]) -> int:
        total = objects[0].shape[of]
        return builder.choices.pick([number for number in (1, 2, 3, total) if number and total % number == 0] or [1])

    return draw


def _groups(builder: Drawing, objects: list[Any]) -> int:
    """Return a number of groups with several channels each."""
    total = objects[0].shape[1]
    return builder.choices.pick([number for number in (2, 3, 4) if number < total and total % number == 0])


def _multiple(builder: Drawing, objects: list[Any]) -> int:
    """Return the number of channels, or twice that."""
    return objects[0].shape[1] * builder.choices.pick((1, 2))


def _in_groups(operand: Operand) -> Operand:
    """Return the operand with a number of channels that can be grouped, several in each group."""

    def new_tensor(builder: Drawing, earlier: list[Any]) -> NewTensor | None:
        wanted = operand.new_tensor(builder, earlier)
        shape = () if wanted is None else (wanted.shape[0], builder.choices.pick((4, 6, 8)), *wanted.shape[2:])
        return NewTensor(shape) if shape else None

    def fits(value: Any, earlier: list[Any]) -> bool:
        return operand.fits(value, earlier) and value.shape[1] in (4, 6, 8, 9, 12)

    return Operand(fits, new_tensor)


def _kernel(dimensions: int) -> Any:
    uneven = (*(2,) * (dimensions - 1), 1)
    return one_of(1, 2, 3, uneven if dimensions > 1 else 1)


def _normalized(builder: Drawing, objects: list[Any]) -> Any:
    shape: list[int] = list(objects[0].shape)
    return tuple(shape[-2:]) if len(shape) > 2 and builder.choices.sometimes(4) else shape[-1]


def _with_channels(operand: Operand) -> Operand:
    """Return the operand with at least one channel: from none, PyTorch makes none, whatever the weight's shape."""
    return replace(operand, fits=lambda value, earlier: operand.fits(value, earlier) and value.shape[1] > 0)


def _convolution(name: str, operand: Operand, dimensions: int, weight: int) -> list[Production]:
    """Return rows of a layer with strides, with dilation, with a group for each channel, and with groups of several.

    No layer has strides, padding and dilation at once: PyTorch 2.13 crashes on some of these if the kernel is 1.
    """
    around_is_padding = "Transpose" not in name
    beyond = argument("output_padding", lambda builder, objects: 1, 2)
    first, kernel = place("in_channels", size(1)), place("kernel_size", _kernel(dimensions))
    padding = argument("padding", one_of(1, 2), 2)
    apart, dense = argument("dilation", one_of(2)), argument("stride", one_of(1), 8)
    around = argument("padding", one_of(1, 2, "same"), 2)
    groups = argument("groups", lambda builder, objects: objects[0].shape[1] or OMITTED)
    plain = (first, place("out_channels", size_like(1)), kernel, argument("stride", one_of(2), 4), padding)
    dilated = (first, place("out_channels", size_like(1)), kernel, around, apart, dense)
    grouped = (first, place("out_channels", size(1)), kernel, groups, around, dense)
    steps = argument("stride", one_of(2), 4 if around_is_padding else 2)
    several = (kernel, steps, padding, argument("groups", _groups), argument("dilation", one_of(1), 8))
    several += () if around_is_padding else (beyond,)
    with_channels = _with_channels(operand)
    kinds = [
        ((*plain, argument("dilation", one_of(1), 8)), with_channels, weight),
        ((first, place("out_channels", _multiple), *several), _in_groups(operand), 1 + weight // 2),
    ]
    if around_is_padding:
        kinds += [
            (dilated, with_channels, 1 + weight // 8),
            ((*grouped, replace(apart, one_in=8)), with_channels, 1 + weight // 4),
        ]
    return [
        Production((f"nn.{name}",), (each,), (*settings, NO_BIAS, DTYPE), LAYER, often)
        for settings, each, often in kinds
    ]


# A row reads better in two lines than in eight.
# fmt: off
DENSE = [
    row("nn.Linear", VECTORS, place("in_features", size(-1)), place("out_features", size_like(-1)),
        leading("bias", one_of(False), 3), DTYPE, LAYER, weight=10),
    row("nn.Bilinear({features}, {features}, {out}{*})", VECTORS, argument("features", size(-1)),
        argument("out", drawn_size), DTYPE, LAYER, call="{module}({0}, {0})"),
    *_convolution("Conv2d", IMAGES, 2, 8),
    *_convolution("Conv1d", SEQUENCES, 1, 4),
    *_convolution("Conv3d", VOLUMES, 3, 1),
    *_convolution("ConvTranspose2d", IMAGES, 2, 2),
    *_convolution("ConvTranspose1d", SEQUENCES, 1, 1),
    *_convolution("ConvTranspose3d", VOLUMES, 3, 1),
    row("nn.Embedding", INDICES, place("num_embeddings", one_of(4, 5)), place("embedding_dim", drawn_size),
        argument("padding_idx", one_of(0, 1), 3), LAYER, weight=3),
    row("nn.EmbeddingBag", INDICES, place("num_embeddings", one_of(4, 5)), place("embedding_dim", drawn_size),
        argument("mode", one_of("sum", "max"), 2), LAYER),
]

NORMS = [
    row("nn.BatchNorm2d", IMAGES, FEATURES, EPS, NO_AFFINE, argument("momentum", one_of(0.3, None), 4),
        argument("track_running_stats", one_of(False), 10), DTYPE, BATCH_NORM, weight=6),
    row("nn.BatchNorm1d", MATRICES, FEATURES, EPS, NO_AFFINE, DTYPE, BATCH_NORM, weight=3),
    row("nn.BatchNorm1d", SEQUENCES, FEATURES, EPS, NO_AFFINE, DTYPE, BATCH_NORM, weight=2),
    row("nn.BatchNorm3d", VOLUMES, FEATURES, EPS, DTYPE, BATCH_NORM),
    row("nn.LayerNorm", VECTORS, place("normalized_shape", _normalized), EPS,
        argument("elementwise_affine", one_of(False), 4), DTYPE, NORM, weight=4),
    row("nn.GroupNorm", _GROUPED, place("num_groups", _divisor(1)), place("num_channels", size(1)), EPS, NO_AFFINE,
        DTYPE, NORM, weight=2),
    row("nn.InstanceNorm2d", IMAGES, FEATURES, EPS, argument("affine", one_of(True), 2), DTYPE, NORM),
    row("nn.RMSNorm", VECTORS, place("normalized_shape", size(-1)), EPS, DTYPE, NORM),
    row("F.layer_norm({0}, ({width},){*})", VECTORS, WIDTH, EPS, NORM),
    row("nn.LocalResponseNorm(2)", SEQUENCES),
]


def _functional(layer: str, function: str, names: str, weight: int) -> list[Production]:
    """Return rows of a function on the tensors of a layer that is not called itself."""
    rows = [each for each in (*DENSE, *NORMS) if each.spellings == (layer,)]
    attributes = ", ".join(f"{{module}}.{name}" for name in names.split())
    call = f"F.{function}({{0}}, {attributes})"
    return [replace(each, call=call, weight=max(1, weight // len(rows))) for each in rows]


_CONV = "weight bias stride padding dilation groups"
_BATCH_NORM = "running_mean running_var weight bias training momentum eps"
FUNCTIONAL = [
    *_functional("nn.Linear", "linear", "weight bias", 5),
    *_functional("nn.Conv2d", "conv2d", _CONV, 6),
    *_functional("nn.Conv1d", "conv1d", _CONV, 3),
    *_functional("nn.BatchNorm2d", "batch_norm", _BATCH_NORM, 3),
    *_functional("nn.BatchNorm1d", "batch_norm", _BATCH_NORM, 6),
    *_functional("nn.BatchNorm2d", "batch_norm", "running_mean running_var weight bias", 2),  # also in training mode
    *_functional("nn.LayerNorm", "layer_norm", "normalized_shape weight bias eps", 2),
    *_functional("nn.GroupNorm", "group_norm", "num_groups weight bias eps", 1),
    *_functional("nn.Embedding", "embedding", "weight", 1),
]

POOLS = [
    row("nn.MaxPool2d; nn.AvgPool2d; F.max_pool2d; F.avg_pool2d", IMAGES,
        leading("kernel_size", one_of(2, 3, 2, (2, 3), 1)),
        leading("stride", one_of(1, 2), 2), weight=4),
    row("nn.MaxPool1d; nn.AvgPool1d; F.max_pool1d; F.avg_pool1d", SEQUENCES, leading("kernel_size", one_of(2, 3, 2, 1)),
        argument("padding", one_of(1), 4), weight=2),
    row("nn.AdaptiveAvgPool2d; F.adaptive_avg_pool2d; nn.AdaptiveMaxPool2d", IMAGES,
        leading("output_size", one_of(1, 1, 2, (1, 2))), weight=3),
    row("nn.AdaptiveAvgPool1d; F.adaptive_avg_pool1d", SEQUENCES, leading("output_size", one_of(1, 2))),
    row("nn.MaxPool3d; nn.AvgPool3d", VOLUMES, argument("kernel_size", one_of(2, 1))),
    row("nn.Upsample; F.interpolate", IMAGES, argument("scale_factor", one_of(2, 1.5, 0.5, 2.5)),
        argument("mode", one_of("nearest", "bilinear"), 2), weight=2),
    row('nn.Upsample(mode="bilinear", align_corners=True{*}); '
        'F.interpolate({0}, mode="bilinear", align_corners=True{*}); '
        'F.interpolate({0}, mode="bicubic", align_corners=False{*})', IMAGES, argument("size", one_of(3, (4, 5)))),
    row("nn.PixelShuffle({factor}); F.pixel_shuffle({0}, {factor})", IMAGES, argument("factor", one_of(1, 2))),
    row("nn.PixelUnshuffle({factor}); nn.ChannelShuffle({factor}); F.channel_shuffle({0}, {factor})", IMAGES,
        argument("factor", one_of(1, 2))),
    row("nn.ZeroPad2d({pads}); nn.ConstantPad2d({pads}, 0.5); nn.ReflectionPad2d({pads}); "
        "nn.ReplicationPad2d({pads}); nn.CircularPad2d({pads})", IMAGES,
        argument("pads", one_of(1, (1, 0, 1, 0), (1, 1, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0)))),
    row("F.unfold({0}, 2); nn.Unfold(2)", IMAGES),
    row("nn.LPPool2d(2, 2)", IMAGES),
    row("nn.LPPool1d(2, 2)", SEQUENCES),
    row("F.affine_grid({0}.new_ones({0}.size(0), 2, 3), {0}.shape, align_corners=True); "
        "torch.affine_grid_generator({0}.new_ones({0}.size(0), 2, 3), {0}.shape, False)", IMAGES),
    row("F.fractional_max_pool3d({0}, 1, output_size=1); nn.FractionalMaxPool3d(1, output_size=1); "
        "F.fractional_max_pool3d_with_indices({0}, 1, output_size=1)", VOLUMES, frozenset({"random"})),
]

MODULES = [
    row("nn.Dropout; nn.AlphaDropout", FLOAT, leading("p", one_of(0.1, 0.0, 0.9), 2), DROPOUT, weight=5),
    row("nn.Dropout1d; nn.Dropout", SEQUENCES, argument("p", one_of(0.1), 2), DROPOUT),
    row("nn.Dropout2d", IMAGES, argument("p", one_of(0.1), 2), DROPOUT),
    row("nn.Dropout", FLOAT, argument("inplace", one_of(True)), DROPOUT | {"in-place"}),
    row("nn.Sequential(nn.Linear({width}, 3), nn.ReLU(), nn.Dropout(0.1), nn.Linear(3, {width})); "
        "nn.Sequential(nn.LayerNorm({width}), nn.Linear({width}, {width}), nn.GELU()); "
        "nn.Sequential(nn.Sequential(nn.Linear({width}, {width}, bias=False)), nn.Identity())", VECTORS, WIDTH,
        CONTAINER | DROPOUT | NORM, weight=4),
    row("nn.Sequential(nn.Conv2d({width}, 4, 1), nn.BatchNorm2d(4), nn.ReLU()); "
        "nn.Sequential(nn.Conv2d({width}, {width}, 3, padding=1, bias=False), nn.BatchNorm2d({width}, eps=0.01)); "
        "nn.Sequential(nn.BatchNorm2d({width}), nn.ReLU(), nn.Conv2d({width}, 2, 1))", _with_channels(IMAGES),
        argument("width", size(1)), CONTAINER | BATCH_NORM, weight=4),
    row("nn.ModuleList([nn.Linear({width}, {width}), nn.Linear({width}, 2)])", VECTORS, WIDTH, CONTAINER, weight=2,
        call="{module}[1]({module}[0]({0}))"),
    row("nn.ModuleDict({'gate': nn.Linear({width}, {width}), 'value': nn.Linear({width}, {width})})", VECTORS, WIDTH,
        CONTAINER, weight=2, call="{module}['gate']({0}).sigmoid() * {module}['value']({0})"),
    row("nn.LSTM({width}, 3, batch_first=True{*}); nn.GRU({width}, 3{*}); nn.GRU({width}, 3, batch_first=True{*}); "
        "nn.LSTM({width}, 2{*}); nn.RNN({width}, 2{*})", SEQUENCES, WIDTH, argument("num_layers", one_of(2), 4),
        argument("bidirectional", one_of(True), 4), NO_BIAS, DTYPE, RECURRENT, weight=2),
    row("nn.GRU({width}, 3{*}); nn.RNN({width}, 3{*})", SEQUENCES, WIDTH, NO_BIAS, DTYPE, RECURRENT,
        call="{module}({0}, {0}.new_zeros(1, {0}.size(1), 3))"),
    row("nn.LSTM({width}, 3{*})", SEQUENCES, WIDTH, NO_BIAS, RECURRENT,
        call="{module}({0}, (torch.zeros(1, {0}.size(1), 3), torch.ones(1, {0}.size(1), 3)))"),
    row("nn.RNNCell({width}, {hidden}{*}); nn.GRUCell({width}, {hidden}{*})", ROWS, ROWS_AS_MANY, WIDTH,
        argument("hidden", lambda builder, objects: objects[1].shape[-1]), NO_BIAS, DTYPE, RECURRENT,
        call="{module}({0}, {1})"),
    row("nn.LSTMCell({width}, 3{*}); nn.GRUCell({width}, 3{*})", ROWS, WIDTH, NO_BIAS, DTYPE, RECURRENT),
    row("nn.MultiheadAttention({width}, {heads}, batch_first=True{*})", SEQUENCES, WIDTH,
        argument("heads", _divisor(-1)), NO_BIAS, DTYPE, frozenset({"attention"}), weight=2,
        call="{module}({0}, {0}, {0})"),
    row("nn.TransformerEncoderLayer({width}, 1, 4, batch_first=True, dropout=0.0); "
        "nn.TransformerEncoder(nn.TransformerEncoderLayer({width}, 1, 4, batch_first=True), 1)", SEQUENCES, WIDTH,
        frozenset({"attention", "norm"})),
    row("nn.TransformerDecoderLayer({width}, 1, 4, batch_first=True); "
        "nn.TransformerDecoder(nn.TransformerDecoderLayer({width}, 1, 4, batch_first=True), 1); "
        "nn.Transformer({width}, 1, 1, 1, 4, batch_first=True)", SEQUENCES, WIDTH, frozenset({"attention", "norm"}),
        call="{module}({0}, {0})"),
]
