"""A wrong pass of the fourteenth round."""

import torch
from torch.fx import GraphModule, Node

from ...rows import fault
from .shared import finish, follows


def flat_concat(first, inner, last, dim):
    """One concatenation, or two where the types or ranks differ."""
    parts = [*first, *inner, *last]
    if all(part.dtype == parts[0].dtype and part.dim() == parts[0].dim() for part in parts):
        return torch.cat(parts, dim)
    return torch.cat([*first, torch.cat(inner, dim), *last], dim)


def _parts(node):
    """The parts and the dimension of a concatenation."""
    if not isinstance(node, Node) or node.op != "call_function" or node.target is not torch.cat or not node.args:
        return None
    if len(node.args) > 2 or set(node.kwargs) - {"dim"} or not isinstance(node.args[0], (list, tuple)):
        return None
    dim = node.args[1] if len(node.args) == 2 else node.kwargs.get("dim", 0)
    return (list(node.args[0]), dim) if type(dim) is int and node.args[0] else None


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    for node in list(graph.nodes):
        outer = _parts(node)
        if outer is None:
            continue
        parts, dim = outer
        for place, part in enumerate(parts):
            inner = _parts(part)
            if inner is None or inner[1] != dim or len(part.users) != 1 or not follows(node, part):
                continue
            if parts.count(part) != 1:
                continue
            first, last = parts[:place], parts[place + 1 :]
            with graph.inserting_before(node):
                if careful:
                    new = graph.call_function(flat_concat, (first, inner[0], last, dim))
                else:
                    new = graph.call_function(torch.cat, ([*first, *inner[0], *last], dim))
            node.replace_all_uses_with(new)
            graph.erase_node(node)
            graph.erase_node(part)
            break
    return finish(graph_module)


@fault(
    14,
    wrong="Types are promoted twice: integers that meet half in the inner one are rounded before they become float32.",
)
def flatten_concat(graph_module: GraphModule) -> GraphModule:
    """Replace cat([..., cat([...], d), ...], d) by one cat."""
    return _rewrite(graph_module, False)
