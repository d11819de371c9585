"""The operators of torch's dispatcher that a data-only file may name: those that check their arguments.

Documented functions of ``torch``, ``torch.nn.functional``, ``torch.linalg``, ``torch.fft`` and ``torch.special`` and
documented methods of tensors are made for users' arguments. Other operators in captures are listed one by one.
``tests/fuzz/wild_calls.py`` calls each with wrong shapes, dtypes, sizes and indices. Operators that ended the process
or read other memory are excluded, with the reason.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional

from fx.naming.targets import words

_torch: Any = torch  # for the parts of it that have no types


_HOMES: tuple[tuple[Any, str], ...] = (
    (torch, ""),
    (torch.Tensor, ""),
    (torch.nn.functional, ""),
    (torch.linalg, "linalg_"),
    (torch.fft, "fft_"),
    (torch.special, "special_"),
)
"""The modules of public functions, with the prefix of the operators' names in each."""

_WITHOUT_DOCUMENTATION = words(
    "affine_grid_generator alias alpha_dropout_ clamp_max clamp_max_ clamp_min clamp_min_ col2im constant_pad_nd "
    "convolution copy cross_entropy_loss dropout_ embedding_renorm_ feature_alpha_dropout_ feature_dropout "
    "feature_dropout_ fill frobenius_norm gelu_ hardsigmoid_ hardswish_ im2col is_same_size lift lift_fresh "
    "lift_fresh_copy log_sigmoid log_sigmoid_forward matrix_H mish_ native_dropout native_group_norm native_layer_norm "
    "nll_loss2d nll_loss2d_forward nll_loss_forward nll_loss_nd norm_except_dim nuclear_norm numpy_T pad_sequence "
    "reflection_pad1d reflection_pad2d reflection_pad3d relu6_ replication_pad1d replication_pad2d replication_pad3d "
    "rrelu_with_noise rrelu_with_noise_ rsub scalar_tensor silu_ slice split_with_sizes sym_constrain_range "
    "sym_constrain_range_for_size sym_is_contiguous sym_numel sym_size sym_storage_offset sym_stride uniform "
    "unique_dim unique_dim_consecutive upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d "
    "upsample_nearest2d upsample_nearest3d upsample_trilinear3d zero"
)
"""Operators that programs of ``torch.export`` and functions of ``torch.nn.functional`` call."""

OF_CAPTURES = words(
    "_adaptive_avg_pool2d _adaptive_avg_pool3d _assert_async _assert_scalar _assert_tensor_metadata "
    "_local_scalar_dense _log_softmax _scaled_dot_product_flash_attention_for_cpu _softmax _to_copy _unsafe_view"
)
"""Operators with a leading underscore in programs of ``torch.export``.

``_native_batch_norm_legit_no_training`` and its like are not among them: they read a statistic for each channel without
a check that there are enough; ``batch_norm`` checks that.
"""

REFUSED: dict[str, tuple[str, ...]] = {
    "they read or write files, or the process's state": words("from_file save pin_memory record_stream"),
    "they change what a tensor is made of": words("data set set_ set_data"),
    "they change what autograd does": words("backward requires_grad_ retain_grad"),
    "they leave it to the caller that indices or sizes are in bounds": words(
        "resize_as_sparse_ segment_reduce sparse_bsc_tensor sparse_bsr_tensor sparse_compressed_tensor "
        "sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor sparse_resize_ sparse_resize_and_clear_ "
        "unsafe_chunk unsafe_split unsafe_split_with_sizes"
    ),
    "what they return can be written, and sparse tensors trust it": words(
        "ccol_indices col_indices crow_indices indices row_indices"
    ),
    "steps that round to zero divide by zero": words("range"),
    "the shape of the pivots is not checked": words("lu_unpack"),
    "a reduction that is none gives unset memory; the function of ``torch.nn.functional`` checks it": words(
        "multilabel_margin_loss soft_margin_loss"
    ),
    "targets out of range are read beyond the log-probabilities": words("ctc_loss"),
    "offsets are not checked (:mod:`fx.serialization.trusted_arguments` sees to those of the function)": words(
        "embedding_bag"
    ),
    "LAPACK trusts pivots that do not belong together": words("linalg_ldl_solve"),
    "LAPACK reads beyond matrices that hold infinity": words("linalg_eigvals"),
}
"""Operators that would be listed otherwise, by the reason of the exclusion."""

_REFUSED_BEGINNINGS = ("cudnn_", "fbgemm_", "miopen_", "mkldnn_", "quantized_")
"""Prefixes of operators of a single library, which expect arguments that only torch's own code passes."""


@lru_cache(maxsize=1)
def _overloads() -> frozenset[str]:
    """Return the operators of the dispatcher, as ``add.Tensor`` or ``relu``, without those of TorchScript alone."""
    names: list[str] = _torch._C._dispatch_get_all_op_names()
    return frozenset(name.removeprefix("aten::") for name in names if name.startswith("aten::"))


@lru_cache(maxsize=1)
def operators() -> frozenset[str]:
    """Return the operators that a file may name, without ``aten::`` and overload."""
    names_without_overload = {name.partition(".")[0] for name in _overloads()}
    documented = {name for name in names_without_overload if not name.startswith("_") and _is_documented(name)}
    refused = {name for names in REFUSED.values() for name in names}
    refused |= {name for name in documented if "_backward" in name or name.startswith(_REFUSED_BEGINNINGS)}
    return frozenset((documented | names_without_overload & {*_WITHOUT_DOCUMENTATION, *OF_CAPTURES}) - refused)


def is_overload(operator: str, overload: str) -> bool:
    """Return whether a file may name this overload of an allowed operator."""
    return (operator if overload == "default" else f"{operator}.{overload}") in _overloads()


def _is_documented(name: str) -> bool:
    for home, beginning in _HOMES:
        function = getattr(home, name.removeprefix(beginning), None) if name.startswith(beginning) else None
        if function is not None and function.__doc__:  # None is documented itself since Python 3.13
            return True
    return False
