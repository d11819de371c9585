"""A right pass of the thirtyfirst round."""

import operator

import torch
import torch.fx

from ...rows import sound

ATTRIBUTES = ("shape", "dtype", "device", "ndim")


METHODS = ("size", "dim", "numel", "ndimension")


def _reads_size(node):
    if node.op == "call_method":
        return node.target in METHODS
    return node.op == "call_function" and node.target is getattr and node.args[1] in ATTRIBUTES


def _reads_part(gm, node):
    if node.op != "call_function" or node.target is not operator.getitem or not isinstance(node.args[1], int):
        return False
    whole = node.args[0]
    if not isinstance(whole, torch.fx.Node):
        return False
    if whole.op == "call_module":
        return type(gm.get_submodule(whole.target)).__module__.startswith("torch.nn.modules.")
    return _reads_size(whole)


@sound(31)
def drop_unread_parts(gm: torch.fx.GraphModule):
    """Remove sizes and parts of results that nobody reads, as unpacking leaves them behind."""
    for node in reversed(list(gm.graph.nodes)):
        if not node.users and (_reads_size(node) or _reads_part(gm, node)):
            gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm
