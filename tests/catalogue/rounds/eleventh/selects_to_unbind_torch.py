"""A right pass of the eleventh round."""

import operator

import torch
import torch.fx

from ...rows import sound

TENSORS = {"permute", "transpose", "reshape", "view", "movedim", "contiguous"}


def _writes(module):
    """Return whether anything in the program may write in place; then the pass leaves it alone."""
    for n in module.graph.nodes:
        name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
        home = getattr(n.target, "__module__", None) or ""
        inner = module.get_submodule(n.target).modules() if n.op == "call_module" else ()
        if any(
            getattr(m, "inplace", False) or getattr(m, "max_norm", None) or m._forward_hooks or m._forward_pre_hooks
            for m in inner
        ):
            return True
        if n.op == "call_function" and home.split(".")[0] not in ("", "torch", "_operator", "builtins", "math"):
            return True  # somebody's own function may do anything
        if n.op in ("call_function", "call_method") and (
            name.endswith("_")
            or "_." in name
            or n.kwargs.get("inplace")
            or "out" in n.kwargs
            or name in ("setitem", "setattr")
            or home == "_operator"
            and name[0] == "i"
            and name not in ("inv", "invert", "index")
            or home.endswith("functional")
            and any(a is True for a in n.args)
        ):
            return True
    return False


@sound(11)
def selects_to_unbind(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replace the selections x[0], x[1], ... of a projected and permuted tensor by the results of one x.unbind(0)."""
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        if node.op != "call_method" or node.target not in TENSORS:
            continue
        picks = [
            user
            for user in node.users
            if user.op == "call_function"
            and user.target is operator.getitem
            and len(user.args) == 2
            and user.args[0] is node
            and type(user.args[1]) is int
            and user.args[1] >= 0
        ]
        indices = sorted({pick.args[1] for pick in picks})
        if len(indices) < 2 or indices != list(range(len(indices))):
            continue
        with graph.inserting_after(node):
            parts = graph.call_method("unbind", (node, 0))
        for pick in picks:
            pick.replace_input_with(node, parts)
    graph.lint()
    module.recompile()
    return module
