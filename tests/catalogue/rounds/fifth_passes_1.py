"""Wrong passes of the fifth round for fx, part 1."""

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ..rows import fault


def global_pool_w01(node, modules):
    if node.op == "call_module":
        pool = modules[node.target]
        return type(pool) is nn.AdaptiveAvgPool2d and pool.output_size in (1, (1, 1))
    if node.op == "call_function" and node.target is F.adaptive_avg_pool2d:
        return len(node.args) == 2 and node.args[1] in (1, (1, 1), [1, 1])
    return False


def flatten_w01(node, modules):
    if node.op == "call_module":
        return type(modules[node.target]) is nn.Flatten
    return node.target is torch.flatten or (node.op == "call_method" and node.target == "flatten")


@fault(
    5,
    wrong="It forgot that torch.flatten and Tensor.flatten start at dimension 0 unless told otherwise: the batch is flattened too.",
)
def pool_flatten_to_mean(graph_module):
    """Turns global average pooling and the flatten after it into one mean over height and width."""
    modules = dict(graph_module.named_modules())
    graph = graph_module.graph
    for node in list(graph.nodes):
        if not flatten_w01(node, modules) or not node.args:
            continue
        pool = node.args[0]
        if not isinstance(pool, fx.Node) or not global_pool_w01(pool, modules) or len(pool.users) > 1:
            continue
        with graph.inserting_before(node):
            mean = graph.call_method("mean", (pool.args[0], (2, 3)))
        node.replace_all_uses_with(mean)
        graph.erase_node(node)
        graph.erase_node(pool)
    graph.lint()
    graph_module.recompile()
    return graph_module


def symmetric_zero_pad_w02(node):
    if node.op != "call_function" or node.target is not F.pad or len(node.users) != 1:
        return None
    mode = node.args[2] if len(node.args) > 2 else node.kwargs.get("mode", "constant")
    value = node.args[3] if len(node.args) > 3 else node.kwargs.get("value")
    pad = node.args[1] if len(node.args) > 1 else node.kwargs.get("pad")
    if mode != "constant" or value not in (None, 0) or not isinstance(pad, (tuple, list)) or len(pad) != 4:
        return None
    if not all(type(p) is int and p >= 0 for p in pad):
        return None
    left, right, top, bottom = pad
    return (top, left) if left == right and top == bottom else None


