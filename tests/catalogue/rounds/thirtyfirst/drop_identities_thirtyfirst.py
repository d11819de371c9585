"""A wrong pass of the thirtyfirst round."""

import torch.nn as nn

import fx

from ...rows import fault


def _drop(gm, keep):
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        layer = gm.get_submodule(node.target)
        if type(layer) is nn.Identity and isinstance(node.args[0], fx.Node) and not keep(layer):
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    31,
    wrong="nn.Identity is removed also where hooks are registered on it, and identities are where one taps or edits "
    "features.",
)
def drop_identities_thirtyfirst(gm: fx.GraphModule):
    """Remove calls of nn.Identity."""
    return _drop(gm, lambda layer: False)
