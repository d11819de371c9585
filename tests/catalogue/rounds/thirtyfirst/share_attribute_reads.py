"""A right pass of the thirtyfirst round."""

import fx

from ...rows import sound

KNOWN = ("torch", "_operator", "operator", "math", "builtins")


def _may_assign(gm, node):
    if node.op == "call_module":
        layer = gm.get_submodule(node.target)
        hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
        own = all(type(part).__module__.startswith("torch.nn.modules.") for part in layer.modules())
        nested = any(part._forward_hooks or part._forward_pre_hooks for part in layer.modules())
        return not own or nested or any(hooks)
    if node.op == "call_function":
        origin = (getattr(node.target, "__module__", None) or "torch").split(".")[0]
        return origin not in KNOWN or node.target in (setattr, delattr)
    return node.op == "call_method" and node.target.startswith("__set")


@sound(31)
def share_attribute_reads(gm: fx.GraphModule):
    """Read each parameter and buffer once."""
    if any(_may_assign(gm, node) for node in gm.graph.nodes):
        return gm
    tensors = {*dict(gm.named_parameters(remove_duplicate=False)), *dict(gm.named_buffers(remove_duplicate=False))}
    first = {}
    for node in list(gm.graph.nodes):
        if node.op == "get_attr" and node.target in tensors:
            if first.setdefault(node.target, node) is not node:
                node.replace_all_uses_with(first[node.target])
                gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm
