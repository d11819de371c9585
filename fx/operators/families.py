"""The table of operators: each of them once, with its spellings, its family, and what is known of its result.

Ranks, layers, fusing, folding, aliases, quantization, lowering, the matcher and the generator read it, so that an
operator that is added here is known to all of them. Schemas tell what operators write and what their results share
(:mod:`fx.operators.effects`, :mod:`fx.operators.sharing`); here is what they do not tell. Operators that nobody treats
in a special way have no row.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import nn

Family: TypeAlias = Literal[
    "linear", "convolution", "transposed convolution", "embedding", "batch norm", "normalization", "activation",
    "function", "arithmetic", "comparison", "logic", "extreme", "product", "combination", "join", "softmax", "dropout",
    "average pooling", "max pooling", "resampling", "view", "arrangement", "split", "reduction", "size", "loss",
]  # fmt: skip
"""What kind of operator it is. ``activation`` and ``function`` work on each element of one tensor, ``arithmetic`` to
``extreme`` on pairs of elements; ``view`` and ``arrangement`` move elements, a view perhaps without copying them."""
FAMILIES: frozenset[Family] = frozenset(get_args(Family))
"""Every family."""
Kept: TypeAlias = Literal["rank", "dtype"]
"""What the result has in common with the first operand: the number of dimensions, a floating-point dtype."""
Bound: TypeAlias = float | str | None
"""A number, the name of the argument that gives it, or none."""

_BOTH: frozenset[Kept] = frozenset({"rank", "dtype"})
_RANK: frozenset[Kept] = frozenset({"rank"})
_DTYPE: frozenset[Kept] = frozenset({"dtype"})

_KEPT: dict[Family, frozenset[Kept]] = {
    **dict.fromkeys(("batch norm", "normalization", "activation", "function", "softmax", "dropout"), _BOTH),
    **dict.fromkeys(("average pooling", "max pooling"), _BOTH),
    **dict.fromkeys(("linear", "convolution", "transposed convolution"), _RANK),  # with the dtype of the weight
    **dict.fromkeys(("view", "arrangement", "resampling"), _DTYPE),
}
_NEW: frozenset[Family] = frozenset(
    {
        *("linear", "convolution", "transposed convolution", "embedding", "batch norm", "normalization", "activation"),
        *("function", "comparison", "logic", "extreme", "product", "combination", "join", "softmax", "loss"),
        *("average pooling", "max pooling", "resampling", "reduction"),
    }
)
"""Families whose results share memory with nothing."""
_VALUE_PRESERVING: frozenset[Family] = frozenset({"view", "arrangement", "max pooling"})


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One operator."""

    function: Any
    """The function, as the canonical form spells it (:mod:`fx.canonical`)."""
    family: Family
    """What kind of operator it is."""
    aliases: tuple[Any, ...] = ()
    """Functions that are the same by a different name, with the same parameters."""
    also: tuple[Any, ...] = ()
    """Functions that do the same, but have other parameters or defaults."""
    modules: tuple[type[nn.Module], ...] = ()
    """The classes of modules that call it."""
    parameters: tuple[str, ...] = ()
    """Of a layer, the names of what it is called with, in order; they are the same in every version of torch."""
    dims: int | None = None
    """Of layers, pooling and dropout of whole channels: over how many dimensions behind the channels they reach."""
    keeps: frozenset[Kept] | None = None
    """What the result has in common with the first operand; None: what is usual in the family."""
    commutes: bool = False
    """Whether its two operands may be swapped: for every value, the result is bit for bit the same."""
    suits_lookup_table: bool = True
    """Whether a table of 256 values stands for it well, or for its work with a number: where its operand is finite, it
    is finite, without jumps, and not too steep."""
    draws: bool = False
    """Whether it draws random numbers, if its arguments do not forbid it."""
    bounds: tuple[Bound, Bound] | None = None
    """Of a function that returns the nearest number between two: the smallest and the largest result."""
    value_preserving: bool | None = None
    """Whether each element of the result is one of the operand's; None: what is usual in the family."""
    methods: tuple[str, ...] | None = None
    """The methods that do it; None: those of its functions' names."""

    @property
    def functions(self) -> tuple[Any, ...]:
        """Every function that does it."""
        return (self.function, *self.aliases, *self.also)

    @property
    def is_new(self) -> bool:
        """Return whether its result shares memory with nothing."""
        return self.family in _NEW

    @property
    def is_value_preserving(self) -> bool:
        """Return whether each element of the result is one of the operand's."""
        return self.family in _VALUE_PRESERVING if self.value_preserving is None else self.value_preserving

    def keeps_the(self, what: Kept) -> bool:
        """Return whether the result has the number of dimensions, or the dtype, of the first operand."""
        kept = _KEPT.get(self.family, frozenset()) if self.keeps is None else self.keeps
        return what in kept

    @property
    def spellings(self) -> Iterator[Any]:
        """Functions, classes of modules and names of methods that do it and write to nothing."""
        yield from (*self.functions, *self.modules)
        yield from self._method_names

    @property
    def in_place_spellings(self) -> Iterator[Any]:
        """Functions and names of methods that write the result over the first operand: PyTorch's have a ``_`` more."""
        for function in self.functions:
            name = getattr(function, "__name__", "")
            if function is getattr(operator, name, None):
                other = getattr(operator, f"i{name.strip('_')}", None)
            else:
                home = next((home for home in (torch, F) if getattr(home, name, None) is function), None)
                other = getattr(home, f"{name}_", None)
            if other is not None:
                yield other
        yield from (f"{name}_" for name in self._method_names if hasattr(torch.Tensor, f"{name}_"))

    @property
    def _method_names(self) -> tuple[str, ...]:
        if self.methods is not None:
            return self.methods
        names = dict.fromkeys(str(getattr(function, "__name__", "")) for function in self.functions)
        return tuple(name for name in names if name and hasattr(torch.Tensor, name))