def pair_w02(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def fits_w02(pool, pad):
    kernel = pair_w02(pool.kernel_size)
    return pair_w02(pool.padding) == (0, 0) and not pool.ceil_mode and all(2 * p <= k for p, k in zip(pad, kernel))


@fault(
    5,
    wrong="It forgot count_include_pad: a pool with count_include_pad=False then divides by fewer elements at the border.",
)
def pad_into_avg_pool(graph_module):
    """Folds F.pad with zeros before an AvgPool2d into the padding of the pool, which saves the padded copy."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or type(graph_module.get_submodule(node.target)) is not nn.AvgPool2d:
            continue
        pool, source = graph_module.get_submodule(node.target), node.args[0] if node.args else None
        pad = symmetric_zero_pad_w02(source) if isinstance(source, fx.Node) else None
        if pad is None or not source.args or not fits_w02(pool, pad):
            continue
        with graph.inserting_before(node):
            new = graph.call_function(
                F.avg_pool2d,
                (source.args[0], pool.kernel_size, pool.stride),
                {
                    "padding": pad,
                    "count_include_pad": pool.count_include_pad,
                    "divisor_override": pool.divisor_override,
                },
            )
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        graph.erase_node(source)
    graph_module.recompile()
    return graph_module


ACTIVATIONS_W03 = {torch.relu, torch.sigmoid, torch.tanh, F.relu, F.gelu, F.silu, torch.exp, torch.abs}


@fault(5, wrong="It forgot that the input, or the first result, may be written in place between the two calls.")
def share_repeated_activations(graph_module):
    """Computes an activation of one tensor once where the branches of a model each compute it."""
    graph = graph_module.graph
    first_of_key = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in ACTIVATIONS_W03:
            continue
        if len(node.args) != 1 or node.kwargs.get("inplace"):
            continue
        key = (node.target, node.args[0], tuple(sorted(node.kwargs.items())))
        if key in first_of_key:
            node.replace_all_uses_with(first_of_key[key])
            graph.erase_node(node)
        else:
            first_of_key[key] = node
    graph.lint()
    graph_module.recompile()


MATMUL_W05 = (torch.matmul, operator.matmul, torch.bmm)


SOFTMAX_W05 = (torch.softmax, F.softmax)


def is_softmax_w05(node):
    if not isinstance(node, fx.Node) or len(node.users) != 1:
        return False
    return node.target in SOFTMAX_W05 or (node.op == "call_method" and node.target == "softmax")


def scores_w05(node):
    """The queries, keys and the scale of the scores, or None."""
    scale = 1.0
    if node.target in (operator.truediv, operator.mul) and isinstance(node.args[1], float):
        scale = node.args[1] if node.target is operator.mul else 1.0 / node.args[1]
        if len(node.users) != 1:
            return None
        node = node.args[0]
    if not isinstance(node, fx.Node) or node.target not in MATMUL_W05 or len(node.users) != 1:
        return None
    query, key = node.args
    if not isinstance(key, fx.Node) or key.op != "call_method" or key.target != "transpose":
        return None
    if tuple(key.args[1:]) not in ((-2, -1), (-1, -2)):
        return None
    return query, key.args[0], scale


def fuse_w05(graph, node, parts):
    query, key, scale = parts
    with graph.inserting_before(node):
        new = graph.call_function(F.scaled_dot_product_attention, (query, key, node.args[1]), {"scale": scale})
    node.replace_all_uses_with(new)


@fault(
    5,
    wrong="It forgot that the dim of softmax may be given by position: softmax over another dimension than the last is fused too.",
)
def fuse_attention_fifth(graph_module):
    """Fuses softmax(q @ k.transpose(-2, -1) * scale) @ v into scaled_dot_product_attention."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.target not in MATMUL_W05 or not is_softmax_w05(node.args[0]):
            continue
        softmax = node.args[0]
        if softmax.kwargs.get("dim", -1) != -1 or softmax.kwargs.get("dtype") is not None:
            continue
        parts = scores_w05(softmax.args[0])
        if parts is not None:
            fuse_w05(graph, node, parts)
    graph.eliminate_dead_code()
    graph_module.recompile()
    return graph_module


REDUCTIONS_W06 = ("mean", "sum", "amax", "amin")


def permutation_w06(node):
    if not isinstance(node, fx.Node) or node.op != "call_method" or node.target != "permute" or len(node.users) != 1:
        return None
    order = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], (tuple, list)) else node.args[1:]
    if not all(isinstance(d, int) for d in order):
        return None
    return [d % len(order) for d in order]


def dims_w06(node):
    if node.kwargs or len(node.args) != 2:
        return None
    dims = node.args[1]
    dims = (dims,) if isinstance(dims, int) else dims
    return list(dims) if isinstance(dims, (tuple, list)) and dims and all(isinstance(d, int) for d in dims) else None


@fault(
    5,
    wrong="It forgot that the dimensions left over keep the order of the permute: with two or more left they come out unpermuted.",
)
def drop_permute_before_reduction(graph_module):
    """Reduces over the dimensions of the tensor itself rather than of its permuted view (NHWC code on NCHW data)."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_method" or node.target not in REDUCTIONS_W06:
            continue
        order, dims = permutation_w06(node.args[0]), dims_w06(node)
        if order is None or dims is None:
            continue
        permute = node.args[0]
        node.args = (permute.args[0], tuple(order[d] for d in dims))
        graph.erase_node(permute)
    graph_module.recompile()
    return graph_module
