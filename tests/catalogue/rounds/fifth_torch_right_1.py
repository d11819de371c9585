"""Right passes of the fifth round for torch.fx, part 1."""

import torch
import torch.fx

from ..rows import sound


def clamp_r03(node):
    if not isinstance(node, torch.fx.Node):
        return None
    function = node.op == "call_function" and node.target in (torch.clamp, torch.clip)
    method = node.op == "call_method" and node.target in ("clamp", "clip")
    if not (function or method) or not node.args or len(node.args) > 3:
        return None
    arguments = dict(zip(("input", "min", "max"), node.args))
    if set(node.kwargs) - {"min", "max"} or set(node.kwargs) & set(arguments):
        return None
    arguments.update(node.kwargs)
    low, high = arguments.get("min"), arguments.get("max")
    if type(low) is not float or type(high) is not float or not low <= high:
        return None
    return arguments["input"], low, high


@sound(5)
def merge_overlapping_clamps(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Merges a clamp of a clamp into one over the intersection of the ranges, if they meet."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        outer = clamp_r03(node)
        inner = clamp_r03(outer[0]) if outer is not None else None
        if inner is None or outer[0].next is not node or len(outer[0].users) != 1:
            continue
        low, high = max(inner[1], outer[1]), min(inner[2], outer[2])
        if not low <= high:
            continue
        first = outer[0]
        with graph.inserting_before(node):
            merged = graph.call_function(torch.clamp, (inner[0],), {"min": low, "max": high})
        node.replace_all_uses_with(merged)
        graph.erase_node(node)
        graph.erase_node(first)
    graph.lint()
    graph_module.recompile()
    return graph_module


QUERIES_R05 = {"size", "dim", "numel", "stride", "is_floating_point", "detach"}


LIKE_R05 = {torch.zeros_like, torch.ones_like}


def droppable_r05(node):
    if node.users or node.kwargs or len(node.args) != 1 or not isinstance(node.args[0], torch.fx.Node):
        return False
    if node.op == "call_method":
        return node.target in QUERIES_R05
    return node.op == "call_function" and node.target in LIKE_R05


@sound(5)
def drop_dead_queries(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Drops sizes and constant-like tensors that nobody reads."""
    for node in reversed(list(graph_module.graph.nodes)):
        if droppable_r05(node):
            graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
