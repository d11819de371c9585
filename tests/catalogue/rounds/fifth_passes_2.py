"""Wrong passes of the fifth round for fx, part 2."""

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ..rows import fault


def pairs_w08(graph_module):
    modules = dict(graph_module.named_modules())
    calls = [node.target for node in graph_module.graph.nodes if node.op == "call_module"]
    for node in list(graph_module.graph.nodes):
        if node.op != "call_module" or type(modules[node.target]) is not nn.BatchNorm1d or len(node.args) != 1:
            continue
        source, norm = node.args[0], modules[node.target]
        if source.op != "call_module" or type(modules[source.target]) is not nn.Linear or len(source.users) != 1:
            continue
        linear = modules[source.target]
        if norm.training or norm.running_var is None or calls.count(source.target) > 1:
            continue
        if norm.num_features == linear.out_features:
            yield node, source, linear, norm


@torch.no_grad()
def folded_w08(linear, norm):
    new = nn.Linear(linear.in_features, linear.out_features).to(linear.weight.device, linear.weight.dtype)
    scale = torch.rsqrt(norm.running_var + norm.eps)
    shift = -norm.running_mean * scale
    if norm.affine:
        shift = shift * norm.weight + norm.bias
        scale = scale * norm.weight
    new.weight.copy_(linear.weight * scale[:, None])
    new.bias.copy_(shift if linear.bias is None else linear.bias * scale + shift)
    return new.train(linear.training)


@fault(
    5,
    wrong="It forgot that BatchNorm1d on a 3-D input normalizes dimension 1, not the last, which is the one a linear layer makes.",
)
def fold_norm_into_linear(graph_module):
    """Folds a BatchNorm1d in eval mode into the linear layer before it."""
    for node, source, linear, norm in pairs_w08(graph_module):
        name = source.target.replace(".", "_") + "folded_w08"
        graph_module.add_submodule(name, folded_w08(linear, norm))
        source.target = name
        node.replace_all_uses_with(source)
        graph_module.graph.erase_node(node)
    graph_module.delete_all_unused_submodules()
    graph_module.recompile()
    return graph_module


def base_and_exponent_w09(node):
    if node.op == "call_function" and node.target in (operator.pow, torch.pow):
        pass
    elif node.op == "call_method" and node.target == "pow":
        pass
    else:
        return None
    if len(node.args) == 2 and not node.kwargs:
        return node.args
    if len(node.args) == 1 and list(node.kwargs) == ["exponent"]:
        return node.args[0], node.kwargs["exponent"]
    return None


@fault(5, wrong="It forgot that 2.0 == 2: an integer tensor to the power 2.0 is a float, its square an integer.")
def square_for_power(graph_module):
    """Replaces x ** 2 by torch.square(x), which needs no general power kernel on the device."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        pair = base_and_exponent_w09(node)
        if pair is None or not isinstance(pair[0], fx.Node) or isinstance(pair[1], fx.Node):
            continue
        if pair[1] != 2:
            continue
        with graph.inserting_before(node):
            new = graph.call_function(torch.square, (pair[0],))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph_module.recompile()


SPLITS_W10 = (torch.chunk, torch.split)


def split_w10(node):
    """The input and the dimension of a split, or None."""
    if not isinstance(node, fx.Node):
        return None
    if node.target in SPLITS_W10 or (node.op == "call_method" and node.target in ("chunk", "split")):
        dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
        return node.args[0], dim
    return None


def cat_w10(node):
    if node.target not in (torch.cat, torch.concat) or not node.args:
        return None
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    value_and_dim = split_w10(node.args[0])
    return value_and_dim[0] if value_and_dim is not None and value_and_dim[1] == dim and isinstance(dim, int) else None


@fault(
    5,
    wrong="It forgot that cat makes a fresh tensor: what is written into the result in place later reaches the tensor that was split.",
)
def cancel_split_cat_fifth(graph_module):
    """Removes a split (or chunk) whose parts are only concatenated again along the same dimension."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        source = cat_w10(node) if node.op == "call_function" else None
        if source is None:
            continue
        node.replace_all_uses_with(source)
        parts = node.args[0]
        graph.erase_node(node)
        if not parts.users:
            graph.erase_node(parts)
    graph.lint()
    graph_module.recompile()
    return graph_module


FRESH_W13 = {
    torch.add,
    torch.sub,
    torch.mul,
    operator.add,
    operator.sub,
    operator.mul,
    torch.matmul,
    F.linear,
    torch.exp,
    torch.sigmoid,
    torch.tanh,
    torch.sqrt,
    F.softmax,
    torch.softmax,
}


def clamp_of_fresh_w13(node, fresh):
    if node.op == "call_function" and node.target is torch.clamp:
        pass
    elif node.op == "call_method" and node.target == "clamp":
        pass
    else:
        return False
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node) or source.op != "call_function" or source.target not in fresh:
        return False
    bounds = list(node.args[1:]) + list(node.kwargs.values())
    return len(source.users) == 1 and all(isinstance(bound, float) for bound in bounds) and not source.kwargs


@fault(
    5,
    wrong="It forgot that exp, sigmoid, tanh, sqrt and softmax keep their result for the backward pass, so it may not be written over.",
)
def clamp_in_place(graph_module):
    """Clamps in place where the tensor was just computed and nobody else reads it: one buffer less."""
    for node in graph_module.graph.nodes:
        if clamp_of_fresh_w13(node, FRESH_W13):
            node.op, node.target = "call_method", "clamp_"
    graph_module.recompile()
    return graph_module


def group_norms_w15(graph_module):
    for node in list(graph_module.graph.nodes):
        if node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
            norm = graph_module.get_submodule(node.target)
            if type(norm) is nn.GroupNorm:
                yield node, norm


@fault(5, wrong="It forgot inputs that are not images: weight and bias are shaped for four dimensions.")
def decompose_group_norm_fifth(graph_module):
    """Writes a GroupNorm as a layer norm over its groups and an affine map per channel."""
    graph = graph_module.graph
    for node, norm in group_norms_w15(graph_module):
        x = node.args[0]
        with graph.inserting_before(node):
            grouped = graph.call_method("reshape", (x, graph.call_method("size", (x, 0)), norm.num_groups, -1))
            spread = graph.call_method("var", (grouped, -1), {"keepdim": True, "unbiased": False})
            centred = graph.call_function(torch.sub, (grouped, graph.call_method("mean", (grouped, -1, True))))
            scale = graph.call_function(torch.rsqrt, (graph.call_function(torch.add, (spread, norm.eps)),))
            normed = graph.call_function(torch.mul, (centred, scale))
            result = graph.call_method("view_as", (normed, x))
            if norm.affine:
                weight = graph.call_method("view", (graph.get_attr(f"{node.target}.weight"), 1, -1, 1, 1))
                bias = graph.call_method("view", (graph.get_attr(f"{node.target}.bias"), 1, -1, 1, 1))
                result = graph.call_function(torch.add, (graph.call_function(torch.mul, (result, weight)), bias))
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module
