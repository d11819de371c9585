"""Right passes of the sixth round for torch.fx, part 1."""

import torch
import torch.fx
import torch.nn.functional as F

from ..rows import sound


def fresh_relu_r01(node):
    if node.op == "call_function" and node.target in (torch.relu, F.relu):
        return len(node.args) == 1 and (not node.kwargs or node.kwargs == {"inplace": False})
    return node.op == "call_method" and node.target == "relu" and len(node.args) == 1 and not node.kwargs


@sound(6)
def transpose_after_relu(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Layout: transposes sink below ReLUs, towards other transposes that may undo them."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if not fresh_relu_r01(node) or not isinstance(node.args[0], torch.fx.Node):
            continue
        moved = node.args[0]
        if moved.op != "call_method" or moved.target != "transpose" or moved.kwargs or len(moved.args) != 3:
            continue
        x, *dims = moved.args
        if not all(type(dim) is int for dim in dims):
            continue
        # The input may be transposed in place before this point, and then the view here has other dimensions.
        if any(n.op == "call_method" and n.target.endswith("_") for n in graph.nodes):
            continue
        with graph.inserting_before(node):
            active = graph.call_function(torch.relu, (x,))
            result = graph.call_method("transpose", (active, *dims))
        node.replace_all_uses_with(result)
        graph.erase_node(node)
        if not moved.users:
            graph.erase_node(moved)
    graph.lint()
    graph_module.recompile()
    return graph_module


def order_r03(node):
    """The dimensions of a permute, from 0 up, or None."""
    if node.op == "call_method" and node.target == "permute" and not node.kwargs:
        dims = node.args[1:]
        if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
            dims = tuple(dims[0])
    elif node.op == "call_function" and node.target is torch.permute and not node.kwargs and len(node.args) == 2:
        dims = node.args[1]
        if not isinstance(dims, (tuple, list)):
            return None
    else:
        return None
    if not dims or not all(type(dim) is int and -len(dims) <= dim < len(dims) for dim in dims):
        return None
    order = [dim % len(dims) for dim in dims]
    return order if sorted(order) == list(range(len(order))) else None


@sound(6)
def compose_permutes_sixth(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Two permutes on end become one, with the composed order."""
    graph = graph_module.graph
    changes_shape = any(
        node.op == "call_method" and node.target.endswith("_") and not node.target.endswith("__")
        for node in graph.nodes
    )
    if changes_shape:
        return graph_module  # one of the tensors may be transposed or resized in place in between
    for node in list(graph.nodes):
        second = order_r03(node)
        first = order_r03(node.args[0]) if second and isinstance(node.args[0], torch.fx.Node) else None
        if not first or len(first) != len(second):
            continue
        before = node.args[0]
        with graph.inserting_before(node):
            composed = graph.call_method("permute", (before.args[0], *(first[dim] for dim in second)))
        node.replace_all_uses_with(composed)
        graph.erase_node(node)
        if not before.users:
            graph.erase_node(before)
    graph.lint()
    graph_module.recompile()
    return graph_module
