"""Rows: layers of torch.nn and their functional forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from pytest_fx.generation.choices import Drawing
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
from pytest_fx.generation.productions import OMITTED, Operand, Production

NO_BIAS = argument("bias", one_of(False), 3)
EPS = argument("eps", one_of(0.1, 1e-3), 2)
NO_AFFINE = argument("affine", one_of(False), 4)
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _is_channels_last(value: torch.Tensor) -> bool:
    layout = _CHANNELS_LAST.get(value.dim())
    return layout is not None and value.is_contiguous(memory_format=layout) and not value.is_contiguous()


_GROUPED = replace(MATRICES, fits=lambda value, earlier: MATRICES.fits(value, earlier) and not _is_channels_last(value))
"""What group norms can take: of channels that come last, PyTorch 2.13 crashes on gradients for the weight alone."""
NORM = frozenset({"norm"})
BATCH_NORM = NORM | {"batch-norm"}
DROPOUT = frozenset({"dropout"})


def _divisor(of: int) -> Any:
    """A number that divides a size, not always 1."""

    def draw(builder: Drawing, objects: list[Any]) -> int:
        total = objects[0].shape[of]
        return builder.choices.pick([number for number in (1, 2, 3, total) if number and total % number == 0] or [1])

    return draw


def _groups(builder: Drawing, objects: list[Any]) -> Any:
    return objects[0].shape[1] or OMITTED


def _kernel(dimensions: int) -> Any:
    uneven = (*(2,) * (dimensions - 1), 1)
    return one_of(1, 2, 3, uneven if dimensions > 1 else 1)


def _normalized(builder: Drawing, objects: list[Any]) -> Any:
    shape: list[int] = list(objects[0].shape)
    return tuple(shape[-2:]) if len(shape) > 2 and builder.choices.sometimes(4) else shape[-1]


def _with_channels(operand: Operand) -> Operand:
    """The same with a channel at least: of none, PyTorch makes none, whatever the weight of a convolution says."""
    return replace(operand, fits=lambda value, earlier: operand.fits(value, earlier) and value.shape[1] > 0)


def _convolution(name: str, operand: Operand, dimensions: int, weight: int) -> list[Production]:
    """A layer with strides, one with dilation, and one with groups.

    Of strides, padding and dilation no layer has all three: PyTorch 2.13 crashes on some where the kernel is 1.
    """
    first, kernel = place("in_channels", size(1)), place("kernel_size", _kernel(dimensions))
    padding = argument("padding", one_of(1, 2), 2)
    apart, dense = argument("dilation", one_of(2)), argument("stride", one_of(1), 8)
    around = argument("padding", one_of(1, 2, "same"), 2)
    plain = (first, place("out_channels", size_like(1)), kernel, argument("stride", one_of(2), 4), padding)
    dilated = (first, place("out_channels", size_like(1)), kernel, around, apart, dense)
    grouped = (first, place("out_channels", size(1)), kernel, argument("groups", _groups), around, dense)
    kinds = {
        (*plain, argument("dilation", one_of(1), 8)): weight,
        dilated: 1 + weight // 8,
        (*grouped, replace(apart, one_in=8)): 1 + weight // 4,
    }
    return [
        Production((f"nn.{name}",), (_with_channels(operand),), (*given, NO_BIAS, DTYPE), frozenset({"layer"}), often)
        for given, often in kinds.items()
    ]


DENSE = [
    Production(
        ("nn.Linear",),
        (VECTORS,),
        (
            place("in_features", size(-1)),
            place("out_features", size_like(-1)),
            leading("bias", one_of(False), 3),
            DTYPE,
        ),
        frozenset({"layer"}),
        10,
    ),
    Production(
        ("nn.Bilinear({features}, {features}, {out}{*})",),
        (VECTORS,),
        (argument("features", size(-1)), argument("out", drawn_size), DTYPE),
        frozenset({"layer"}),
        1,
        "{module}({0}, {0})",
    ),
    *_convolution("Conv2d", IMAGES, 2, 8),
    *_convolution("Conv1d", SEQUENCES, 1, 4),
    *_convolution("Conv3d", VOLUMES, 3, 1),
    *_convolution("ConvTranspose2d", IMAGES, 2, 2)[:1],
    *_convolution("ConvTranspose1d", SEQUENCES, 1, 1)[:1],
    Production(
        ("nn.Embedding",),
        (INDICES,),
        (
            place("num_embeddings", one_of(4, 5)),
            place("embedding_dim", drawn_size),
            argument("padding_idx", one_of(0, 1), 3),
        ),
        frozenset({"layer"}),
        3,
    ),
    Production(
        ("nn.EmbeddingBag",),
        (INDICES,),
        (
            place("num_embeddings", one_of(4, 5)),
            place("embedding_dim", drawn_size),
            argument("mode", one_of("sum", "max"), 2),
        ),
        frozenset({"layer"}),
    ),
]

NORMS = [
    Production(
        ("nn.BatchNorm2d",),
        (IMAGES,),
        (
            place("num_features", size(1)),
            EPS,
            NO_AFFINE,
            argument("momentum", one_of(0.3, None), 4),
            argument("track_running_stats", one_of(False), 10),
            DTYPE,
        ),
        BATCH_NORM,
        6,
    ),
    Production(
        ("nn.BatchNorm1d",), (MATRICES,), (place("num_features", size(1)), EPS, NO_AFFINE, DTYPE), BATCH_NORM, 3
    ),
    Production(
        ("nn.BatchNorm1d",), (SEQUENCES,), (place("num_features", size(1)), EPS, NO_AFFINE, DTYPE), BATCH_NORM, 2
    ),
    Production(("nn.BatchNorm3d",), (VOLUMES,), (place("num_features", size(1)), EPS, DTYPE), BATCH_NORM, 1),
    Production(
        ("nn.LayerNorm",),
        (VECTORS,),
        (place("normalized_shape", _normalized), EPS, argument("elementwise_affine", one_of(False), 4), DTYPE),
        NORM,
        4,
    ),
    Production(
        ("nn.GroupNorm",),
        (_GROUPED,),
        (place("num_groups", _divisor(1)), place("num_channels", size(1)), EPS, NO_AFFINE, DTYPE),
        NORM,
        2,
    ),
    Production(
        ("nn.InstanceNorm2d",),
        (IMAGES,),
        (place("num_features", size(1)), EPS, argument("affine", one_of(True), 2), DTYPE),
        NORM,
        1,
    ),
    Production(("nn.RMSNorm",), (VECTORS,), (place("normalized_shape", size(-1)), EPS, DTYPE), NORM, 1),
    Production(("F.layer_norm({0}, ({width},){*})",), (VECTORS,), (argument("width", size(-1)), EPS), NORM, 1),
    Production(("nn.LocalResponseNorm(2)",), (SEQUENCES,), (), frozenset(), 1),
]


def _functional(layer: str, function: str, given: str, weight: int) -> list[Production]:
    """A function on the tensors of a layer that is not called itself."""
    rows = [row for row in (*DENSE, *NORMS) if row.spellings == (layer,)]
    attributes = ", ".join(f"{{module}}.{name}" for name in given.split())
    call = f"F.{function}({{0}}, {attributes})"
    return [replace(row, call=call, weight=max(1, weight // len(rows))) for row in rows]


_CONV = "weight bias stride padding dilation groups"
_BATCH_NORM = "running_mean running_var weight bias training momentum eps"
FUNCTIONAL = [
    *_functional("nn.Linear", "linear", "weight bias", 5),
    *_functional("nn.Conv2d", "conv2d", _CONV, 6),
    *_functional("nn.Conv1d", "conv1d", _CONV, 3),
    *_functional("nn.BatchNorm2d", "batch_norm", _BATCH_NORM, 3),
    *_functional("nn.BatchNorm1d", "batch_norm", _BATCH_NORM, 6),
    *_functional("nn.BatchNorm2d", "batch_norm", "running_mean running_var weight bias", 2),  # in training mode too
    *_functional("nn.LayerNorm", "layer_norm", "normalized_shape weight bias eps", 2),
    *_functional("nn.GroupNorm", "group_norm", "num_groups weight bias eps", 1),
    *_functional("nn.Embedding", "embedding", "weight", 1),
]

POOLS = [
    Production(
        ("nn.MaxPool2d", "nn.AvgPool2d", "F.max_pool2d", "F.avg_pool2d"),
        (IMAGES,),
        (leading("kernel_size", one_of(2, 1, 3)), leading("stride", one_of(1, 2), 2)),
        weight=4,
    ),
    Production(
        ("nn.MaxPool1d", "nn.AvgPool1d", "F.max_pool1d", "F.avg_pool1d"),
        (SEQUENCES,),
        (leading("kernel_size", one_of(2, 1)), argument("padding", one_of(1), 4)),
        weight=2,
    ),
    Production(
        ("nn.AdaptiveAvgPool2d", "F.adaptive_avg_pool2d", "nn.AdaptiveMaxPool2d"),
        (IMAGES,),
        (leading("output_size", one_of(1, 1, 2, (1, 2))),),
        weight=3,
    ),
    Production(
        ("nn.AdaptiveAvgPool1d", "F.adaptive_avg_pool1d"), (SEQUENCES,), (leading("output_size", one_of(1, 2)),)
    ),
    Production(("nn.MaxPool3d", "nn.AvgPool3d"), (VOLUMES,), (argument("kernel_size", one_of(1, 2)),)),
    Production(
        ("nn.Upsample", "F.interpolate"),
        (IMAGES,),
        (argument("scale_factor", one_of(2)), argument("mode", one_of("nearest", "bilinear"), 2)),
        weight=2,
    ),
    Production(
        (
            'nn.Upsample(mode="bilinear", align_corners=True{*})',
            'F.interpolate({0}, mode="bilinear", align_corners=True{*})',
            'F.interpolate({0}, mode="bicubic", align_corners=False{*})',
        ),
        (IMAGES,),
        (argument("size", one_of(3, (4, 5))),),
    ),
    Production(
        ("nn.PixelShuffle({factor})", "F.pixel_shuffle({0}, {factor})"), (IMAGES,), (argument("factor", one_of(1, 2)),)
    ),
    Production(
        ("nn.PixelUnshuffle({factor})", "nn.ChannelShuffle({factor})", "F.channel_shuffle({0}, {factor})"),
        (IMAGES,),
        (argument("factor", one_of(1, 2)),),
    ),
    Production(
        (
            "nn.ZeroPad2d({pads})",
            "nn.ConstantPad2d({pads}, 0.5)",
            "nn.ReflectionPad2d({pads})",
            "nn.ReplicationPad2d({pads})",
            "nn.CircularPad2d({pads})",
        ),
        (IMAGES,),
        (argument("pads", one_of(1, (1, 0, 1, 0), (1, 1, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0))),),
    ),
    Production(("F.unfold({0}, 2)", "nn.Unfold(2)"), (IMAGES,)),
    Production(("nn.LPPool2d(2, 2)",), (IMAGES,)),
]

MODULES = [
    Production(("nn.Dropout", "nn.AlphaDropout"), (FLOAT,), (leading("p", one_of(0.1, 0.0, 0.9), 2),), DROPOUT, 5),
    Production(("nn.Dropout1d", "nn.Dropout"), (SEQUENCES,), (argument("p", one_of(0.1), 2),), DROPOUT, 1),
    Production(("nn.Dropout2d",), (IMAGES,), (argument("p", one_of(0.1), 2),), DROPOUT, 1),
    Production(("nn.Dropout",), (FLOAT,), (argument("inplace", one_of(True)),), DROPOUT | {"in-place"}, 1),
    Production(
        (
            "nn.Sequential(nn.Linear({width}, 3), nn.ReLU(), nn.Dropout(0.1), nn.Linear(3, {width}))",
            "nn.Sequential(nn.LayerNorm({width}), nn.Linear({width}, {width}), nn.GELU())",
            "nn.Sequential(nn.Sequential(nn.Linear({width}, {width}, bias=False)), nn.Identity())",
        ),
        (VECTORS,),
        (argument("width", size(-1)),),
        frozenset({"container", "layer", "dropout", "norm"}),
        4,
    ),
    Production(
        (
            "nn.Sequential(nn.Conv2d({width}, 4, 1), nn.BatchNorm2d(4), nn.ReLU())",
            "nn.Sequential(nn.Conv2d({width}, {width}, 3, padding=1, bias=False), nn.BatchNorm2d({width}, eps=0.01))",
            "nn.Sequential(nn.BatchNorm2d({width}), nn.ReLU(), nn.Conv2d({width}, 2, 1))",
        ),
        (_with_channels(IMAGES),),
        (argument("width", size(1)),),
        frozenset({"container", "layer"}) | BATCH_NORM,
        4,
    ),
    Production(
        ("nn.ModuleList([nn.Linear({width}, {width}), nn.Linear({width}, 2)])",),
        (VECTORS,),
        (argument("width", size(-1)),),
        frozenset({"container", "layer"}),
        2,
        "{module}[1]({module}[0]({0}))",
    ),
    Production(
        ("nn.ModuleDict({'gate': nn.Linear({width}, {width}), 'value': nn.Linear({width}, {width})})",),
        (VECTORS,),
        (argument("width", size(-1)),),
        frozenset({"container", "layer"}),
        2,
        "{module}['gate']({0}).sigmoid() * {module}['value']({0})",
    ),
    Production(
        (
            "nn.LSTM({width}, 3, batch_first=True{*})",
            "nn.GRU({width}, 3{*})",
            "nn.GRU({width}, 3, batch_first=True{*})",
            "nn.LSTM({width}, 2{*})",
            "nn.RNN({width}, 2{*})",
        ),
        (SEQUENCES,),
        (
            argument("width", size(-1)),
            argument("num_layers", one_of(2), 4),
            argument("bidirectional", one_of(True), 4),
            NO_BIAS,
            DTYPE,
        ),
        frozenset({"recurrent"}),
        2,
    ),
    Production(
        ("nn.RNNCell({width}, {hidden}{*})", "nn.GRUCell({width}, {hidden}{*})"),
        (ROWS, ROWS_AS_MANY),
        (
            argument("width", size(-1)),
            argument("hidden", lambda builder, objects: objects[1].shape[-1]),
            NO_BIAS,
            DTYPE,
        ),
        frozenset({"recurrent"}),
        call="{module}({0}, {1})",
    ),
    Production(
        ("nn.LSTMCell({width}, 3{*})", "nn.GRUCell({width}, 3{*})"),
        (ROWS,),
        (argument("width", size(-1)), NO_BIAS, DTYPE),
        frozenset({"recurrent"}),
    ),
    Production(
        ("nn.MultiheadAttention({width}, {heads}, batch_first=True{*})",),
        (SEQUENCES,),
        (argument("width", size(-1)), argument("heads", _divisor(-1)), NO_BIAS, DTYPE),
        frozenset({"attention"}),
        2,
        "{module}({0}, {0}, {0})",
    ),
    Production(
        ("nn.TransformerEncoderLayer({width}, 1, 4, batch_first=True, dropout=0.0)",),
        (SEQUENCES,),
        (argument("width", size(-1)),),
        frozenset({"attention", "norm"}),
        1,
    ),
]
