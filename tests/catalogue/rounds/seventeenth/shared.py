"""Helpers shared by the passes of the seventeenth round share."""

import torch


def may_write(graph_module) -> bool:
    """Return whether any operation of the program may write in place, as far as is known."""
    for node in graph_module.graph.nodes:
        if node.op == "call_module":
            module = graph_module.get_submodule(node.target)
            if getattr(module, "inplace", False) or not type(module).__module__.startswith("torch.nn."):
                return True
            if getattr(module, "max_norm", None) is not None or (module.training and list(module.buffers())):
                return True
        elif node.op == "call_method":
            if node.target.endswith("_") or node.target == "apply":
                return True
        elif node.op == "call_function":
            name = getattr(node.target, "__name__", "_")
            home = getattr(node.target, "__module__", None) or "torch"
            if not (home.startswith("torch") or home in ("_operator", "operator", "builtins", "math")):
                return True
            if name.endswith("_") or name in WRITERS or "out" in node.kwargs or node.kwargs.get("inplace", False):
                return True
            if home == "torch.nn.functional" and (any(arg is True for arg in node.args) or "norm" in name):
                return True
    return False


WRITERS = {
    "setitem",
    "delitem",
    "setattr",
    "iadd",
    "isub",
    "imul",
    "itruediv",
    "ifloordiv",
    "imod",
    "ipow",
    "iand",
    "ior",
    "ixor",
    "ilshift",
    "irshift",
    "imatmul",
    "embedding",
    "embedding_bag",
}


def has_hooks(module: torch.nn.Module) -> bool:
    return any(
        getattr(module, name)
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    )
