"""A wrong pass of the thirteenth round."""

import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule

from ...rows import fault
from .shared import finish, single


def _plain(module: nn.Module, kind: type) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is kind and "forward" not in vars(module) and not any(hooks)


def _state(gm: GraphModule, node, name: str):
    module = gm.get_submodule(node.target)
    return None if getattr(module, name) is None else gm.graph.get_attr(f"{node.target}.{name}")


def _rewrite(gm: GraphModule, careful: bool) -> GraphModule:
    for node in gm.graph.find_nodes(op="call_module"):
        table = gm.get_submodule(node.target)
        if not _plain(table, nn.Embedding) or not single(node):
            continue
        options = {name: getattr(table, name) for name in ("max_norm", "norm_type", "scale_grad_by_freq", "sparse")}
        if careful:
            options["padding_idx"] = table.padding_idx
        with gm.graph.inserting_before(node):
            new = gm.graph.call_function(F.embedding, (node.args[0], _state(gm, node, "weight")), options)
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    return finish(gm)


@fault(13, wrong="padding_idx is not passed on: the values are the same, but the row of the padding is trained.")
def inline_embedding(graph_module: GraphModule) -> GraphModule:
    """Opens nn.Embedding into F.embedding on its weight."""
    return _rewrite(graph_module, careful=False)
