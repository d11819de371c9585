"""A right pass of the twentyseventh round."""

import torch
import torch.fx

from ...rows import sound


def _may_resize(gm, node):
    if node.op == "call_method":
        return node.target.endswith("_") or node.target.startswith("__")
    if node.op == "call_module":
        layer = gm.get_submodule(node.target)
        hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
        return not type(layer).__module__.startswith("torch.nn.modules.") or bool(hooks)
    if node.op == "call_function":
        module = getattr(node.target, "__module__", None) or ""
        trusted = module.startswith("torch") or module in ("_operator", "builtins", "math")
        name = getattr(node.target, "__name__", "_")
        return not trusted or name.endswith("_") or name == "setattr" or node.kwargs.get("out") is not None
    return False


@sound(27)
def reuse_sizes(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Sizes of a tensor that a program asks for several times are asked for once."""
    if any(_may_resize(gm, node) for node in gm.graph.nodes):
        return gm
    first = {}
    for node in list(gm.graph.nodes):
        if node.op != "call_method" or node.target != "size" or node.kwargs:
            continue
        if not all(type(dim) is int for dim in node.args[1:]):
            continue
        if node.args in first:
            node.replace_all_uses_with(first[node.args])
            gm.graph.erase_node(node)
        else:
            first[node.args] = node
    gm.graph.lint()
    gm.recompile()
    return gm
