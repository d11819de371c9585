"""Right passes of the third round that are written for torch.fx."""

import operator
import sys

import torch
import torch.fx
from torch import nn

from ..rows import sound


def dims_of(node):
    """(value, dims counted from the front) of a permute by numbers, else None."""
    if not isinstance(node, torch.fx.Node) or node.kwargs or not node.args:
        return None
    if node.op == "call_method" and node.target == "permute":
        dims = node.args[1:]
        if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
            dims = dims[0]
    elif node.op == "call_function" and node.target is torch.permute and len(node.args) == 2:
        dims = node.args[1]
    else:
        return None
    if not isinstance(node.args[0], torch.fx.Node) or not isinstance(dims, (tuple, list)) or not dims:
        return None
    if not all(type(dim) is int for dim in dims):
        return None
    rank = len(dims)
    front = tuple(dim + rank if dim < 0 else dim for dim in dims)
    return (node.args[0], front) if sorted(front) == list(range(rank)) else None


@sound(3)
def compose_permute_methods(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """x.permute(p).permute(q) becomes x.permute([p[i] for i in q]), still a view of x, even where that is the identity.

    Refuses programs that call in-place methods, since x.t_() between the two would be seen by a permute moved past it,
    and looks through neighbours only."""
    graph = graph_module.graph
    if any(node.op == "call_method" and node.target.endswith("_") for node in graph.nodes):
        return graph_module
    for node in list(graph.nodes):
        outer = dims_of(node)
        inner = dims_of(outer[0]) if outer is not None else None
        if inner is None or len(inner[1]) != len(outer[1]):
            continue
        between = outer[0].next
        while between is not node and dims_of(between) is not None:
            between = between.next
        if between is not node:
            continue
        order = [inner[1][dim] for dim in outer[1]]
        with graph.inserting_before(node):
            merged = graph.call_function(torch.permute, (inner[0], order))
        node.replace_all_uses_with(merged)
        graph.erase_node(node)
        if not outer[0].users:
            graph.erase_node(outer[0])
    graph.lint()
    graph_module.recompile()
    return graph_module


FUNCTIONS = {
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    torch.exp,
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.matmul,
    torch.cat,
    torch.stack,
    torch.softmax,
    torch.flatten,
    torch.sum,
    torch.mean,
    torch.transpose,
    torch.permute,
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.getitem,
    operator.neg,
}


METHODS = {
    "relu",
    "sigmoid",
    "tanh",
    "exp",
    "sum",
    "mean",
    "view",
    "reshape",
    "transpose",
    "permute",
    "flatten",
    "size",
    "dim",
    "contiguous",
    "unsqueeze",
    "squeeze",
    "add",
    "mul",
    "sub",
    "float",
    "double",
}


LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.GELU,
    nn.Sigmoid,
    nn.Tanh,
    nn.MaxPool2d,
    nn.AvgPool2d,
)


def removable(graph_module, node):
    if node.op == "get_attr":
        return True
    if node.op == "call_function":
        return node.target in FUNCTIONS and "out" not in node.kwargs
    if node.op == "call_method":
        return node.target in METHODS and "out" not in node.kwargs
    if node.op != "call_module":
        return False
    module = graph_module.get_submodule(node.target)
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return type(module) in LAYERS and not hooks and "forward" not in vars(module)


@sound(3)
def drop_pure_dead_code(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Remove calls without a reader, last to first. What is not on the lists stays: what writes in place, draws random
    numbers, counts (batch norm, also in eval: it may be trained later), asserts, has hooks or is anybody's own."""
    for node in reversed(list(graph_module.graph.nodes)):
        if not node.users and removable(graph_module, node):
            graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


def slices_of(node):
    """The slices of x[a:b, c:d], if all are of step one and of numbers counted from the front, else None."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_function" or node.target is not operator.getitem:
        return None
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    if not index:
        return None
    for part in index:
        if type(part) is not slice or part.step is not None and not (type(part.step) is int and part.step == 1):
            return None
        for bound in (part.start, part.stop):
            if bound is not None and not (type(bound) is int and bound >= 0):
                return None
    return index


def compose(first, second):
    """The slice that takes second of first, for a dimension of any size."""
    start = min((first.start or 0) + (second.start or 0), sys.maxsize)
    stop = first.stop
    if second.stop is not None:
        end = min((first.start or 0) + second.stop, sys.maxsize)
        stop = end if stop is None else min(stop, end)
    if stop is not None:
        stop = max(stop, start)
    return slice(start, stop)


@sound(3)
def merge_slices(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """x[1:8][2:4] becomes x[3:5], also by dimension. Slices clamp to the size, and so does their composition.

    Both are views of x, so writes through them stay what they were; methods like t_() that change what a
    dimension is make the pass leave the program alone."""
    graph = graph_module.graph
    if any(node.op == "call_method" and node.target.endswith("_") for node in graph.nodes):
        return graph_module
    for node in list(graph.nodes):
        outer = slices_of(node)
        inner = slices_of(node.args[0]) if outer is not None else None
        if inner is None or isinstance(node.args[0].args[1], tuple) != isinstance(node.args[1], tuple):
            continue
        source = node.args[0]
        if source.next is not node:
            continue
        rank = max(len(inner), len(outer))
        inner += (slice(None),) * (rank - len(inner))
        outer += (slice(None),) * (rank - len(outer))
        merged = tuple(compose(first, second) for first, second in zip(inner, outer))
        node.args = (source.args[0], merged if isinstance(node.args[1], tuple) else merged[0])
        if not source.users:
            graph.erase_node(source)
    graph.lint()
    graph_module.recompile()
    return graph_module
