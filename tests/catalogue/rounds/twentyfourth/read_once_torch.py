"""A right pass of the twentyfourth round."""

import torch.fx
from torch import nn

from ...rows import sound


def _is_registered(gm, target):
    path, _, name = target.rpartition(".")
    owner = gm
    for part in path.split(".") if path else ():
        if part not in owner._modules or not _is_ordinary(gm, owner, part):
            return False
        owner = owner._modules[part]
    tensor = owner._parameters.get(name, owner._buffers.get(name))
    return tensor is not None and _is_ordinary(gm, owner, name)


def _is_ordinary(gm, owner, name):
    kind = type(owner)
    plain = owner is gm or (
        kind.__getattr__ is nn.Module.__getattr__ and kind.__getattribute__ is object.__getattribute__
    )
    return plain and name not in vars(owner) and not hasattr(kind, name)


@sound(24)
def read_once(gm: torch.fx.GraphModule):
    """Let the users of a repeated read use the first one of the row."""
    row = {}
    for node in [*gm.graph.nodes]:
        if node.op != "get_attr":
            row = {}
        elif node.target in row:
            node.replace_all_uses_with(row[node.target])
            gm.graph.erase_node(node)
        elif _is_registered(gm, node.target):
            row[node.target] = node
    gm.recompile()
    return gm
