"""Passes of the third round on layers and their weights."""

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ..rows import fault


def monotone(module):
    if module._forward_hooks or module._forward_pre_hooks:
        return False
    if type(module) is nn.ReLU:
        return not module.inplace
    if type(module) is nn.LeakyReLU:
        return not module.inplace and module.negative_slope > 0
    return type(module) is nn.PReLU and module.num_parameters == 1


def is_max_pool(graph_module, node):
    if node.op == "call_module":
        pool = graph_module.get_submodule(node.target)
        return type(pool) in (nn.MaxPool1d, nn.MaxPool2d) and not pool.return_indices and not pool._forward_hooks
    return (
        node.op == "call_function"
        and node.target in (F.max_pool2d, torch.max_pool2d)
        and len(node.args) < 7
        and not node.kwargs.get("return_indices")
    )


@fault(
    3,
    "only some values",
    "contract",
    "gradients",
    "other weights",
    wrong="PReLU only never decreases while its weight is not negative, and the weight is learned.",
)
def pool_before_activation(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Turn max_pool(act(x)) into act(max_pool(x)) for activations that never decrease.

    Only where nobody else reads act(x); activations that work in place stay where they are."""
    graph = graph_module.graph
    for pool in list(graph.nodes):
        if not is_max_pool(graph_module, pool) or not pool.args:
            continue
        act = pool.args[0]
        if not isinstance(act, fx.Node) or len(act.users) != 1 or len(act.args) != 1 or act.kwargs:
            continue
        if act.op == "call_module":
            if not monotone(graph_module.get_submodule(act.target)):
                continue
        elif act.target not in (torch.relu, F.relu, "relu") or act.op not in ("call_function", "call_method"):
            continue
        with graph.inserting_after(pool):
            late = graph.create_node(act.op, act.target, (pool,), {})
        pool.replace_all_uses_with(late)
        late.args = (pool,)
        pool.args = (act.args[0], *pool.args[1:])
        graph.erase_node(act)
    graph.lint()
    graph_module.recompile()
    return graph_module


def to_channels_last(image):
    """A batch of images in NHWC order; a single image stays as it is."""
    if image.dim() != 4:
        return image
    return image.contiguous(memory_format=torch.channels_last)


@fault(
    3,
    "layout",
    "contract",
    "refusal",
    "aliasing",
    wrong="The result stays channels-last, and a later view() that merges channels with pixels cannot be made of it.",
)
def convolve_channels_last(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Insert a conversion before the first convolution of each chain; the convolutions after it find their input in the
    right layout already, and pointwise layers keep it."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or not node.args:
            continue
        if type(graph_module.get_submodule(node.target)) is not nn.Conv2d:
            continue
        with graph.inserting_before(node):
            converted = graph.call_function(to_channels_last, (node.args[0],))
        node.args = (converted, *node.args[1:])
    graph.lint()
    graph_module.recompile()
    return graph_module


def linear_over_channels(image, weight, bias):
    """F.linear along dimension -3 of an image, or a batch of them."""
    pixels = image.movedim(-3, -1)
    return F.linear(pixels, weight.flatten(1), bias).movedim(-1, -3).contiguous()


def pointwise(module):
    """Return whether each output pixel depends on one input pixel."""
    if type(module) is not nn.Conv2d or "forward" in vars(module):
        return False
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return False
    return module.kernel_size == (1, 1) and module.padding == (0, 0) and module.groups == 1


def lower(graph_module, node):
    graph = graph_module.graph
    module = graph_module.get_submodule(node.target)
    with graph.inserting_before(node):
        weight = graph.get_attr(f"{node.target}.weight")
        bias = None if module.bias is None else graph.get_attr(f"{node.target}.bias")
        linear = graph.call_function(linear_over_channels, (node.args[0], weight, bias))
    node.replace_all_uses_with(linear)
    graph.erase_node(node)


@fault(
    3,
    "dropped setting",
    "structure",
    "contract",
    wrong="A 1x1 convolution with a stride (the shortcut of a residual block) skips pixels.",
)
def pointwise_conv_to_linear(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Run 1x1 convolutions as matrix products, which the target does faster. Weights are read where they are."""
    for node in list(graph_module.graph.nodes):
        if node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
            if pointwise(graph_module.get_submodule(node.target)):
                lower(graph_module, node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


def zero_padding(graph_module, node):
    """(value, rows, columns) of a symmetric padding by zeros, else None."""
    if not isinstance(node, fx.Node):
        return None
    if node.op == "call_module":
        module = graph_module.get_submodule(node.target)
        if type(module) is not nn.ZeroPad2d or module._forward_hooks or len(node.args) != 1:
            return None
        value, pad = node.args[0], tuple(module.padding)
    elif node.op == "call_function" and node.target is F.pad:
        arguments = dict(zip(("input", "pad", "mode", "value"), node.args))
        arguments.update(node.kwargs)
        if arguments.get("mode", "constant") != "constant" or arguments.get("value") not in (None, 0):
            return None
        value, pad = arguments.get("input"), arguments.get("pad")
    else:
        return None
    if not isinstance(pad, (tuple, list)) or len(pad) != 4 or not all(type(size) is int and size >= 0 for size in pad):
        return None
    if pad[0] != pad[1] or pad[2] != pad[3]:
        return None
    return value, pad[2], pad[0]


def pair(size):
    return (size, size) if isinstance(size, int) else tuple(size)


def plain_pool(graph_module, node):
    """The pooling layer if its own padding is free for use, else None."""
    if node.op != "call_module" or len(node.args) != 1:
        return None
    pool = graph_module.get_submodule(node.target)
    if type(pool) not in (nn.MaxPool2d, nn.AvgPool2d) or pool._forward_hooks or pool._forward_pre_hooks:
        return None
    if pool.ceil_mode or pair(pool.padding) != (0, 0):
        return None
    if isinstance(pool, nn.MaxPool2d):
        return None if pool.return_indices or pair(pool.dilation) != (1, 1) else pool
    return pool if pool.count_include_pad and pool.divisor_override is None else None


def fold(graph_module, node, pool, padding):
    value, rows, columns = padding
    graph = graph_module.graph
    function = F.max_pool2d if isinstance(pool, nn.MaxPool2d) else F.avg_pool2d
    with graph.inserting_before(node):
        pooled = graph.call_function(function, (value, pool.kernel_size, pool.stride), {"padding": (rows, columns)})
    pad = node.args[0]
    node.replace_all_uses_with(pooled)
    graph.erase_node(node)
    graph.erase_node(pad)


@fault(
    3, "padding", "contract", "gradients", wrong="Max pooling pads with -inf, not with zeros: right after a ReLU only."
)
def fold_pad_into_pool(graph_module: fx.GraphModule) -> fx.GraphModule:
    """pool(pad(x)) becomes pool(x, padding=...), without the padded copy of x.

    PyTorch pads by half a kernel at most; asymmetric or wider padding stays."""
    for node in list(graph_module.graph.nodes):
        pool = plain_pool(graph_module, node)
        padding = zero_padding(graph_module, node.args[0]) if pool is not None else None
        if padding is None or len(node.args[0].users) != 1:
            continue
        kernel = pair(pool.kernel_size)
        if padding[1] * 2 > kernel[0] or padding[2] * 2 > kernel[1]:
            continue
        fold(graph_module, node, pool, padding)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


def select_rows(table, ids):
    """table[ids] for ids of any shape; an id outside of the table is an error."""
    rows = torch.index_select(table, 0, ids.reshape(-1))
    return rows.reshape(*ids.shape, table.shape[1])


def plain(module):
    if type(module) is not nn.Embedding or module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
        return False
    return module.max_norm is None and not module.sparse and not module.scale_grad_by_freq


def lower_embedding_node(graph_module, node):
    graph = graph_module.graph
    with graph.inserting_before(node):
        table = graph.get_attr(f"{node.target}.weight")
        rows = graph.call_function(select_rows, (table, node.args[0]))
    node.replace_all_uses_with(rows)
    graph.erase_node(node)


@fault(
    3, "dropped setting", "gradients", wrong="Padding_idx: that row of the table gets no gradient from nn.Embedding."
)
def lower_embedding(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Replace plain embeddings by index_select on their weight, which keeps training. Embeddings that renormalize,
    have sparse gradients or weigh them by frequency stay."""
    for node in list(graph_module.graph.nodes):
        if node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
            if plain(graph_module.get_submodule(node.target)):
                lower_embedding_node(graph_module, node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
