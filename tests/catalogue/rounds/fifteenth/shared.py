"""Helpers shared by the passes of the fifteenth round share."""


def plain(graph_module, node, kind):
    """The module that the node calls, if it is exactly of that kind and has no hooks, else None."""
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    module = graph_module.get_submodule(node.target)
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if type(module) is not kind or any(getattr(module, name) for name in hooks) or "forward" in vars(module):
        return None
    return module


def parameter(graph_module, node, name):
    """A read of the module's parameter of that name, or None where it has none."""
    if getattr(graph_module.get_submodule(node.target), name) is None:
        return None
    return graph_module.graph.get_attr(f"{node.target}.{name}")


def parameters_are_plain(module, *names):
    return all(name in module._parameters for name in names)
