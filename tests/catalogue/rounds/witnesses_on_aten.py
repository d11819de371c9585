"""Programs on which passes on ATen act, by the name of the pass; each shows the fault of a wrong one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ..rows import Witness, of, settled

INDICES = torch.tensor([2, 0, 1, 2])
X, IMAGE = (4, 6), (2, 3, 5, 6)


class _Counter(nn.Module):
    """A buffer that is read, and then written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add twice the number of calls so far."""
        result = x + self.seen * 2
        self.seen.add_(1)
        return result


def _written(self, x):
    x.add_(1)
    return x * 2


def _through_view(self, x):
    y = x * 2
    y[:, 0].add_(1)
    return y.exp()


def _read_twice(self, x):
    y = x * 1.5
    first = y.sin()
    y[:, 0].add_(1)
    return (first * 2, y.sin() * 3)


def _softmax(self, x):
    exponentials = torch.exp(x - torch.amax(x, -1, keepdim=True))
    return exponentials / torch.sum(exponentials, -1, keepdim=True)


def _safe_root(self, x):
    mask = x > 0
    return torch.where(mask, torch.sqrt(torch.where(mask, x, torch.ones_like(x))), torch.zeros_like(x))


def _twice_written(self, x):
    index = (torch.tensor([0, 2]),)
    return x.index_put(index, x[:2] * 2).index_put(index, x[:2], accumulate=True)


WITNESSES: dict[str, Witness] = {
    "drop_same_dtype_copies": of(lambda self, x: x.to(x.dtype, copy=True), X),
    "shorten_casts_by_range": of(lambda self, x: x.half().bfloat16().float(), X),
    "shorten_casts_by_range_and_digits": of(lambda self, x: x.half().float().double() * 2, X),
    "cancel_round_trips": of(lambda self, x: x.to(torch.int32).float() * 3, X),
    "casts_before_sums": of(lambda self, x: x.sum(1).to(torch.int32), X),
    "fold_inference_norms": of(
        lambda self, x: self.norm(self.conv(x)),
        IMAGE,
        conv=nn.ConvTranspose2d(3, 3, 2),
        norm=settled(nn.BatchNorm2d(3)),
    ),
    "pointwise_convolution_as_matmul": of(lambda self, x: self.conv(x), IMAGE, conv=nn.Conv2d(3, 4, 1, padding=1)),
    "plain_pointwise_convolution_as_matmul": of(lambda self, x: self.conv(x), IMAGE, conv=nn.Conv2d(3, 4, 1)),
    "absorb_pads": of(lambda self, x: self.conv(F.pad(x, (1, 1, 1, 1), value=2.0)), IMAGE, conv=nn.Conv2d(3, 4, 3)),
    "absorb_exported_pads": of(
        lambda self, x: self.conv(F.pad(x, (1, 1, 1, 1), mode="reflect")), IMAGE, conv=nn.Conv2d(3, 4, 3)
    ),
    "scale_weights": of(lambda self, x: self.conv(x) * 0.5, IMAGE, conv=nn.Conv2d(3, 4, 3)),
    "scale_weights_and_bias": of(lambda self, x: self.conv(x) * 0.5, IMAGE, conv=nn.Conv2d(3, 4, 3)),
    "transposed_as_forward": of(lambda self, x: self.conv(x), IMAGE, conv=nn.ConvTranspose2d(3, 4, 2, dilation=2)),
    "join_parallel_convolutions": of(
        lambda self, x: self.first(x) - self.second(x),
        (2, 4, 5, 6),
        first=nn.Conv2d(4, 4, 2, groups=2),
        second=nn.Conv2d(4, 4, 2, groups=2),
    ),
    "HardtanhAsClamp": of(lambda self, x: F.relu6(x), X),
    "HardtanhAsClampWithBounds": of(lambda self, x: F.hardtanh(x), X),
    "EluByParts": of(lambda self, x: F.selu(x), X),
    "statistics_of_layer_norms": of(lambda self, x: self.norm(x), X, norm=settled(nn.LayerNorm(6))),
    "gradients_from_threshold_on": of(lambda self, x: F.relu(x - x.clamp_min(0)), X),
    "gradients_above_threshold": of(lambda self, x: F.relu(x - x.clamp_min(0)), X),
    "open_layer_norms_aten": of(lambda self, x: self.norm(x), X, norm=settled(nn.LayerNorm(6))),
    "open_layer_norms_without_correction": of(lambda self, x: self.norm(x), X, norm=settled(nn.LayerNorm(6))),
    "batch_norms_of_training": of(lambda self, x: self.norm(x), IMAGE, train=True, norm=settled(nn.BatchNorm2d(3))),
    "open_attention_by_depth": of(
        lambda self, q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.9), (2, 3, 4), (2, 5, 4), (2, 5, 4)
    ),
    "open_attention_by_scale": of(
        lambda self, q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.9), (2, 3, 4), (2, 5, 4), (2, 5, 4)
    ),
    "causal_masks": of(
        lambda self, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (2, 3, 4), (2, 5, 4), (2, 5, 4)
    ),
    "bilinear_by_size": of(lambda self, x: F.interpolate(x, (7, 9), mode="bilinear", align_corners=True), IMAGE),
    "pads_of_pools": of(lambda self, x: F.max_pool2d(-x.abs(), 3, 2, 1), IMAGE),
    "infinite_pads_of_pools": of(lambda self, x: F.max_pool2d(-x.abs(), 3, 2, 1), IMAGE),
    "pools_with_indices": of(lambda self, x: F.max_pool2d(x, 2, 2, ceil_mode=True), IMAGE),
    "lookups_by_index": of(lambda self, i: self.table(i), INDICES, table=nn.Embedding(3, 4, padding_idx=0)),
    "FuseSoftmax": of(_softmax, (2, 3, 4)),
    "FuseLogSoftmax": of(lambda self, x: torch.log(torch.softmax(x, 0)), X),
    "FuseSilu": of(lambda self, x: x * torch.sigmoid(x), X),
    "open_baddbmm": of(lambda self, a, b, c: torch.baddbmm(a, b, c, beta=0.5), (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "open_plain_addmm": of(lambda self, a, b, c: torch.addmm(a, b, c), (5,), (3, 4), (4, 5)),
    "differences_as_sums": of(lambda self, x, y: torch.sub(x, y, alpha=2), X, X),
    "floating_differences_as_sums": of(lambda self, x, y: torch.sub(x, y, alpha=2), X, X),
    "rounded_quotients": of(lambda self, x: torch.div(x, 0.7, rounding_mode="trunc"), X),
    "truncated_quotients": of(lambda self, x, y: torch.div(x, y, rounding_mode="trunc"), X, X),
    "simplify_powers": of(lambda self, i: i**1.0, INDICES),
    "simplify_powers_of_floats": of(lambda self, x: x**2 + x**1.0, X),
    "full_tensors_as_numbers": of(lambda self, x: x * torch.full((6,), 2.0, dtype=torch.float64), X),
    "differences_from_zero": of(lambda self, x: torch.sign(1 / (0 - F.relu(x))), X),
    "open_variances": of(lambda self, x: x.var(-1, correction=0), X),
    "open_variances_with_correction": of(lambda self, x: x.var(-1), X),
    "descending_as_flipped": of(lambda self, x: torch.sort(x.round(), stable=True, descending=True)[1], X),
    "argmax_as_max": of(lambda self, x: x.argmax(), X),
    "drop_detaches": of(lambda self, x: x.sin() * x.detach(), X),
    "clamp_upper_bound_first": of(lambda self, x: x.clamp(1.0, -1.0), X),
    "clamp_lower_bound_first": of(lambda self, x: x.clamp(1.0, -1.0), X),
    "drop_inner_choices": of(_safe_root, X),
    "compose_lookups": of(lambda self, x, i: x.index_select(0, i).index_select(0, i.flip(0)[:2]), (3, 4), INDICES),
    "compose_lookups_in_order": of(
        lambda self, x, i: x.index_select(0, i).index_select(0, i.flip(0)[:2]), (3, 4), INDICES
    ),
    "drop_whole_slices": of(lambda self, x: x[..., ::2] * 2, X),
    "drop_whole_slices_of_step_one": of(lambda self, x: x[:, ::2] * 2, X),
    "slices_of_slices": of(lambda self, x: x[..., 1:5][..., 1:-1] * 2, X),
    "slice_of_one_part": of(lambda self, x, y: torch.cat([x, y], 1)[..., 4:8] * 2, X, X),
    "slice_within_one_part": of(lambda self, x, y: torch.cat([x, y], 1)[..., 6:8] * 2, X, X),
    "select_of_slice": of(lambda self, x: x[..., 1:4][..., -1] * 2, X),
    "select_of_slice_from_start": of(lambda self, x: x[..., 1:4][..., 1] * 2, X),
    "flatten_concatenations": of(lambda self, x: torch.cat([torch.cat([x, x], 0), torch.cat([x, x], 0)], 1), X),
    "parts_as_slices": of(lambda self, x: x.split([2, 1, 3], 1)[2] * 2, X),
    "parts_as_slices_by_all_sizes": of(lambda self, x: x.split([2, 1, 3], 1)[2] * 2, X),
    "sum_pads": of(lambda self, x: F.pad(F.pad(x, (-2, 0)), (2, 1)), X),
    "sum_widening_pads": of(lambda self, x: F.pad(F.pad(x, (2, 0)), (2, 1)), X),
    "merge_views_by_sizes": of(lambda self, x: x.view(-1, 2, 3).view(-1, 3, 2) * 2, X),
    "merge_views_by_arguments": of(lambda self, x: x.view(-1, 2, 3).view(-1, 3, 2) * 2, X),
    "compose_orders": of(lambda self, x: x.permute(1, 2, 0).permute(1, 0, 2) * 2, (2, 3, 4)),
    "cancel_squeezes_of_any_size": of(lambda self, x: x.squeeze(1).unsqueeze(1) * 2, X),
    "cancel_squeezes_of_ones": of(lambda self, x: x.squeeze(1).unsqueeze(1) * 2, (4, 1, 3)),
    "reshapes_as_views": of(lambda self, x: x.t().reshape(-1) * 2, X),
    "sink_orders_then_open_means": of(lambda self, x: x.permute(0, 2, 1).relu().mean(1), (2, 3, 4)),
    "writes_out_of_place": of(_through_view, X),
    "lone_writes_out_of_place": of(lambda self, x: F.relu_(x.sin()), X),
    "activations_in_memory_of_inputs": of(lambda self, x: x[:, :2].relu() * 2, X),
    "read_what_is_written": of(lambda self, x: x.select_scatter(x[:, 1], 1, 0).select(1, 2) * 2, X),
    "read_what_is_written_there": of(lambda self, x: x.select_scatter(x[:, 1], 1, 0).select(1, 0) * 2, X),
    "last_write_wins": of(_twice_written, X),
    "drop_buffer_writes": of(lambda self, x: self.counter(x), X, counter=_Counter()),
    "compute_constants": of(lambda self, x: self.counter(x), X, counter=_Counter()),
    "remove_unread_calls": of(lambda self, x: self.counter(x), X, counter=_Counter()),
    "drop_input_writes": of(_written, X),
    "merge_equal_reads": of(_read_twice, X),
    "merge_equal_calls_aten": of(lambda self, x: torch.rand_like(x) - torch.rand_like(x) + x, X),
    "merge_equal_deterministic_calls": of(lambda self, x: x.sin() * 2 + x.sin() * 3, X),
    "remove_noop_reshapes": of(lambda self, x: x.reshape(30, 6) * 2, IMAGE),
    "silu_and_mul": of(lambda self, x: x.narrow(1, 0, 3) * torch.sigmoid(x.narrow(1, 3, 3)), X),
    "ConvertMeanToSum": of(lambda self, x: x.mean(1) * 2, IMAGE),
    "fold_quantize_clamp": of(lambda self, x: torch.round(torch.clamp(x, -0.4, 0.7)), X),
    "topk_of_sorted": of(lambda self, x: torch.sort(x.sign(), descending=True)[1].narrow(1, 0, 4), (3, 64)),
    "drop_casts_of_sums": of(lambda self, x: x + x.sin().double(), X),
    "remove_noop_expands": of(lambda self, x: x.sin().expand(4, 6) * 2, X),
    "ConvertLastMeanToSum": of(lambda self, x: x.mean(-1) * 2, X),
    "clamp_as_max_and_min": of(lambda self, x: torch.clamp(x, -0.5, 0.25), X),
}
