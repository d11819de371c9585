"""The rows of the table of operators."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fx.operators.facts import BOTH, RANK, Operator

_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
_SECTIONS = ("indices_or_sections", "sections", "indices")

_torch: Any = torch  # for the functions that torch leaves without types
_F: Any = F
_special: Any = torch.special
_linalg: Any = torch.linalg

_LAYERS = (
    Operator(F.linear, "linear", modules=(nn.Linear,), parameters=("input", "weight", "bias"), dims=0,
             is_contiguous=True),
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
        has_statistics=True,
        parameters=("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
    ),
    Operator(
        _torch.batch_norm,
        "batch norm",
        parameters=("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps"),
    ),
    Operator(F.layer_norm, "normalization", (), (_torch.layer_norm,), (nn.LayerNorm,), needs=((4,),)),
    Operator(F.group_norm, "normalization", (), (_torch.group_norm,), (nn.GroupNorm,), needs=(1,)),
    Operator(F.rms_norm, "normalization", (), (_torch.rms_norm,), (nn.RMSNorm,), keeps=RANK, needs=((4,),)),
    Operator(
        F.instance_norm, "normalization", (), (_torch.instance_norm,),
        (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), has_statistics=True,
    ),
    Operator(F.local_response_norm, "normalization", modules=(nn.LocalResponseNorm,), needs=(2,)),
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
    Operator(F.threshold, "activation", (), (_torch.threshold,), (nn.Threshold,), needs=(0.5, 0.25)),
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
    Operator(F.glu, "combination", modules=(nn.GLU,), keeps=BOTH),
    Operator(F.softmax, "softmax", (), (_torch.softmax, _special.softmax), (nn.Softmax, nn.Softmax2d), needs=(-1,)),
    Operator(F.log_softmax, "softmax", (), (_torch.log_softmax, _special.log_softmax), (nn.LogSoftmax,), needs=(-1,)),
    Operator(F.softmin, "softmax", modules=(nn.Softmin,), needs=(-1,)),
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
    Operator(_torch.feature_dropout, "dropout", draws=True, needs=(0.5, False)),
)

_FUNCTIONS = (
    Operator(operator.neg, "function", (), (_torch.neg, _torch.negative)),
    Operator(
        operator.abs, "function", (), (_torch.abs, _torch.absolute, abs), keeps=RANK
    ),  # of a complex tensor, a real one
    Operator(operator.pos, "view", (), (_torch.positive,)),
    Operator(operator.invert, "logic", (), (_torch.bitwise_not,)),
    Operator(_torch.clamp, "function", (), (_torch.clip,), bounds=("min", "max"), needs=(-0.5, 0.5)),
    Operator(_torch.clamp_min, "function", bounds=("min", None), needs=(-0.5,)),
    Operator(_torch.clamp_max, "function", bounds=(None, "max"), needs=(0.5,)),
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
    Operator(_torch.sqrt, "function", suits_lookup_table=False, domain=(0, None)),
    Operator(_torch.rsqrt, "function", suits_lookup_table=False, domain=(0, None)),
    Operator(_torch.reciprocal, "function", suits_lookup_table=False, domain=(0, None)),
    Operator(_torch.log, "function", suits_lookup_table=False, domain=(0, None)),
    Operator(_torch.log2, "function", suits_lookup_table=False, domain=(0, None)),
    Operator(_torch.log10, "function", suits_lookup_table=False, domain=(0, None)),
    Operator(_torch.log1p, "function", (_special.log1p,), suits_lookup_table=False, domain=(-1, None)),
    Operator(_torch.logit, "function", (_special.logit,), suits_lookup_table=False, domain=(0, 1)),
    Operator(_torch.tan, "function", suits_lookup_table=False),
    Operator(_torch.acos, "function", (_torch.arccos,), suits_lookup_table=False, domain=(-1, 1)),
    Operator(_torch.acosh, "function", (_torch.arccosh,), suits_lookup_table=False, domain=(1, None)),
    Operator(_torch.asin, "function", (_torch.arcsin,), suits_lookup_table=False, domain=(-1, 1)),
    Operator(_torch.atanh, "function", (_torch.arctanh,), suits_lookup_table=False, domain=(-1, 1)),
    Operator(_torch.erfinv, "function", (_special.erfinv,), suits_lookup_table=False, domain=(-1, 1)),
    Operator(_torch.digamma, "function", (_special.digamma, _special.psi), suits_lookup_table=False, domain=(0, None)),
    Operator(_torch.lgamma, "function", (_special.gammaln,), suits_lookup_table=False, domain=(0, None)),
    Operator(
        _torch.mvlgamma, "function", (_special.multigammaln,), suits_lookup_table=False, domain=(0, None), needs=(1,)
    ),
    Operator(_torch.floor, "function", suits_lookup_table=False, rounds=True),
    Operator(_torch.ceil, "function", suits_lookup_table=False, rounds=True),
    Operator(_torch.round, "function", (_special.round,), suits_lookup_table=False, rounds=True),
    Operator(_torch.trunc, "function", (_torch.fix,), suits_lookup_table=False, rounds=True),
    Operator(_torch.frac, "function", suits_lookup_table=False),
    Operator(_torch.sign, "function", suits_lookup_table=False, rounds=True),
    Operator(_torch.nan_to_num, "function", suits_lookup_table=False),
)

_PAIRS = (
    Operator(operator.add, "arithmetic", (), (_torch.add,), commutes=True),
    Operator(operator.sub, "arithmetic", (), (_torch.sub, _torch.subtract)),
    Operator(operator.mul, "arithmetic", (), (_torch.mul, _torch.multiply), commutes=True),
    Operator(operator.truediv, "arithmetic", (), (_torch.true_divide, _torch.div, _torch.divide)),
    Operator(operator.floordiv, "arithmetic", (), (_torch.floor_divide,), suits_lookup_table=False, rounds=True),
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
    Operator(F.interpolate, "resampling", (), (F.upsample,), (nn.Upsample,), value_preserving=True, needs=(3,)),
    Operator(F.grid_sample, "resampling"),
    Operator(F.affine_grid, "resampling", keeps=frozenset()),
)

_MOVING = (
    Operator(_torch.reshape, "view", needs=((-1,),), is_contiguous=True),
    Operator(_torch.flatten, "view", is_contiguous=True),
    Operator(_torch.unflatten, "view", needs=(-1, (2, 2)), shares="view"),
    Operator(_torch.permute, "view", needs=((2, 1, 0),), shares="view"),
    Operator(_torch.transpose, "view", (), (_torch.swapaxes, _torch.swapdims), needs=(0, 1), shares="view"),
    Operator(_torch.t, "view", shares="view"),
    Operator(_torch.movedim, "view", (_torch.moveaxis,), needs=(0, 1), shares="view"),
    Operator(_torch.squeeze, "view", shares="view"),
    Operator(_torch.unsqueeze, "view", needs=(0,), shares="view"),
    Operator(_torch.narrow, "view", needs=(0, 0, 1), shares="view"),
    Operator(_torch.select, "view", needs=(0, 0), shares="view"),
    Operator(_torch.diagonal, "view", shares="view"),
    Operator(_torch.detach, "view", shares="view"),
    Operator(_torch.Tensor.view, "view", needs=(-1,), shares="view"),
    Operator(_torch.Tensor.view_as, "view", value_preserving=False, shares="view"),  # of two tensors
    Operator(_torch.Tensor.expand, "view", needs=(2, 2, 4, 4), shares="view"),
    Operator(_torch.Tensor.expand_as, "view", value_preserving=False, shares="view"),
    Operator(_torch.Tensor.unfold, "view", needs=(0, 1, 1), shares="view"),
    Operator(_torch.Tensor.contiguous, "view", is_contiguous=True),
    Operator(operator.getitem, "view", keeps=frozenset(), needs=(0,)),  # the operand may be no tensor
    Operator(_torch.clone, "arrangement"),
    Operator(_torch.flip, "arrangement", needs=((0,),)),
    Operator(_torch.roll, "arrangement", needs=(1,)),
    Operator(_torch.index_select, "arrangement", needs=(0,)),
    Operator(_torch.repeat_interleave, "arrangement", keeps=frozenset(), needs=(2,)),  # of numbers, indices
    Operator(_torch.Tensor.repeat, "arrangement", needs=(2, 1, 1)),
    Operator(_torch.Tensor.tile, "arrangement", needs=(2,)),
    Operator(_F.pixel_shuffle, "arrangement", needs=(1,)),
    Operator(_F.pixel_unshuffle, "arrangement", needs=(1,)),
    Operator(_F.channel_shuffle, "arrangement", needs=(2,)),
    Operator(F.pad, "arrangement", needs=((1, 1),)),
    Operator(_torch.chunk, "split", needs=(2,), parts=("chunks",)),
    Operator(_torch.unsafe_chunk, "split", needs=(2,), parts=("chunks",)),
    Operator(_torch.split, "split", needs=(1,), parts=("split_size", "split_size_or_sections")),
    Operator(_torch.unsafe_split, "split", needs=(1,), parts=("split_size",)),
    Operator(_torch.split_with_sizes, "split", needs=((1, 1),), parts=("split_sizes",)),
    Operator(_torch.tensor_split, "split", needs=(2,), parts=("tensor_indices_or_sections", *_SECTIONS)),
    Operator(_torch.hsplit, "split", needs=(2,), parts=_SECTIONS),
    Operator(_torch.vsplit, "split", needs=(2,), parts=_SECTIONS),
    Operator(_torch.dsplit, "split", needs=(2,), parts=_SECTIONS),
    Operator(_torch.unbind, "split"),
    Operator(_torch.amax, "reduction", value_preserving=True, needs=(0,)),
    Operator(_torch.amin, "reduction", value_preserving=True, needs=(0,)),
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

ROWS = (*_LAYERS, *_ACTIVATIONS, *_DROPOUT, *_FUNCTIONS, *_PAIRS, *_SEVERAL, *_POOLING, *_MOVING, *_LOSSES)
"""All rows, in the order of the search."""
