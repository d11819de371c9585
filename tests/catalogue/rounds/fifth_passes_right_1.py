"""Right passes of the fifth round for fx, part 1."""

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ..rows import sound


def permutation_r01(node):
    if not isinstance(node, fx.Node) or node.kwargs or len(node.args) < 2:
        return None
    if node.op == "call_method" and node.target == "permute":
        order = node.args[1:]
        if len(order) == 1 and isinstance(order[0], (tuple, list)):
            order = order[0]
    elif node.op == "call_function" and node.target is torch.permute and len(node.args) == 2:
        order = node.args[1]
    else:
        return None
    if not isinstance(order, (tuple, list)) or not all(type(d) is int for d in order):
        return None
    rank = len(order)
    if not all(-rank <= d < rank for d in order):
        return None
    order = [d % rank for d in order]
    return order if sorted(order) == list(range(rank)) else None


@sound(5)
def merge_permutes(graph_module):
    """Merges a permute of a permute into one."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        second = permutation_r01(node)
        first = permutation_r01(node.args[0]) if second is not None else None
        if first is None or len(first) != len(second):
            continue
        inner = node.args[0]
        if inner.next is not node or len(inner.users) != 1 or not isinstance(inner.args[0], fx.Node):
            continue
        with graph.inserting_before(node):
            merged = graph.call_function(torch.permute, (inner.args[0], tuple(first[d] for d in second)))
        node.replace_all_uses_with(merged)
        graph.erase_node(node)
        graph.erase_node(inner)
    graph.lint()
    graph_module.recompile()
    return graph_module


PURE_R02 = {
    torch.sin,
    torch.cos,
    torch.exp,
    torch.tanh,
    torch.sigmoid,
    torch.relu,
    torch.add,
    torch.sub,
    torch.mul,
    torch.matmul,
    torch.neg,
    operator.add,
    operator.sub,
    operator.mul,
    operator.matmul,
    operator.neg,
}


UNARY_R02 = {torch.sin, torch.cos, torch.exp, torch.tanh, torch.sigmoid, torch.relu}


@sound(5)
def share_neighbouring_activations(graph_module):
    """Computes a pointwise function of a tensor once, where it is computed again right after."""
    graph = graph_module.graph
    returned = set()
    for node in graph.nodes:
        if node.op == "output":
            returned.update(node.all_input_nodes)
        elif node.op == "call_function":
            if node.target not in PURE_R02 or node.kwargs:
                return graph_module
        elif node.op not in ("placeholder", "get_attr"):
            return graph_module
    for node in list(graph.nodes):
        before = node.prev
        if node.op != "call_function" or node.target not in UNARY_R02 or len(node.args) != 1:
            continue
        if before.op != "call_function" or before.target is not node.target or tuple(before.args) != tuple(node.args):
            continue
        if node in returned or before in returned or not isinstance(node.args[0], fx.Node):
            continue
        node.replace_all_uses_with(before)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


def relu_r04(node):
    if not isinstance(node, fx.Node) or len(node.users) != 1 or len(node.args) != 1:
        return False
    if set(node.kwargs) - {"inplace"} or node.kwargs.get("inplace", False) is not False:
        return False
    return node.op == "call_function" and node.target in (torch.relu, F.relu)


def max_pool_r04(node):
    if node.op != "call_function" or node.target is not F.max_pool2d or len(node.args) != 2:
        return False
    if set(node.kwargs) - {"stride", "padding", "dilation", "ceil_mode", "return_indices"}:
        return False
    options = node.kwargs
    if options.get("ceil_mode", False) is not False or options.get("return_indices", False) is not False:
        return False
    if options.get("dilation", 1) != 1 or type(options.get("dilation", 1)) is not int:
        return False
    return all(type(a) is int for a in (node.args[1], options.get("stride") or 1, options.get("padding", 0)))


@sound(5)
def relu_after_max_pool(graph_module):
    """Applies relu after max pooling, on fewer elements."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if not max_pool_r04(node) or not relu_r04(node.args[0]) or node.args[0].next is not node:
            continue
        relu = node.args[0]
        with graph.inserting_before(relu):
            pooled = graph.call_function(F.max_pool2d, (relu.args[0], *node.args[1:]), dict(node.kwargs))
            result = graph.call_function(torch.relu, (pooled,))
        node.replace_all_uses_with(result)
        graph.erase_node(node)
        graph.erase_node(relu)
    graph.lint()
    graph_module.recompile()
    return graph_module


@sound(5)
def relu6_to_hardtanh(graph_module):
    """Writes relu6 as hardtanh(0, 6), for a backend with one clamp kernel."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not F.relu6:
            continue
        inplace = node.args[1] if len(node.args) > 1 else node.kwargs.get("inplace", False)
        source = node.args[0] if node.args else node.kwargs.get("input")
        if inplace is not False or not isinstance(source, fx.Node):
            continue
        with graph.inserting_before(node):
            new = graph.call_function(F.hardtanh, (source, 0.0, 6.0))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


def attribute_r07(graph_module, path):
    value = graph_module
    for name in path.split("."):
        if not hasattr(value, name):
            return None
        value = getattr(value, name)
    return value


def transposed_weight_r07(graph_module, node):
    if not isinstance(node, fx.Node) or len(node.users) != 1 or node.kwargs:
        return None
    method = node.op == "call_method" and node.target == "t" and len(node.args) == 1
    function = node.op == "call_function" and node.target is torch.t and len(node.args) == 1
    if not (method or function):
        return None
    weight = node.args[0]
    if not isinstance(weight, fx.Node) or weight.op != "get_attr":
        return None
    value = attribute_r07(graph_module, weight.target)
    return weight if isinstance(value, nn.Parameter) and value.dim() == 2 and value.is_floating_point() else None


@sound(5)
def matmul_to_linear(graph_module):
    """Turns x @ weight.t() into F.linear(x, weight), for backends that match linear layers."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in (torch.matmul, operator.matmul):
            continue
        if len(node.args) != 2 or node.kwargs or not isinstance(node.args[0], fx.Node):
            continue
        transposed = node.args[1]
        weight = transposed_weight_r07(graph_module, transposed)
        if weight is None or transposed is node.args[0] or transposed.next is not node:
            continue
        with graph.inserting_before(node):
            new = graph.call_function(F.linear, (node.args[0], weight))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        graph.erase_node(transposed)
    graph.lint()
    graph_module.recompile()
    return graph_module
