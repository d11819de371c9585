"""A right pass of the eleventh round."""

import operator

import torch

import fx

from ...rows import sound

ORDERS = {((0, 0), (1, 0), (0, 1), (1, 1)): (4, 2), ((0, 0), (0, 1), (1, 0), (1, 1)): (2, 4)}


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


def _start(part):
    """Return the start of a slice with a step of two, or None."""
    if not isinstance(part, slice) or part.stop is not None or type(part.step) is not int or part.step != 2:
        return None
    return {None: 0, 0: 0, 1: 1}.get(part.start) if part.start is None or type(part.start) is int else None


def _slice(node):
    """Return x and (i, j) if the node is x[:, i::2, j::2, :], else None."""
    if not isinstance(node, fx.Node) or node.op != "call_function" or node.target is not operator.getitem:
        return None
    x, index = node.args
    if not isinstance(x, fx.Node) or not isinstance(index, tuple) or len(index) != 4:
        return None
    if not all(isinstance(part, slice) for part in index) or index[0] != slice(None) or index[3] != slice(None):
        return None
    starts = (_start(index[1]), _start(index[2]))
    return None if None in starts else (x, starts)


@sound(11)
def patch_merging(module: fx.GraphModule) -> fx.GraphModule:
    """Write cat([x[:, i::2, j::2, :] ...], -1) as one reordering of dimensions."""
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.cat:
            continue
        arguments = {**dict(zip(("tensors", "dim"), node.args)), **node.kwargs}
        parts = arguments.get("tensors")
        if arguments.get("dim") != -1 or not isinstance(parts, (tuple, list)) or len(parts) != 4 or len(arguments) != 2:
            continue
        slices = [_slice(part) for part in parts]
        if None in slices or any(x is not slices[0][0] for x, _ in slices):
            continue
        moved = ORDERS.get(tuple(starts for _, starts in slices))
        if moved is None:
            continue
        with graph.inserting_before(node):
            x = graph.call_method("unflatten", (slices[0][0], 1, (-1, 2)))
            x = graph.call_method("unflatten", (x, 3, (-1, 2)))
            x = graph.call_method("movedim", (x, moved, (-3, -2)))
            x = graph.call_method("clone", (x,), {"memory_format": torch.contiguous_format})
            new = graph.call_method("flatten", (x, -3))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    module.recompile()
    return module
