"""A right pass of the twentythird round."""

import torch.nn.functional as F

import fx

from ...rows import sound


@sound(23)
def remove_disabled_dropout(gm):
    """Remove functional dropout that is switched off by a literal `training=False`."""
    for node in gm.graph.find_nodes(op="call_function", target=F.dropout):
        named = dict(zip(("input", "p", "training", "inplace"), node.args, strict=False)) | dict(node.kwargs)
        if set(named) - {"input", "p", "training", "inplace"} or not isinstance(named.get("input"), fx.Node):
            continue
        p = named.get("p", 0.5)
        if named.get("training", True) is not False or named.get("inplace", False) is not False:
            continue
        if type(p) not in (int, float) or not 0 <= p <= 1:
            continue
        node.replace_all_uses_with(named["input"])
        gm.graph.erase_node(node)
    gm.recompile()
    return gm
