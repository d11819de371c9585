"""Convolutions: pads, scales and batch norms that become part of them, and other operators in their place."""

import operator

import torch

from ...rows import fault, replace, sound, substitute
from . import ROUND, argument, aten, calls, decomposed, done, is_call, value


def _constant(gm, node):
    """The parameter or buffer that a node reads, or None."""
    if not isinstance(node, torch.fx.Node) or node.op != "get_attr":
        return None
    owner, _, name = node.target.rpartition(".")
    return getattr(gm.get_submodule(owner), name)


def _new_constant(gm, before, name, tensor):
    name = f"_{name}_{len(gm._buffers)}"
    gm.register_buffer(name, tensor)
    with gm.graph.inserting_before(before):
        node = gm.graph.get_attr(name)
    node.meta["val"] = value(before).new_empty(tensor.shape)
    return node


def _fold_norms(gm, accepts):
    for norm in calls(gm.graph, aten._native_batch_norm_legit_no_training.default):
        conv, gamma, beta, mean, variance, _, eps = norm.args
        if not is_call(conv, aten.convolution.default) or len(conv.users) != 1 or not accepts(conv):
            continue
        weight, bias = _constant(gm, conv.args[1]), _constant(gm, conv.args[2])
        if weight is None or (bias is None and conv.args[2] is not None):
            continue
        mean, variance = _constant(gm, mean), _constant(gm, variance)
        gamma = torch.ones_like(mean) if gamma is None else _constant(gm, gamma)
        beta = torch.zeros_like(mean) if beta is None else _constant(gm, beta)
        if any(each is None for each in (mean, variance, gamma, beta)):
            continue
        if any(user.args[1] != 0 for user in norm.users):
            continue
        with torch.no_grad():
            factor = gamma / torch.sqrt(variance + eps)
            shift = beta - mean * factor
            new_weight = weight * factor.reshape(-1, *[1] * (weight.dim() - 1))
            new_bias = shift if bias is None else bias * factor + shift
        new = [_new_constant(gm, conv, "weight", new_weight), _new_constant(gm, conv, "bias", new_bias)]
        conv.args = (conv.args[0], *new, *conv.args[3:])
        for user in list(norm.users):
            substitute(user, conv)
    return done(gm)


