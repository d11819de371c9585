"""A wrong pass of the twelfth round."""

import torch

import fx

from ...rows import fault


def _call(node, method, function, names):
    """The arguments by name of a call of a method or function, or None."""
    if not isinstance(node, fx.Node) or node.op not in ("call_method", "call_function"):
        return None
    if node.target not in (method, function) or len(node.args) > len(names) or set(node.kwargs) - set(names):
        return None
    return dict(zip(names, node.args)) | dict(node.kwargs)


def _run(module, compare):
    graph = module.graph
    for node in list(graph.nodes):
        top = _call(node, "amax", torch.amax, ("x", "dim", "keepdim"))
        if top is None or type(top.get("dim")) is not int or top.get("keepdim", False) is not False:
            continue
        cat = top["x"]
        joined = _call(cat, None, torch.cat, ("tensors", "dim"))
        if (
            joined is None
            or not isinstance(joined.get("tensors"), (list, tuple))
            or len(cat.users) != 1
            or joined.get("dim", 0) != top["dim"]
        ):
            continue
        parts = [_call(part, "unsqueeze", torch.unsqueeze, ("x", "dim")) for part in joined["tensors"]]
        if (
            len(parts) != 2
            or None in parts
            or parts[0].get("dim") != parts[1].get("dim")
            or type(parts[0].get("dim")) is not int
        ):
            continue
        if compare and parts[0]["dim"] != top["dim"]:
            continue
        sources = [part["x"] for part in parts]
        if any(user.op == "call_method" and user.target.endswith("_") for x in sources for user in x.users):
            continue
        with graph.inserting_before(cat):
            largest = graph.call_function(torch.maximum, tuple(sources))
        node.replace_all_uses_with(largest)
        graph.erase_node(node)
        graph.erase_node(cat)
        for part in {*joined["tensors"]}:
            if not part.users:
                graph.erase_node(part)
    module.recompile()
    return module


@fault(12, wrong="The dimension that was added is not compared with the one that is concatenated and reduced.")
def concat_max_to_maximum(module: fx.GraphModule) -> fx.GraphModule:
    """Replace the maximum over the concatenation of two tensors with a new dimension by torch.maximum."""
    return _run(module, False)
