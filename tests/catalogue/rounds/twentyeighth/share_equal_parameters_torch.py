"""A wrong pass of the twentyeighth round."""

import torch
import torch.fx

from ...rows import fault


def stored(gm, node):
    """The tensor that the node reads, or None where a module that runs might bind it anew."""
    if node.op != "get_attr":
        return None
    owner, _, name = node.target.rpartition(".")
    for other in gm.graph.nodes:
        if other.op == "call_module":
            called = gm.get_submodule(other.target)
            if called._forward_hooks or called._forward_pre_hooks or f"{owner}.".startswith(f"{other.target}."):
                return None
    module = gm.get_submodule(owner)
    return {**module._parameters, **module._buffers}.get(name)


def equal(gm, left, right):
    a, b = stored(gm, left), stored(gm, right)
    return type(a) is type(b) and a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def share(gm, alike):
    distinct = []
    for node in list(gm.graph.nodes):
        if stored(gm, node) is None:
            continue
        other = next((other for other in distinct if alike(gm, node, other)), None)
        if other is None:
            distinct.append(node)
            continue
        node.replace_all_uses_with(other)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    28,
    wrong="Compares the values at the time of the pass: parameters that only start alike, at ones or zeros, become one.",
)
def share_equal_parameters(gm: torch.fx.GraphModule):
    """Reads a parameter or buffer only once, however often it is used, so that it is stored and loaded once."""
    return share(gm, equal)
