"""Formulas for the floating-point operations of one kernel call.

Products, convolutions and attention use the registry of ``torch.utils.flop_counter``, with two operations per
multiply-add; products that it lacks are registered there by this module. All other kernels are in a separate table,
which ``FlopCounterMode`` does not count. Its conventions are those of:

* XLA's ``HloCostAnalysis``: an element-wise function is one operation per element of its result, a reduction one per
  element of its operand; moving elements is none.
* fvcore's ``flop_count``: normalization is 5 per element with weights and 4 without, batch norm in evaluation 2 and 1.
* FFTW for Fourier transforms of n elements: 5 n log2 n.

A kernel without a formula is unknown. It adds nothing to the lower bound. Its upper bound is a multiply-add for each
pair of an element of its result and an element of its largest operand; no product or convolution exceeds that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from math import log2, prod
from typing import Any, TypeAlias

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils import flop_counter

from fx.container_kinds import leaves_of

Rule: TypeAlias = Callable[[Sequence[Any], Any], int]
"""A function that takes the arguments and the result of a kernel, and returns its floating-point operations."""


def tensors_in(values: Any) -> list[torch.Tensor]:
    """Return the tensors in the arguments of a kernel, or in its result."""
    return [value for value in leaves_of(values) if isinstance(value, torch.Tensor)]


def _per_result(count: int) -> Rule:
    return lambda args, result: count * _numel(result)


def _per_operand(count: int, place: int = 0) -> Rule:
    return lambda args, result: count * _numel(args[place])


def _per_inner(count: int, place: int) -> Rule:
    """Return a rule: ``count`` operations per element of the result and per element of an operand's last dimension."""
    return lambda args, result: count * _numel(result) * int(args[place].shape[-1])


def _numel(value: Any) -> int:
    """Return the number of elements of a tensor, or of the first tensor in a tuple or list."""
    tensors = tensors_in(value)
    return int(tensors[0].numel()) if tensors else 0


def _norm(with_weight: int, without: int, place: int) -> Rule:
    def rule(args: Sequence[Any], result: Any) -> int:
        has_weight = len(args) > place and args[place] is not None
        return (with_weight if has_weight else without) * _numel(args[0])

    return rule


def _batch_norm(args: Sequence[Any], result: Any) -> int:
    """Count as fvcore does: in training as other normalization, in evaluation a multiplication and an addition."""
    trains, has_weight = next((arg for arg in args if isinstance(arg, bool)), False), args[1] is not None
    return ((5 if has_weight else 4) if trains else (2 if has_weight else 1)) * _numel(args[0])


def _pooling(args: Sequence[Any], result: Any) -> int:
    """Count one operation per element of each window; the second argument is the window's size."""
    return _numel(result) * prod([args[1]] if isinstance(args[1], int) else args[1])


def _pooling_backward(args: Sequence[Any], result: Any) -> int:
    """Count one addition per element of each window; the gradient precedes the arguments of the forward kernel."""
    return _pooling(args[1:], args[0])


def _sorting(args: Sequence[Any], result: Any) -> int:
    """Count the comparisons along the sorted dimension."""
    tensor = args[0]
    dim = next((arg for arg in args[1:] if isinstance(arg, int) and not isinstance(arg, bool)), -1)
    length = tensor.shape[dim] if tensor.dim() and -tensor.dim() <= dim < tensor.dim() else tensor.numel()
    return int(tensor.numel() * max(1, (max(int(length), 2) - 1).bit_length()))


def _fourier(args: Sequence[Any], result: Any) -> int:
    tensor, dims = args[0], args[1]
    length = prod(max(tensor.shape[dim], tensors_in(result)[0].shape[dim]) for dim in dims)
    count = max(_numel(tensor), _numel(result))
    return int(5 * count * log2(max(length, 2)))


def _attention(args: Sequence[Any], result: Any) -> int:
    """Count queries by keys and scores by values, with the formula that PyTorch registers for other devices."""
    query, key, value = (tuple(arg.shape) for arg in args[:3])
    return int(flop_counter.sdpa_flop_count(query, key, value))


def _attention_backward(args: Sequence[Any], result: Any) -> int:
    grad, query, key, value = (tuple(arg.shape) for arg in args[:4])
    return int(flop_counter.sdpa_backward_flop_count(grad, query, key, value))


def _self_attention(args: Sequence[Any], result: Any) -> int:
    """Count a fused ``nn.MultiheadAttention``: input and output projections, queries by keys, scores by values."""
    query, key, weights = args[0], args[1], (args[5], args[7])
    scores = 4 * _numel(query) * int(key.shape[-2])
    return 2 * int(query.shape[:-1].numel()) * sum(map(_numel, weights)) + scores


