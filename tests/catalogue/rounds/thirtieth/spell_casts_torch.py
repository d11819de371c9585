"""A right pass of the thirtieth round."""

import torch
import torch.fx

from ...rows import sound

DTYPES = {
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "float": torch.float32,
    "double": torch.float64,
    "int": torch.int32,
    "long": torch.int64,
    "bool": torch.bool,
}


@sound(30)
def spell_casts(gm: torch.fx.GraphModule):
    """Spell casts by method, x.float() say, as x.to(dtype), so that later passes have one form to match."""
    for node in list(gm.graph.nodes):
        if node.op != "call_method" or node.target not in DTYPES or len(node.args) != 1 or node.kwargs:
            continue
        if not isinstance(node.args[0], torch.fx.Node):
            continue
        with gm.graph.inserting_before(node):
            cast = gm.graph.call_method("to", (node.args[0], DTYPES[node.target]))
        node.replace_all_uses_with(cast)
        gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm
