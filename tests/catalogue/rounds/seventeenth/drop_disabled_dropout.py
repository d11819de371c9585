"""A right pass of the seventeenth round."""

import torch.nn.functional as F
from torch import nn

from fx import GraphModule, Node

from ...rows import sound


@sound(17)
def drop_disabled_dropout(graph_module: GraphModule) -> GraphModule:
    """Drop F.dropout with training=False written out."""
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or node.target is not F.dropout:
            continue
        names = {"p": 0.5, "training": True, "inplace": False} | dict(
            zip(("input", "p", "training", "inplace"), node.args)
        )
        names |= dict(node.kwargs)
        if names["training"] is not False or names["inplace"] is not False or type(names["p"]) is not float:
            continue
        if set(names) != {"input", "p", "training", "inplace"} or not 0.0 <= names["p"] <= 1.0:
            continue
        source = names["input"]
        if not isinstance(source, Node) or source.op != "call_module":
            continue  # only what is a tensor for sure: anything else is an error
        if type(graph_module.get_submodule(source.target)) not in (nn.Linear, nn.Conv2d, nn.LayerNorm):
            continue
        node.replace_all_uses_with(source)
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
