"""A wrong pass of the seventeenth round."""

import copy
import operator

from torch import nn
from torch.fx import GraphModule, Node

from ...rows import fault
from .shared import has_hooks, may_write


def _scalable(graph_module: GraphModule, node, scale) -> bool:
    if not isinstance(node, Node) or node.op != "call_module" or len(node.users) != 1:
        return False
    if type(scale) not in (int, float) or scale not in (2, 4, 8, 16, 32):
        return False  # powers of two are exact
    module = graph_module.get_submodule(node.target)
    calls = [
        n for n in graph_module.graph.nodes if n.op == "call_module" and graph_module.get_submodule(n.target) is module
    ]
    return (
        type(module) is nn.Embedding
        and len(calls) == 1
        and not has_hooks(module)
        and not module.weight.requires_grad
        and module.weight.is_floating_point()
    )


def _fold(graph_module: GraphModule, careful: bool) -> GraphModule:
    if graph_module.training or may_write(graph_module):
        return graph_module
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or node.target is not operator.mul or not _scalable(graph_module, *node.args):
            continue
        source, scale = node.args
        module = graph_module.get_submodule(source.target)
        if careful:
            storage = module.weight.untyped_storage().data_ptr()
            tensors = [
                *graph_module.named_parameters(remove_duplicate=False),
                *graph_module.named_buffers(remove_duplicate=False),
            ]
            if sum(value.untyped_storage().data_ptr() == storage for _, value in tensors) > 1:
                continue
            if any(n.op == "get_attr" and n.target.startswith(source.target) for n in graph_module.graph.nodes):
                continue
            module = copy.deepcopy(module)
            graph_module.set_submodule(source.target, module)
        module.weight.data.mul_(scale)
        node.replace_all_uses_with(source)
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(17, wrong="The table is scaled in place, also where another layer is tied to it.")
def fold_embedding_scale_seventeenth(graph_module: GraphModule) -> GraphModule:
    """Scale the table of a frozen embedding instead of each row that is read."""
    return _fold(graph_module, careful=False)
