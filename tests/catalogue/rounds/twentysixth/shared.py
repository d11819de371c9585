"""Helpers shared by the passes of the twentysixth round share."""


def _hooked(m):
    return any((m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks))


WRITERS = set(
    "setitem delitem iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift irshift batch_norm instance_norm".split()
)


def _plain(gm):
    """Return whether no call of the program writes to an existing tensor, as far as is known."""
    for node in gm.graph.nodes:
        if node.op == "call_module":
            for m in gm.get_submodule(node.target).modules():
                hooks = (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)
                if any(hooks) or getattr(m, "inplace", False) or getattr(m, "max_norm", None) is not None:
                    return False
        elif node.op in ("call_function", "call_method"):
            name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "_")
            home = getattr(node.target, "__module__", None) or "torch"
            if name.split(".")[0].endswith("_") or name in WRITERS:
                return False
            if node.op == "call_function" and home.split(".")[0] not in ("torch", "_operator", "builtins", "math"):
                return False
            if node.kwargs.get("inplace") or any(node.kwargs.get(k) is not None for k in ("out", "max_norm")):
                return False
    return True
