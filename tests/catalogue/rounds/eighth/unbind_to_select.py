"""A right pass of the eighth round."""

import operator

import torch

import fx

from ...rows import sound


def _unbind(node):
    """Return the operand and the dimension of an unbind, or None."""
    if not (
        node.op == "call_function"
        and node.target is torch.unbind
        or node.op == "call_method"
        and node.target == "unbind"
    ):
        return None
    if not 1 <= len(node.args) + len(node.kwargs) <= 2 or set(node.kwargs) - {"input", "dim"}:
        return None
    arguments = dict(zip(("input", "dim"), node.args), **node.kwargs)
    value, dim = arguments.get("input"), arguments.get("dim", 0)
    return (value, dim) if isinstance(value, fx.Node) and type(dim) is int else None


def _parts(node):
    """The calls that fetch parts, if these directly follow and nothing else reads the result."""
    parts, following = [], node.next
    while following.op == "call_function" and following.target is operator.getitem and following.args[0] is node:
        if type(following.args[1]) is not int or following.args[1] < 0:
            return []
        parts.append(following)
        following = following.next
    numbers = [part.args[1] for part in parts]
    return parts if set(parts) == set(node.users) and len(set(numbers)) == len(numbers) else []


@sound(8)
def unbind_to_select(module: fx.GraphModule) -> fx.GraphModule:
    """Replace `unbind` and the fetching of its parts by one `select` for each."""
    graph = module.graph
    for node in list(graph.nodes):
        value_and_dim = _unbind(node)
        parts = _parts(node) if value_and_dim else []
        if not parts:
            continue
        for part in parts:
            with graph.inserting_before(part):
                selected = graph.call_function(torch.select, (*value_and_dim, part.args[1]))
            part.replace_all_uses_with(selected)
            graph.erase_node(part)
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module
