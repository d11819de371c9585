"""Norms, attention, pools and resampling in other operators."""

import operator

import torch

from ...rows import fault, replace, sound, substitute
from . import ROUND, argument, aten, calls, decomposed, done, value


def _open_layer_norm(gm, correction):
    for node in calls(gm.graph, aten.native_layer_norm.default):
        x, shape, weight, bias, eps = node.args
        if any(user.args[1] != 0 for user in node.users):
            continue
        dims = [*range(-len(shape), 0)]
        with gm.graph.inserting_before(node):
            variance = gm.graph.call_function(aten.var.correction, (x, dims), {**correction, "keepdim": True})
            mean = gm.graph.call_function(aten.mean.dim, (x, dims, True))
            centered = gm.graph.call_function(aten.sub.Tensor, (x, mean))
            shifted = gm.graph.call_function(aten.add.Tensor, (variance, eps))
            scale = gm.graph.call_function(aten.rsqrt.default, (shifted,))
            result = gm.graph.call_function(aten.mul.Tensor, (centered, scale))
            if weight is not None:
                result = gm.graph.call_function(aten.mul.Tensor, (result, weight))
            if bias is not None:
                result = gm.graph.call_function(aten.add.Tensor, (result, bias))
        for user in list(node.users):
            substitute(user, result)
    return done(gm)


