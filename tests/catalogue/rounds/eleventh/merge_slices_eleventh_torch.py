"""A right pass of the eleventh round."""

import operator

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


def _bounds(part):
    """Start and end of a slice, the end None if open, if both are known and counted from the front."""
    if not isinstance(part, slice) or part.step is not None and (type(part.step) is not int or part.step != 1):
        return None
    start = 0 if part.start is None else part.start
    if type(start) is not int or start < 0:
        return None
    if part.stop is not None and (type(part.stop) is not int or part.stop < 0):
        return None
    return start, part.stop


def _slices(node):
    """Return the sliced value and the bounds for each leading dimension, or None."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_function" or node.target is not operator.getitem:
        return None
    x, index = node.args
    if not isinstance(x, torch.fx.Node) or not isinstance(index, tuple) or not index:
        return None
    bounds = [_bounds(part) for part in index]
    return None if None in bounds else (x, bounds)


def _compose(inner, outer):
    start = inner[0] + outer[0]
    ends = ([] if inner[1] is None else [inner[1]]) + ([] if outer[1] is None else [inner[0] + outer[1]])
    return slice(start, min(ends) if ends else None)


@sound(11)
def merge_slices_eleventh(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replace x[:, a:b][:, c:d] by one slice of x."""
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        outer = _slices(node)
        inner = _slices(outer[0]) if outer else None
        if inner is None:
            continue
        before, (x, first), second = outer[0], inner, outer[1]
        rank = max(len(first), len(second))
        first, second = (bounds + [(0, None)] * (rank - len(bounds)) for bounds in (first, second))
        node.args = (x, tuple(_compose(i, o) for i, o in zip(first, second)))
        if not before.users:
            graph.erase_node(before)
    graph.lint()
    module.recompile()
    return module
