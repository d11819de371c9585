"""A right pass of the eleventh round."""

import torch
import torch.fx

from ...rows import sound


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


def _dim(node, name, function):
    """Return the operand of a squeeze or unsqueeze and the one dimension it names, or None."""
    if not isinstance(node, torch.fx.Node) or (node.op, node.target) not in (
        ("call_method", name),
        ("call_function", function),
    ):
        return None
    arguments = {**dict(zip(("input", "dim"), node.args)), **node.kwargs}
    x, dim = arguments.get("input"), arguments.get("dim")
    if len(node.args) + len(node.kwargs) != 2 or not isinstance(x, torch.fx.Node) or type(dim) is not int:
        return None
    return x, dim


@sound(11)
def cancel_unsqueeze_squeeze(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replace x.unsqueeze(d).squeeze(d) by x."""
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        outer = _dim(node, "squeeze", torch.squeeze)
        inner = _dim(outer[0], "unsqueeze", torch.unsqueeze) if outer else None
        if inner is None or inner[1] != outer[1]:
            continue
        node.replace_all_uses_with(inner[0])
        graph.erase_node(node)
        if not outer[0].users:
            graph.erase_node(outer[0])
    graph.lint()
    module.recompile()
    return module
