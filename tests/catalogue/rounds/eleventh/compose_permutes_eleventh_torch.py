"""A wrong pass of the eleventh round."""

import torch
import torch.fx

from ...rows import fault


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


def _permutation(node):
    """Return the operand of a permute and the permutation, with dimensions counted from the front, or None."""
    if not isinstance(node, torch.fx.Node) or node.kwargs:
        return None
    if (node.op, node.target) not in (("call_method", "permute"), ("call_function", torch.permute)):
        return None
    dims = node.args[1:]
    if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
        dims = dims[0]
    if not dims or not all(type(d) is int for d in dims):
        return None
    return node.args[0], [d % len(dims) for d in dims]


def _compose(module, right_order):
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        outer = _permutation(node)
        inner = _permutation(outer[0]) if outer else None
        if inner is None or len(inner[1]) != len(outer[1]):
            continue
        x, first, second = inner[0], inner[1], outer[1]
        dims = [first[d] for d in second] if right_order else [second[d] for d in first]
        before = node.args[0]
        if dims == sorted(dims):
            node.replace_all_uses_with(x)
            graph.erase_node(node)
        else:
            node.args, node.op, node.target = (x, dims), "call_function", torch.permute
        if not before.users:
            graph.erase_node(before)
    graph.lint()
    module.recompile()
    return module


@fault(
    11,
    wrong="The permutations are composed in the wrong order, which shows only where they do not commute; inverse pairs such as NCHW to NHWC and back do.",
)
def compose_permutes_eleventh(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replace x.permute(p).permute(q) by one permute, and by x where they cancel out."""
    return _compose(module, right_order=False)
