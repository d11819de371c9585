"""A right pass of the eighth round."""

from torch.fx import GraphModule

from ...rows import sound


def _own_tensor(module, path):
    """Return whether the path leads to a parameter or buffer, and not to a property that computes one."""
    prefix, _, name = path.rpartition(".")
    try:
        owner = module.get_submodule(prefix)
    except AttributeError:
        return False
    if isinstance(getattr(type(owner), name, None), property):
        return False
    return owner._parameters.get(name) is not None or owner._buffers.get(name) is not None


def _may_reassign(module):
    """Return whether a module or function from outside torch may reassign an attribute while the program runs."""
    for node in module.graph.nodes:
        if node.op == "call_module":
            for inner in module.get_submodule(node.target).modules():
                hooks = (inner._forward_hooks, inner._forward_pre_hooks)
                if not type(inner).__module__.startswith("torch.nn.modules.") or any(hooks) or "forward" in vars(inner):
                    return True
        elif node.op == "call_function":
            origin = getattr(node.target, "__module__", None) or "torch"
            if origin.split(".")[0] not in ("torch", "_operator", "math", "builtins"):
                return True
            if getattr(node.target, "__name__", "") in ("setattr", "delattr", "exec", "eval"):
                return True
    return False


@sound(8)
def share_attribute_fetches(module: GraphModule) -> GraphModule:
    """Fetch each parameter and buffer once, where it is first needed."""
    graph, first = module.graph, {}
    if _may_reassign(module):
        return module
    for node in list(graph.nodes):
        if node.op != "get_attr" or not _own_tensor(module, node.target):
            continue
        first_fetch = first.setdefault(node.target, node)
        if first_fetch is not node:
            node.replace_all_uses_with(first_fetch)
            graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module
