"""A wrong pass of the sixteenth round."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ...rows import fault
from .shared import finish


def _plain(module: nn.Module, kind: type) -> bool:
    """Exactly of this class and without hooks."""
    return type(module) is kind and not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def _rewrite(graph_module: torch.fx.GraphModule, careful: bool) -> torch.fx.GraphModule:
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        if node.op != "call_module" or not _plain(modules[node.target], nn.Embedding):
            continue
        table = modules[node.target]
        if table.max_norm is not None or table.scale_grad_by_freq or table.sparse or len(node.args) != 1 or node.kwargs:
            continue
        options = {"padding_idx": table.padding_idx} if careful and table.padding_idx is not None else {}
        with graph.inserting_before(node):
            weight = graph.get_attr(f"{node.target}.weight")
            looked_up = graph.call_function(F.embedding, (node.args[0], weight), options)
        node.replace_all_uses_with(looked_up)
        graph.erase_node(node)
    return finish(graph_module)


@fault(16, wrong="padding_idx is left out, as it does not change the output; but then the padding row gets a gradient.")
def inline_embedding_sixteenth(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Writes nn.Embedding modules as F.embedding with the weight read by get_attr."""
    return _rewrite(graph_module, careful=False)