@fault(ROUND, "default", wrong="The variance of a layer norm is divided by the count, which is not var's default.")
@decomposed
def open_layer_norms_aten(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A layer norm in elementwise operators and reductions."""
    return _open_layer_norm(gm, {})


@sound(ROUND)
@decomposed
def open_layer_norms_without_correction(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A layer norm in elementwise operators and reductions, divided by the count."""
    return _open_layer_norm(gm, {"correction": 0})


@fault(ROUND, "state", "state", wrong="In training a batch norm updates its running statistics, too.")
def batch_norms_of_training(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A batch norm in training computes with the statistics of the batch: reductions over all but the channels."""
    for node in calls(gm.graph, aten.batch_norm.default):
        x, weight, bias, _, _, training, _, eps, _ = node.args
        rank = value(x).dim()
        if not training or weight is None or bias is None:
            continue
        dims = [0, *range(2, rank)]
        shape = [-1, *[1] * (rank - 2)]
        with gm.graph.inserting_before(node):
            variance = gm.graph.call_function(aten.var.correction, (x, dims), {"correction": 0, "keepdim": True})
            mean = gm.graph.call_function(aten.mean.dim, (x, dims, True))
            centered = gm.graph.call_function(aten.sub.Tensor, (x, mean))
            shifted = gm.graph.call_function(aten.add.Tensor, (variance, eps))
            normed = gm.graph.call_function(
                aten.mul.Tensor, (centered, gm.graph.call_function(aten.rsqrt.default, (shifted,)))
            )
            gamma = gm.graph.call_function(aten.reshape.default, (weight, shape))
            beta = gm.graph.call_function(aten.reshape.default, (bias, shape))
            scaled = gm.graph.call_function(aten.mul.Tensor, (normed, gamma))
        replace(node, aten.add.Tensor, scaled, beta)
    return done(gm)


def _open_attention(gm, scale_of):
    for node in calls(gm.graph, aten.scaled_dot_product_attention.default):
        query, key, values, *rest = node.args
        mask, dropout, causal = (argument(node, 3 + i, name, d) for i, (name, d) in enumerate(_REST))
        if mask is not None or dropout or causal or node.kwargs.get("enable_gqa"):
            continue
        depth = value(query).shape[-1]
        if type(depth) is not int or not 0 < depth or value(query).dim() != value(key).dim():
            continue
        with gm.graph.inserting_before(node):
            turned = gm.graph.call_function(aten.transpose.int, (key, -2, -1))
            scores = gm.graph.call_function(aten.matmul.default, (query, turned))
            scaled = gm.graph.call_function(aten.mul.Tensor, (scores, scale_of(node, depth)))
            weights = gm.graph.call_function(aten.softmax.int, (scaled, -1))
        replace(node, aten.matmul.default, weights, values)
    return done(gm)


_REST = (("attn_mask", None), ("dropout_p", 0.0), ("is_causal", False))


@fault(ROUND, "dropped keyword", wrong="A scale may be given, instead of the reciprocal of the root of the depth.")
def open_attention_by_depth(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Attention without masks as products of matrices and a softmax."""
    return _open_attention(gm, lambda node, depth: depth**-0.5)


@sound(ROUND)
def open_attention_by_scale(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Attention without masks as products of matrices and a softmax, with the scale that is given."""
    return _open_attention(
        gm, lambda node, depth: depth**-0.5 if node.kwargs.get("scale") is None else node.kwargs["scale"]
    )


@fault(ROUND, "shape", wrong="There may be more or fewer keys than queries, and the mask is square.")
def causal_masks(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The kernel has no causal attention: a mask that is true on and below the diagonal."""
    for node in calls(gm.graph, aten.scaled_dot_product_attention.default):
        query = node.args[0]
        if not argument(node, 5, "is_causal", False) or argument(node, 3, "attn_mask") is not None:
            continue
        length = value(query).shape[-2]
        if type(length) is not int:
            continue
        with gm.graph.inserting_before(node):
            device = value(query).device
            ones = gm.graph.call_function(
                aten.ones.default, ([length, length],), {"dtype": torch.bool, "device": device}
            )
            mask = gm.graph.call_function(aten.tril.default, (ones,))
        dropout = argument(node, 4, "dropout_p", 0.0)
        node.args = (*node.args[:3], mask, dropout, False)
    return done(gm)


@fault(ROUND, "dropped keyword", wrong="With aligned corners the first and last pixels stay in their places.")
def bilinear_by_size(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Bilinear resampling to a given size, by the operator with sizes."""
    for node in calls(gm.graph, aten.upsample_bilinear2d.vec):
        x, size, _, scales = node.args
        if size is not None and scales is None:
            replace(node, aten.upsample_bilinear2d.default, x, size, False)
    return done(gm)


def _pad_pools(gm, fill):
    for node in calls(gm.graph, aten.max_pool2d.default):
        x, kernel = node.args[:2]
        stride, padding = argument(node, 2, "stride", []), argument(node, 3, "padding", [0, 0])
        dilation, ceil_mode = argument(node, 4, "dilation", [1, 1]), argument(node, 5, "ceil_mode", False)
        padding = [*padding] * (2 if len(padding) == 1 else 1)
        if not any(padding) or ceil_mode or not value(x).is_floating_point():
            continue
        top, before = padding
        with gm.graph.inserting_before(node):
            padded = gm.graph.call_function(aten.constant_pad_nd.default, (x, [before, before, top, top], fill))
        replace(node, aten.max_pool2d.default, padded, kernel, stride or kernel, [0, 0], dilation)
    return done(gm)


@fault(
    ROUND, "pad value", wrong="The padding of a maximum is minus infinity, and zeros are larger than negative values."
)
def pads_of_pools(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The padding of maximum pools as an operator of its own."""
    return _pad_pools(gm, 0.0)


@sound(ROUND)
def infinite_pads_of_pools(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The padding of maximum pools as an operator of its own, with minus infinity."""
    return _pad_pools(gm, float("-inf"))


@fault(ROUND, "dropped keyword", wrong="In ceiling mode a last window may reach over the border.")
def pools_with_indices(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Maximum pools by the operator that returns indices, too."""
    for node in calls(gm.graph, aten.max_pool2d.default):
        arguments = node.args[:5]
        with gm.graph.inserting_before(node):
            both = gm.graph.call_function(aten.max_pool2d_with_indices.default, tuple(arguments))
        replace(node, operator.getitem, both, 0)
    return done(gm)


@fault(ROUND, "dropped keyword", wrong="A gradient does not reach the row of the padding index.")
def lookups_by_index(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A row of an embedding is a row of its weight."""
    for node in calls(gm.graph, aten.embedding.default):
        weight, indices = node.args[:2]
        if not argument(node, 4, "sparse", False) and not argument(node, 3, "scale_grad_by_freq", False):
            replace(node, aten.index.Tensor, weight, [indices])
    return done(gm)
