"""Helpers shared by the passes of the twentyfifth round share."""


def hooked(module):
    """Return whether calling the module does more than its class says."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(map(len, hooks)) or "forward" in vars(module)


IN_PLACE = {
    "setitem",
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
}


def writes(gm):
    """Return whether some node may write into an existing tensor (in doubt: yes)."""
    for node in gm.graph.nodes:
        if node.op == "call_method" and (node.target.endswith("_") or node.target == "register_hook"):
            return True
        if node.op == "call_function":
            name, home = getattr(node.target, "__name__", "_"), getattr(node.target, "__module__", None) or "torch"
            trusted = home.split(".")[0] in ("torch", "_operator", "builtins", "math") and not home.startswith(
                "torch._ops"
            )
            if not trusted or name.endswith("_") or name in IN_PLACE or any(value is True for value in node.args):
                return True
        if node.op == "call_module":
            module = gm.get_submodule(node.target)
            plain = type(module).__module__.startswith("torch.nn.modules") and not hooked(module)
            if not plain or getattr(module, "inplace", False) or getattr(module, "max_norm", None) is not None:
                return True
        if node.kwargs.get("out") is not None or node.kwargs.get("inplace") or node.kwargs.get("training"):
            return True
    return False
