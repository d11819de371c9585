"""Helpers shared by the passes of the twentyeighth round share."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def plain(gm, node, *kinds):
    """Return whether the node calls a module of exactly these types, without hooks, on one positional argument."""
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return False
    module = gm.get_submodule(node.target)
    return type(module) in kinds and not any(getattr(module, hooks, None) for hooks in HOOKS)


IN_PLACE = {
    "setitem",
    "setattr",
    "__setitem__",
    "iadd",
    "isub",
    "imul",
    "itruediv",
    "ifloordiv",
    "imod",
    "ipow",
    "imatmul",
    "iand",
    "ior",
    "ixor",
    "ilshift",
    "irshift",
    "iconcat",
    "batch_norm",
    "instance_norm",
}


def writes(gm):
    """Return whether a node may write into an existing tensor."""
    for node in gm.graph.nodes:
        if node.op == "call_module":
            module = gm.get_submodule(node.target)
            if getattr(module, "inplace", False) or getattr(module, "max_norm", None) is not None:
                return True
            if module._forward_hooks or module._forward_pre_hooks or not type(module).__module__.startswith("torch.nn"):
                return True
        elif node.op in ("call_function", "call_method"):
            name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
            origin = getattr(node.target, "__module__", None) or "torch"
            if origin.partition(".")[0] not in ("torch", "_operator", "builtins", "math"):
                return True
            if name in IN_PLACE or name.startswith("__i") or name.endswith("_") and not name.endswith("__"):
                return True
            if any(node.kwargs.get(name) is not None for name in ("out", "max_norm")) or node.kwargs.get("inplace"):
                return True
            if any(arg is True for arg in node.args) or name.startswith("embedding") and len(node.args) > 3:
                return True
    return False