_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")

_torch: Any = torch  # for the functions that torch leaves without types
_F: Any = F
_special: Any = torch.special
_linalg: Any = torch.linalg

_LAYERS = (
    Operator(F.linear, "linear", modules=(nn.Linear,), parameters=("input", "weight", "bias"), dims=0),
    Operator(F.conv1d, "convolution", (), (_torch.conv1d,), (nn.Conv1d,), _CONVOLUTION, dims=1),
    Operator(F.conv2d, "convolution", (), (_torch.conv2d,), (nn.Conv2d,), _CONVOLUTION, dims=2),
    Operator(F.conv3d, "convolution", (), (_torch.conv3d,), (nn.Conv3d,), _CONVOLUTION, dims=3),
    Operator(F.conv_transpose1d, "transposed convolution", (), (), (nn.ConvTranspose1d,), _TRANSPOSED, dims=1),
    Operator(F.conv_transpose2d, "transposed convolution", (), (), (nn.ConvTranspose2d,), _TRANSPOSED, dims=2),
    Operator(F.conv_transpose3d, "transposed convolution", (), (), (nn.ConvTranspose3d,), _TRANSPOSED, dims=3),
    Operator(F.embedding, "embedding", modules=(nn.Embedding,)),
    Operator(F.embedding_bag, "embedding", modules=(nn.EmbeddingBag,)),
    Operator(
        F.batch_norm,
        "batch norm",
        modules=(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
        parameters=("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
    ),
    Operator(
        _torch.batch_norm,
        "batch norm",
        parameters=("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps"),
    ),
    Operator(F.layer_norm, "normalization", (), (_torch.layer_norm,), (nn.LayerNorm,)),
    Operator(F.group_norm, "normalization", (), (_torch.group_norm,), (nn.GroupNorm,)),
    Operator(F.rms_norm, "normalization", (), (_torch.rms_norm,), (nn.RMSNorm,), keeps=_RANK),
    Operator(
        F.instance_norm, "normalization", (), (_torch.instance_norm,),
        (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    ),
    Operator(F.local_response_norm, "normalization", modules=(nn.LocalResponseNorm,)),
    Operator(F.normalize, "normalization"),
)  # fmt: skip

_ACTIVATIONS = (
    Operator(F.relu, "activation", (), (_torch.relu,), (nn.ReLU,), bounds=(0.0, None)),
    Operator(_torch.sigmoid, "activation", (_special.expit,), (F.sigmoid,), (nn.Sigmoid,)),
    Operator(_torch.tanh, "activation", (), (F.tanh,), (nn.Tanh,)),
    Operator(F.gelu, "activation", modules=(nn.GELU,)),
    Operator(F.silu, "activation", modules=(nn.SiLU,)),
    Operator(F.leaky_relu, "activation", modules=(nn.LeakyReLU,)),
    Operator(F.elu, "activation", modules=(nn.ELU,)),
    Operator(F.celu, "activation", (), (_torch.celu,), (nn.CELU,)),
    Operator(F.hardtanh, "activation", modules=(nn.Hardtanh,), bounds=("min_val", "max_val")),
    Operator(F.softplus, "activation", modules=(nn.Softplus,)),
    Operator(F.threshold, "activation", (), (_torch.threshold,), (nn.Threshold,)),
    Operator(F.hardswish, "activation", modules=(nn.Hardswish,)),
    Operator(F.relu6, "activation", modules=(nn.ReLU6,)),  # in the canonical form a hardtanh
    Operator(F.selu, "activation", (), (_torch.selu,), (nn.SELU,)),
    Operator(F.mish, "activation", modules=(nn.Mish,)),
    Operator(F.hardsigmoid, "activation", modules=(nn.Hardsigmoid,)),
    Operator(F.softsign, "activation", modules=(nn.Softsign,)),
    Operator(_F.logsigmoid, "activation", modules=(nn.LogSigmoid,)),
    Operator(F.tanhshrink, "activation", modules=(nn.Tanhshrink,)),
    Operator(_F.hardshrink, "activation", (), (), (nn.Hardshrink,)),
    Operator(_F.softshrink, "activation", modules=(nn.Softshrink,)),
    Operator(_F.prelu, "activation", modules=(nn.PReLU,)),
    Operator(F.rrelu, "activation", (), (_torch.rrelu,), (nn.RReLU,), draws=True),
    Operator(F.glu, "combination", modules=(nn.GLU,), keeps=_BOTH),
    Operator(F.softmax, "softmax", (), (_torch.softmax, _special.softmax), (nn.Softmax, nn.Softmax2d)),
    Operator(F.log_softmax, "softmax", (), (_torch.log_softmax, _special.log_softmax), (nn.LogSoftmax,)),
    Operator(F.softmin, "softmax", modules=(nn.Softmin,)),
    Operator(F.gumbel_softmax, "softmax", draws=True),
)

_DROPOUT = (
    Operator(F.dropout, "dropout", (), (_torch.dropout,), (nn.Dropout,), draws=True),
    Operator(F.dropout1d, "dropout", modules=(nn.Dropout1d,), dims=1, draws=True),
    Operator(F.dropout2d, "dropout", modules=(nn.Dropout2d,), dims=2, draws=True),
    Operator(F.dropout3d, "dropout", modules=(nn.Dropout3d,), dims=3, draws=True),
    Operator(F.alpha_dropout, "dropout", (), (_torch.alpha_dropout,), (nn.AlphaDropout,), draws=True),
    Operator(
        F.feature_alpha_dropout, "dropout", (), (_torch.feature_alpha_dropout,), (nn.FeatureAlphaDropout,), draws=True
    ),
    Operator(_torch.feature_dropout, "dropout", draws=True),
)

_FUNCTIONS = (
    Operator(operator.neg, "function", (), (_torch.neg, _torch.negative)),
    Operator(operator.abs, "function", (), (_torch.abs, _torch.absolute, abs), keeps=_RANK),  # of a complex one, real
    Operator(operator.pos, "view", (), (_torch.positive,)),
    Operator(operator.invert, "logic", (), (_torch.bitwise_not,)),
    Operator(_torch.clamp, "function", (), (_torch.clip,), bounds=("min", "max")),
    Operator(_torch.clamp_min, "function", bounds=("min", None)),
    Operator(_torch.clamp_max, "function", bounds=(None, "max")),
    Operator(_torch.square, "function"),
    Operator(_torch.exp, "function"),
    Operator(_torch.expm1, "function", (_special.expm1,)),
    Operator(_torch.erf, "function", (_special.erf,)),
    Operator(_torch.sin, "function"),
    Operator(_torch.cos, "function"),
    Operator(_torch.atan, "function", (_torch.arctan,)),
    Operator(_torch.sinh, "function", suits_lookup_table=False),
    Operator(_torch.cosh, "function", suits_lookup_table=False),
    Operator(_torch.asinh, "function", (_torch.arcsinh,), suits_lookup_table=False),
    Operator(_torch.erfc, "function", (_special.erfc,), suits_lookup_table=False),
    Operator(_torch.exp2, "function", (_special.exp2,), suits_lookup_table=False),
    Operator(_torch.sinc, "function", (_special.sinc,), suits_lookup_table=False),
    Operator(_torch.i0, "function", (_special.i0,), suits_lookup_table=False),
    Operator(_torch.sqrt, "function", suits_lookup_table=False),
    Operator(_torch.rsqrt, "function", suits_lookup_table=False),
    Operator(_torch.reciprocal, "function", suits_lookup_table=False),
    Operator(_torch.log, "function", suits_lookup_table=False),
    Operator(_torch.log2, "function", suits_lookup_table=False),
    Operator(_torch.log10, "function", suits_lookup_table=False),
    Operator(_torch.log1p, "function", (_special.log1p,), suits_lookup_table=False),
    Operator(_torch.logit, "function", (_special.logit,), suits_lookup_table=False),
    Operator(_torch.tan, "function", suits_lookup_table=False),
    Operator(_torch.acos, "function", (_torch.arccos,), suits_lookup_table=False),
    Operator(_torch.acosh, "function", (_torch.arccosh,), suits_lookup_table=False),
    Operator(_torch.asin, "function", (_torch.arcsin,), suits_lookup_table=False),
    Operator(_torch.atanh, "function", (_torch.arctanh,), suits_lookup_table=False),
    Operator(_torch.erfinv, "function", (_special.erfinv,), suits_lookup_table=False),
    Operator(_torch.digamma, "function", (_special.digamma, _special.psi), suits_lookup_table=False),
    Operator(_torch.lgamma, "function", (_special.gammaln,), suits_lookup_table=False),
    Operator(_torch.mvlgamma, "function", (_special.multigammaln,), suits_lookup_table=False),
    Operator(_torch.floor, "function", suits_lookup_table=False),
    Operator(_torch.ceil, "function", suits_lookup_table=False),
    Operator(_torch.round, "function", (_special.round,), suits_lookup_table=False),
    Operator(_torch.trunc, "function", (_torch.fix,), suits_lookup_table=False),
    Operator(_torch.frac, "function", suits_lookup_table=False),
    Operator(_torch.sign, "function", suits_lookup_table=False),
    Operator(_torch.nan_to_num, "function", suits_lookup_table=False),
)

_PAIRS = (
    Operator(operator.add, "arithmetic", (), (_torch.add,), commutes=True),
    Operator(operator.sub, "arithmetic", (), (_torch.sub, _torch.subtract)),
    Operator(operator.mul, "arithmetic", (), (_torch.mul, _torch.multiply), commutes=True),
    Operator(operator.truediv, "arithmetic", (), (_torch.true_divide, _torch.div, _torch.divide)),
    Operator(operator.floordiv, "arithmetic", (), (_torch.floor_divide,), suits_lookup_table=False),
    Operator(operator.mod, "arithmetic", (), (_torch.remainder,), suits_lookup_table=False),
    Operator(operator.pow, "arithmetic", (), (_torch.pow,), suits_lookup_table=False),
    Operator(_torch.atan2, "combination", (_torch.arctan2,)),
    Operator(_torch.igamma, "combination", (_special.gammainc,)),
    Operator(_torch.igammac, "combination", (_special.gammaincc,)),
    Operator(_torch.xlogy, "combination", (_special.xlogy,)),
    Operator(operator.eq, "comparison", (), (_torch.eq,), commutes=True),
    Operator(operator.ne, "comparison", (), (_torch.ne, _torch.not_equal), commutes=True),
    Operator(operator.lt, "comparison", (), (_torch.lt, _torch.less)),
    Operator(operator.le, "comparison", (), (_torch.le, _torch.less_equal)),
    Operator(operator.gt, "comparison", (), (_torch.gt, _torch.greater)),
    Operator(operator.ge, "comparison", (), (_torch.ge, _torch.greater_equal)),
    Operator(operator.and_, "logic", (), (_torch.bitwise_and,), commutes=True),
    Operator(operator.or_, "logic", (), (_torch.bitwise_or,), commutes=True),
    Operator(operator.xor, "logic", (), (_torch.bitwise_xor,), commutes=True),
    Operator(_torch.logical_and, "logic", commutes=True),
    Operator(_torch.logical_or, "logic", commutes=True),
    Operator(_torch.logical_xor, "logic", commutes=True),
    Operator(_torch.maximum, "extreme", commutes=True),
    Operator(_torch.minimum, "extreme", commutes=True),
)

_SEVERAL = (
    Operator(operator.matmul, "product", (), (_torch.matmul, _linalg.matmul)),
    Operator(_torch.bmm, "product"),
    Operator(_torch.mm, "product"),
    Operator(_torch.outer, "combination", (_torch.ger,)),
    Operator(_torch.matrix_exp, "combination", (_linalg.matrix_exp,)),
    Operator(_torch.matrix_power, "combination", (_linalg.matrix_power,)),
    Operator(_torch.vstack, "combination", (_torch.row_stack,)),
    Operator(_F.bilinear, "combination", modules=(nn.Bilinear,)),
    Operator(_F.cosine_similarity, "combination", modules=(nn.CosineSimilarity,)),
    Operator(_torch.cat, "join", (), (_torch.concat, _torch.concatenate)),
    Operator(_torch.stack, "join"),
)

_POOLING = (
    Operator(_F.avg_pool1d, "average pooling", modules=(nn.AvgPool1d,), dims=1),
    Operator(_F.avg_pool2d, "average pooling", modules=(nn.AvgPool2d,), dims=2),
    Operator(_F.avg_pool3d, "average pooling", modules=(nn.AvgPool3d,), dims=3),
    Operator(_F.adaptive_avg_pool1d, "average pooling", modules=(nn.AdaptiveAvgPool1d,), dims=1),
    Operator(F.adaptive_avg_pool2d, "average pooling", modules=(nn.AdaptiveAvgPool2d,), dims=2),
    Operator(F.adaptive_avg_pool3d, "average pooling", modules=(nn.AdaptiveAvgPool3d,), dims=3),
    Operator(_F.max_pool1d, "max pooling", (), (_torch.max_pool1d,), (nn.MaxPool1d,), dims=1),
    Operator(_F.max_pool2d, "max pooling", (), (_torch.max_pool2d,), (nn.MaxPool2d,), dims=2),
    Operator(_F.max_pool3d, "max pooling", (), (_torch.max_pool3d,), (nn.MaxPool3d,), dims=3),
    Operator(_F.adaptive_max_pool1d, "max pooling", modules=(nn.AdaptiveMaxPool1d,), dims=1),
    Operator(_F.adaptive_max_pool2d, "max pooling", modules=(nn.AdaptiveMaxPool2d,), dims=2),
    Operator(_F.adaptive_max_pool3d, "max pooling", modules=(nn.AdaptiveMaxPool3d,), dims=3),
    Operator(_F.fractional_max_pool2d, "max pooling", dims=2, draws=True),
    Operator(_F.fractional_max_pool3d, "max pooling", dims=3, draws=True),
    Operator(F.interpolate, "resampling", (), (F.upsample,), (nn.Upsample,), value_preserving=True),
    Operator(F.grid_sample, "resampling"),
    Operator(F.affine_grid, "resampling", keeps=frozenset()),
)

_MOVING = (
    Operator(_torch.reshape, "view"),
    Operator(_torch.flatten, "view"),
    Operator(_torch.unflatten, "view"),
    Operator(_torch.permute, "view"),
    Operator(_torch.transpose, "view"),
    Operator(_torch.movedim, "view", (_torch.moveaxis,)),
    Operator(_torch.squeeze, "view"),
    Operator(_torch.unsqueeze, "view"),
    Operator(_torch.narrow, "view"),
    Operator(_torch.select, "view"),
    Operator(_torch.detach, "view"),
    Operator(_torch.Tensor.view, "view"),
    Operator(_torch.Tensor.expand, "view"),
    Operator(_torch.Tensor.contiguous, "view"),
    Operator(operator.getitem, "view", keeps=frozenset()),  # of what may be no tensor
    Operator(_torch.clone, "arrangement"),
    Operator(_torch.flip, "arrangement"),
    Operator(_torch.roll, "arrangement"),
    Operator(_torch.index_select, "arrangement"),
    Operator(_torch.repeat_interleave, "arrangement", keeps=frozenset()),  # of numbers alone it makes indices
    Operator(_torch.Tensor.repeat, "arrangement"),
    Operator(_torch.Tensor.tile, "arrangement"),
    Operator(_F.pixel_shuffle, "arrangement"),
    Operator(_F.pixel_unshuffle, "arrangement"),
    Operator(_F.channel_shuffle, "arrangement"),
    Operator(F.pad, "arrangement"),
    Operator(_torch.chunk, "split"),
    Operator(_torch.split, "split"),
    Operator(_torch.unbind, "split"),
    Operator(_torch.tensor_split, "split"),
    Operator(_torch.amax, "reduction", value_preserving=True),
    Operator(_torch.amin, "reduction", value_preserving=True),
    Operator(_torch.mean, "reduction"),
    Operator(_torch.logsumexp, "reduction", (_special.logsumexp,)),
    Operator(_torch.Tensor.size, "size"),
    Operator(_torch.Tensor.dim, "size"),
    Operator(_torch.numel, "size", (), (_torch.Tensor.numel,)),
    Operator(len, "size"),
)

_LOSSES = (
    Operator(F.binary_cross_entropy, "loss", modules=(nn.BCELoss,)),
    Operator(F.binary_cross_entropy_with_logits, "loss", modules=(nn.BCEWithLogitsLoss,)),
    Operator(F.cosine_embedding_loss, "loss"),
    Operator(F.cross_entropy, "loss", modules=(nn.CrossEntropyLoss,)),
    Operator(F.ctc_loss, "loss"),
    Operator(F.gaussian_nll_loss, "loss"),
    Operator(F.huber_loss, "loss", modules=(nn.HuberLoss,)),
    Operator(F.kl_div, "loss", modules=(nn.KLDivLoss,)),
    Operator(F.l1_loss, "loss", modules=(nn.L1Loss,)),
    Operator(F.mse_loss, "loss", modules=(nn.MSELoss,)),
    Operator(F.nll_loss, "loss", modules=(nn.NLLLoss,)),
    Operator(F.smooth_l1_loss, "loss", modules=(nn.SmoothL1Loss,)),
)

_table: list[Operator] = []
_pure: dict[Any, Operator] = {}
_in_place: dict[Any, Operator] = {}


def register_operator(row: Operator) -> Operator:
    """Add an operator to the table and return it.

    What it does besides computing its result is still for :func:`fx.register_effect` to say, if it is not a function of
    torch. An engine that can compute it needs a converter.

    Raises:
        ValueError: one of its spellings is another operator's.
    """
    taken = [(one, _pure[one]) for one in row.spellings if one in _pure]
    if taken:
        spelling, other = taken[0]
        raise ValueError(f"{spelling!r} is a spelling of the operator {other.function!r}, too")
    _table.append(row)
    _pure.update(dict.fromkeys(row.spellings, row))
    _in_place.update(dict.fromkeys(row.in_place_spellings, row))
    return row


for _row in (*(*_LAYERS, *_ACTIVATIONS, *_DROPOUT, *_FUNCTIONS, *_PAIRS, *_SEVERAL, *_POOLING, *_MOVING, *_LOSSES),):
    register_operator(_row)


def find_operator(target: Any) -> Operator | None:
    """The operator that ``target`` computes, a function, a class of modules or the name of a method; else None."""
    try:
        return _pure.get(target)
    except TypeError:  # unhashable, as a callable object may be
        return None


def find_in_place(target: Any) -> Operator | None:
    """The operator whose result a function, or a method of that name, writes over its first operand; else None."""
    try:
        return _in_place.get(target)
    except TypeError:
        return None


def operators(*families: Family) -> Iterator[Operator]:
    """The rows of some families, or all, in the order of the table."""
    return (row for row in _table if not families or row.family in families)


def is_one_of(target: Any, *families: Family) -> bool:
    """Return whether a function, a class of modules, or a method of that name computes an operator of some families."""
    row = find_operator(target)
    return row is not None and row.family in families
