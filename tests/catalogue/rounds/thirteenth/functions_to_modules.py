"""A wrong pass of the thirteenth round."""

import torch
import torch.nn.functional as F
from torch import nn

from fx import GraphModule

from ...rows import fault


def _finish(gm: GraphModule) -> GraphModule:
    gm.graph.lint()
    gm.recompile()
    return gm


def _rewrite(gm: GraphModule, careful: bool) -> GraphModule:
    count = 0
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or len(node.args) != 1 or node.kwargs not in ({}, {"inplace": False}):
            continue
        if node.target in (F.relu, torch.relu):
            module = nn.ReLU()
        elif node.target is F.gelu and not node.kwargs:
            module = nn.GELU()
        else:
            continue
        while careful and hasattr(gm, f"act_{count}"):
            count += 1
        name = f"act_{count}"
        count += 1
        gm.add_submodule(name, module.train(gm.training))
        with gm.graph.inserting_before(node):
            new = gm.graph.call_module(name, node.args)
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    return _finish(gm)


@fault(13, wrong="The names act_0, act_1, ... of the new modules are not checked against those that the program has.")
def functions_to_modules(graph_module: GraphModule) -> GraphModule:
    """Outlines F.relu and F.gelu calls into modules, for a converter that walks modules."""
    return _rewrite(graph_module, careful=False)