def _encoder_layer(args: Sequence[Any], result: Any) -> int:
    """Count a fused ``nn.TransformerEncoderLayer``: attention and the two products after it."""
    source, weights = args[0], (args[3], args[5], args[14], args[16])
    scores = 4 * _numel(source) * int(source.shape[-2])
    return 2 * int(source.shape[:-1].numel()) * sum(map(_numel, weights)) + scores


def _recurrent(args: Sequence[Any], result: Any) -> int:
    """Count one layer of an LSTM or GRU in one direction: both weights by the inputs and states of all steps."""
    steps = int(args[0].shape[:-1].numel())
    return 2 * steps * (_numel(args[1]) + _numel(args[2]))


def _register_products(products: Mapping[str, Rule]) -> None:
    """Register formulas for PyTorch's products that its counter lacks."""
    for names, rule in products.items():
        packets = [getattr(torch.ops.aten, name, None) for name in names.split()]
        missing = [packet for packet in packets if packet is not None and packet not in flop_counter.flop_registry]

        def formula(*args: Any, out_val: Any = None, rule: Rule = rule, **_: Any) -> int:
            return rule(args, out_val)

        flop_counter.register_flop_formula(missing, get_raw=True)(formula)


_register_products({
    "linear _int_mm": _per_inner(2, 0),
    "mv dot vdot": _per_operand(2),
    "addmv": _per_operand(2, 1),
    "_addmm_activation": _per_inner(2, 1),
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_fused_attention_overrideable": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward"
    " _scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "_native_multi_head_attention": _self_attention,
    "_transformer_encoder_layer_fwd": _encoder_layer,
    "mkldnn_rnn_layer": _recurrent,
    # The gradients of the inputs and of the weights, each as many operations as the forward run.
    "mkldnn_rnn_layer_backward": lambda args, result: 2 * _recurrent(args, result),
})  # fmt: skip

_ONE_PER_RESULT = _per_result(1)