@fault(ROUND, "transposed", wrong="A transposed convolution has its output channels in the weight's second dimension.")
def fold_inference_norms(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Fold batch norms of inference into the weights before them; layers with as many inputs as outputs."""
    return _fold_norms(gm, lambda conv: value(conv.args[1]).shape[0] == value(conv.args[1]).shape[1])


fold_inference_norms.may_change = ("gradients", "retraining")


@fault(ROUND, "dropped keyword", wrong="A convolution with a 1 by 1 kernel may have padding, which adds a border.")
@decomposed
def pointwise_convolution_as_matmul(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A convolution with a 1 by 1 kernel is a product with a matrix."""
    for conv in calls(gm.graph, aten.convolution.default):
        x, weight, bias, stride, _, _, transposed, _, groups = conv.args
        shape = value(weight).shape
        if transposed or groups != 1 or len(shape) != 4 or shape[2:] != (1, 1) or list(stride) != [1, 1]:
            continue
        if value(x).dim() != 4:
            continue
        with gm.graph.inserting_before(conv):
            last = gm.graph.call_function(aten.permute.default, (x, [0, 2, 3, 1]))
            matrix = gm.graph.call_function(aten.reshape.default, (weight, [shape[0], shape[1]]))
            product = gm.graph.call_function(aten.linear.default, (last, matrix, bias))
        replace(conv, aten.permute.default, product, [0, 3, 1, 2])
    return done(gm)


@sound(ROUND)
@decomposed
def plain_pointwise_convolution_as_matmul(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A convolution with a 1 by 1 kernel, no padding and no groups is a product with a matrix."""
    for conv in calls(gm.graph, aten.convolution.default):
        x, weight, bias, stride, padding, _, transposed, _, groups = conv.args
        shape = value(weight).shape
        if transposed or groups != 1 or len(shape) != 4 or shape[2:] != (1, 1) or list(stride) != [1, 1]:
            continue
        if value(x).dim() != 4 or list(padding) != [0, 0]:
            continue
        with gm.graph.inserting_before(conv):
            last = gm.graph.call_function(aten.permute.default, (x, [0, 2, 3, 1]))
            matrix = gm.graph.call_function(aten.reshape.default, (weight, [shape[0], shape[1]]))
            product = gm.graph.call_function(aten.linear.default, (last, matrix, bias))
            moved = gm.graph.call_function(aten.permute.default, (product, [0, 3, 1, 2]))
        replace(conv, aten.clone.default, moved, memory_format=torch.contiguous_format)
    return done(gm)


@fault(ROUND, "pad value", wrong="A convolution pads with zeros, and the pad before it may have another value.")
@decomposed
def absorb_pads(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A pad of equal width before and behind a dimension is the padding of the convolution behind it."""
    for conv in calls(gm.graph, aten.convolution.default):
        pad, padding, transposed = conv.args[0], conv.args[4], conv.args[6]
        if transposed or not is_call(pad, aten.constant_pad_nd.default):
            continue
        widths, spatial = pad.args[1], len(padding)
        pairs = [(widths[i], widths[i + 1]) for i in range(0, len(widths), 2)]
        if len(pairs) > spatial or any(a != b or a < 0 for a, b in pairs) or value(pad).dim() != spatial + 2:
            continue
        total = list(padding)
        for place, (width, _) in enumerate(pairs):
            total[spatial - 1 - place] += width
        conv.args = (pad.args[0], *conv.args[1:4], total, *conv.args[5:])
    return done(gm)


@fault(ROUND, "pad mode", wrong="A pad has a mode, and a reflected or replicated border is none of zeros.")
def absorb_exported_pads(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Before decompositions: a pad on all sides by the same width, then a convolution in two dimensions."""
    for conv in calls(gm.graph, aten.conv2d.default):
        pad = conv.args[0]
        if not is_call(pad, aten.pad.default) or argument(pad, 3, "value") not in (None, 0) or len(pad.users) > 1:
            continue
        widths, padding = pad.args[1], argument(conv, 4, "padding", [0, 0])
        if len(widths) != 4 or len({*widths}) != 1 or widths[0] < 0 or list(padding) != [0, 0]:
            continue
        weight, bias = conv.args[1], argument(conv, 2, "bias")
        stride, dilation = argument(conv, 3, "stride", [1, 1]), argument(conv, 5, "dilation", [1, 1])
        groups = argument(conv, 6, "groups", 1)
        replace(conv, aten.conv2d.default, pad.args[0], weight, bias, stride, [widths[0]] * 2, dilation, groups)
    return done(gm)


@fault(ROUND, "bias", wrong="The factor behind a convolution scales its bias, too.")
@decomposed
def scale_weights(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A factor behind a convolution is a factor of its weight."""
    for product in calls(gm.graph, aten.mul.Tensor):
        conv, factor = product.args
        if not is_call(conv, aten.convolution.default) or not isinstance(factor, float) or len(conv.users) != 1:
            continue
        with gm.graph.inserting_before(conv):
            weight = gm.graph.call_function(aten.mul.Tensor, (conv.args[1], factor))
        weight.meta["val"] = value(conv.args[1])
        conv.args = (conv.args[0], weight, *conv.args[2:])
        substitute(product, conv)
    return done(gm)


@sound(ROUND)
@decomposed
def scale_weights_and_bias(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A factor behind a convolution is a factor of its weight and of its bias."""
    for product in calls(gm.graph, aten.mul.Tensor):
        conv, factor = product.args
        if not is_call(conv, aten.convolution.default) or not isinstance(factor, float) or len(conv.users) != 1:
            continue
        if not 1e-3 < abs(factor) < 1e3:
            continue
        scaled = []
        for tensor in conv.args[1:3]:
            if tensor is not None:
                with gm.graph.inserting_before(conv):
                    scaled.append(gm.graph.call_function(aten.mul.Tensor, (tensor, factor)))
                scaled[-1].meta["val"] = value(tensor)
        conv.args = (conv.args[0], scaled[0], scaled[1] if scaled[1:] else None, *conv.args[3:])
        substitute(product, conv)
    return done(gm)


@fault(ROUND, "dilation", wrong="The kernel of a transposed convolution reaches as far as its dilation makes it.")
@decomposed
def transposed_as_forward(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A transposed convolution of stride 1 is a convolution with the flipped weight."""
    for conv in calls(gm.graph, aten.convolution.default):
        x, weight, bias, stride, padding, dilation, transposed, extra, groups = conv.args
        if not transposed or groups != 1 or any(s != 1 for s in stride) or any(extra):
            continue
        kernel = value(weight).shape[2:]
        around = [size - 1 - pad for size, pad in zip(kernel, padding)]
        if min(around) < 0:
            continue
        with gm.graph.inserting_before(conv):
            turned = gm.graph.call_function(aten.permute.default, (weight, [1, 0, *range(2, 2 + len(kernel))]))
            flipped = gm.graph.call_function(aten.flip.default, (turned, [*range(2, 2 + len(kernel))]))
        replace(conv, aten.convolution.default, x, flipped, bias, stride, around, dilation, False, [0] * len(kernel), 1)
    return done(gm)


@fault(
    ROUND,
    "groups",
    wrong="Convolutions in groups see only a part of the channels each, and cannot be joined like that.",
)
@decomposed
def join_parallel_convolutions(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Two convolutions of one input with equal geometry are one with both weights."""
    first_of = {}
    for conv in calls(gm.graph, aten.convolution.default):
        x, weight, bias = conv.args[:3]
        key = (x, bias is None, value(weight).shape[1:], str(conv.args[3:]))
        first = first_of.setdefault(key, conv)
        order = {node: place for place, node in enumerate(gm.graph.nodes)}
        if first is conv or conv.args[6] or any(order[user] < order[conv] for user in first.users):
            continue
        del first_of[key]
        sizes = [value(first.args[1]).shape[0], value(weight).shape[0]]
        dim = value(conv).dim() - value(weight).dim() + 1
        with gm.graph.inserting_before(conv):
            weights = gm.graph.call_function(aten.cat.default, ([first.args[1], weight], 0))
            biases = bias and gm.graph.call_function(aten.cat.default, ([first.args[2], bias], 0))
            both = gm.graph.call_function(aten.convolution.default, (x, weights, biases, *conv.args[3:]))
            parts = gm.graph.call_function(aten.split_with_sizes.default, (both, sizes, dim))
            second_part = gm.graph.call_function(operator.getitem, (parts, 1))
            first_part = gm.graph.call_function(operator.getitem, (parts, 0))
        for old, new in ((first, first_part), (conv, second_part)):
            new.meta = dict(old.meta)
        substitute(first, first_part)
        substitute(conv, second_part)
    return done(gm)
