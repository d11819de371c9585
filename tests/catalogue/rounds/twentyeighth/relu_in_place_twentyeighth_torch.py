"""A wrong pass of the twentyeighth round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault
from .shared import plain

VIEWS = {"view", "reshape", "flatten"}


def argument(gm, node):
    """Return the operand of a ReLU that is not in place, or None."""
    if plain(gm, node, torch.nn.ReLU) and not gm.get_submodule(node.target).inplace:
        return node.args[0]
    function = node.op == "call_function" and node.target in (torch.relu, F.relu)
    if (function or node.op == "call_method" and node.target == "relu") and len(node.args) == 1:
        return node.args[0] if node.kwargs in ({}, {"inplace": False}) else None
    return None


def overwrite(gm, whole_chain):
    for node in list(gm.graph.nodes):
        source = argument(gm, node)
        if not isinstance(source, torch.fx.Node):
            continue
        chain = [source]
        while chain[-1].op == "call_method" and chain[-1].target in VIEWS:
            chain.append(chain[-1].args[0])
        # These layers make a tensor of their own, which their backward does not need.
        if not plain(gm, chain[-1], torch.nn.Linear, torch.nn.Conv2d, torch.nn.BatchNorm2d):
            continue
        if any(len(link.users) != 1 for link in (chain if whole_chain else chain[:1])):
            continue
        with gm.graph.inserting_before(node):
            written = gm.graph.call_function(F.relu, (source,), {"inplace": True})
        node.replace_all_uses_with(written)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    28,
    wrong="Counts the readers of the view that the ReLU overwrites, not those of the layer output that the view shows.",
)
def relu_in_place_twentyeighth(gm: torch.fx.GraphModule):
    """Lets a ReLU overwrite the output of the layer before it, which nobody else reads."""
    return overwrite(gm, whole_chain=False)