_RULES: dict[str, Rule] = {
    # Elements are only moved, created or selected by position: no operations.
    "clone _to_copy copy copy_ to cat stack contiguous constant_pad_nd reflection_pad1d reflection_pad2d"
    " reflection_pad3d replication_pad1d replication_pad2d replication_pad3d fill fill_ zero zero_ zeros ones full"
    " zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor eye tril triu flip roll repeat rot90"
    " index index_select gather embedding slice_scatter select_scatter diagonal_scatter as_strided_scatter"
    " slice_backward select_backward masked_select masked_scatter masked_fill_ nonzero where scatter index_put"
    " index_fill index_copy im2col pixel_shuffle pixel_unshuffle channel_shuffle upsample_nearest1d"
    " upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d lift_fresh"
    " lift_fresh_copy _local_scalar_dense one_hot resize_ set_ complex tril_indices triu_indices _assert_async"
    " _assert_tensor_metadata _linalg_check_errors repeat_interleave unfold_backward diag_embed block_diag"
    " mkldnn_reorder_conv2d_weight to_dense to_mkldnn": _per_result(0),
    # One operation per element of the result. (Most such kernels have torch.Tag.pointwise, and need no row.)
    "arange linspace rand randn randint rand_like randn_like randint_like randperm bernoulli uniform normal random"
    " hardswish leaky_relu leaky_relu_backward exponential rsub floor_divide polar glu glu_backward prelu"
    " _prelu_kernel rrelu_with_noise log_sigmoid_forward log_sigmoid_backward _fused_dropout"
    " embedding_dense_backward addr bernoulli_ uniform_ normal_ random_ exponential_ multinomial bucketize searchsorted"
    " logical_and logical_or logical_not logical_xor": _ONE_PER_RESULT,
    "native_dropout native_dropout_backward _prelu_kernel_backward cross linalg_cross": _per_result(2),
    # One or more operations per element of the operand.
    "sum mean amax amin max min aminmax argmax argmin prod any all count_nonzero cumsum cumprod cummax cummin nansum"
    " median nanmedian mode nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward trace bincount"
    " histc equal is_nonzero unique_consecutive": _per_operand(1),
    "norm linalg_vector_norm mse_loss_backward logcumsumexp renorm": _per_operand(2),
    "var std var_mean std_mean logsumexp mse_loss l1_loss smooth_l1_loss huber_loss smooth_l1_loss_backward"
    " huber_loss_backward _weight_norm_interface": _per_operand(3),
    "_softmax_backward_data _log_softmax_backward_data binary_cross_entropy_backward": _per_operand(4),
    "_softmax _log_softmax _safe_softmax _masked_softmax binary_cross_entropy _euclidean_dist"
    " _weight_norm_interface_backward": _per_operand(5),
    "binary_cross_entropy_with_logits": _per_operand(6),
    # Normalization.
    "native_layer_norm": _norm(5, 4, 2),
    "native_group_norm _batch_norm_with_update _batch_norm_with_update_functional": _norm(5, 4, 1),
    "_fused_rms_norm rms_norm": _norm(4, 3, 2),
    "native_batch_norm _native_batch_norm_legit cudnn_batch_norm _native_batch_norm_legit_functional": _batch_norm,
    "_native_batch_norm_legit_no_training _batch_norm_no_update batch_norm_elemt": _norm(2, 1, 1),
    "native_layer_norm_backward native_group_norm_backward native_batch_norm_backward cudnn_batch_norm_backward"
    " batch_norm_backward _fused_rms_norm_backward": _per_operand(10),  # 2 to normalize again, 8 for the gradients
    # Windows.
    "avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d_with_indices max_pool3d_with_indices max_pool2d max_pool3d"
    " mkldnn_max_pool2d mkldnn_max_pool3d quantized_max_pool2d": _pooling,
    "avg_pool2d_backward avg_pool3d_backward": _pooling_backward,
    "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d adaptive_avg_pool1d col2im"
    " _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward"
    " adaptive_max_pool3d_backward upsample_nearest1d_backward upsample_nearest2d_backward"
    " upsample_nearest3d_backward": lambda args, result: max(_numel(args[0]), _numel(result)),
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward _embedding_bag_backward"
    " _embedding_bag_dense_backward": _per_operand(1),
    "upsample_linear1d": _per_result(4),  # an addition and a multiplication per element that is read
    "upsample_bilinear2d _upsample_bilinear2d_aa grid_sampler_2d": _per_result(8),
    "upsample_trilinear3d grid_sampler_3d": _per_result(16),
    "upsample_bicubic2d _upsample_bicubic2d_aa": _per_result(32),
    "upsample_linear1d_backward": _per_operand(4),
    "upsample_bilinear2d_backward _upsample_bilinear2d_aa_backward grid_sampler_2d_backward": _per_operand(8),
    "upsample_trilinear3d_backward grid_sampler_3d_backward": _per_operand(16),
    "upsample_bicubic2d_backward _upsample_bicubic2d_aa_backward": _per_operand(32),
    # The rest.
    "scatter_add index_add scatter_reduce index_reduce _unsafe_index_put put": lambda args, result: max(
        (_numel(arg) for arg in args[1:]), default=0
    ),
    "_embedding_bag _embedding_bag_forward_only": lambda args, result: _numel(args[1]) * int(args[0].shape[-1]),
    "sort topk kthvalue argsort unique_dim _unique2": _sorting,
    "_fft_r2c _fft_c2c _fft_c2r": _fourier,
    "_cdist_forward _cdist_backward _pdist_forward": _per_inner(3, 0),
}
"""Formulas of the other kernels, by name without ``aten.``; in-place kernels use the name without ``_``."""

_RULE_OF: dict[str, Rule] = {name: rule for names, rule in _RULES.items() for name in names.split()}


def flops_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> tuple[int | None, int]:
    """Return the floating-point operations of a call, None if unknown, and the multiply-adds of products."""
    formula = flop_counter.flop_registry.get(getattr(func, "overloadpacket", None))
    if formula is not None:
        flops = int(formula(*args, **kwargs, out_val=result))
        return flops, flops // 2
    rule = _find_rule(func)
    return (None if rule is None else rule(args, result)), 0


def name_of(func: Any) -> tuple[str, str]:
    """Return the namespace and the name of an operator."""
    namespace, _, name = str(func._schema.name).partition("::")
    return namespace, name


@functools.cache
def _find_rule(func: Any) -> Rule | None:
    """Return the rule of an operator that is not a product, or None if there is none."""
    if not isinstance(func, OpOverload):
        return None
    namespace, name = name_of(func)
    for spelling in (name, name.removesuffix("_")) if namespace == "aten" else ():
        if spelling in _RULE_OF and not (spelling in ("max", "min") and torch.Tag.pointwise in func.tags):
            return _RULE_OF[spelling]
    return _ONE_PER_RESULT if _is_element_wise(func, name) else None


def _is_element_wise(func: OpOverload, name: str) -> bool:
    """Return whether an operator, or the operator that it is the gradient of, works element by element."""
    if torch.Tag.pointwise in func.tags:
        return True
    forward = getattr(torch.ops.aten, name.removesuffix("_backward"), None) if name.endswith("_backward") else None
    if not isinstance(forward, OpOverloadPacket):
        return False
    overload = getattr(forward, forward.overloads()[0])
    return torch.Tag.pointwise in overload.tags or _find_rule(overload) is _ONE_PER_RESULT
