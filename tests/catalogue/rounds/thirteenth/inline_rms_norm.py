"""A wrong pass of the thirteenth round."""

import torch.nn.functional as F
from torch import nn

from fx import GraphModule

from ...rows import fault
from .shared import single


def _plain(module: nn.Module, kind: type) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is kind and "forward" not in vars(module) and not any(hooks)


def _state(gm: GraphModule, node, name: str):
    module = gm.get_submodule(node.target)
    return None if getattr(module, name) is None else gm.graph.get_attr(f"{node.target}.{name}")


def _finish(gm: GraphModule) -> GraphModule:
    gm.graph.lint()
    gm.recompile()
    return gm


def _rewrite(gm: GraphModule, careful: bool) -> GraphModule:
    for node in gm.graph.find_nodes(op="call_module"):
        norm = gm.get_submodule(node.target)
        if not _plain(norm, nn.RMSNorm) or not single(node):
            continue
        eps = norm.eps if careful else norm.eps or 1e-6
        with gm.graph.inserting_before(node):
            weight = _state(gm, node, "weight")
            new = gm.graph.call_function(F.rms_norm, (node.args[0], norm.normalized_shape, weight, eps))
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    return _finish(gm)


@fault(13, wrong="An eps of None means the machine epsilon of the dtype, not 1e-6, and an eps of 0.0 means none.")
def inline_rms_norm(graph_module: GraphModule) -> GraphModule:
    """Opens nn.RMSNorm into F.rms_norm on its weight."""
    return _rewrite(graph_module, careful=False)
