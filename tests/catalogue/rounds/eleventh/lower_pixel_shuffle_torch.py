"""A right pass of the eleventh round."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

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


def _plain(module, node, *classes):
    """The module that a node calls, if it is exactly one of these classes, without hooks."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    m = module.get_submodule(node.target)
    hooks = (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)
    return m if type(m) in classes and not any(hooks) else None


def _shuffled(module, node):
    """Return the operand of a pixel shuffle and its factor, or None."""
    if node.op == "call_function" and node.target in (F.pixel_shuffle, torch.pixel_shuffle):
        arguments = {**dict(zip(("input", "upscale_factor"), node.args)), **node.kwargs}
        x, factor = arguments.get("input"), arguments.get("upscale_factor")
    else:
        m = _plain(module, node, nn.PixelShuffle)
        x, factor = (None, None) if m is None else (node.args[0], m.upscale_factor)
    return (x, factor) if isinstance(x, torch.fx.Node) and type(factor) is int and factor > 1 else None


@sound(11)
def lower_pixel_shuffle(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Write nn.PixelShuffle and F.pixel_shuffle by unflatten, movedim and flatten."""
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        shuffle = _shuffled(module, node)
        if shuffle is None:
            continue
        x, factor = shuffle
        with graph.inserting_before(node):
            x = graph.call_method("unflatten", (x, -3, (-1, factor, factor)))  # ..., C, r, r, H, W
            x = graph.call_method("movedim", (x, (-4, -3), (-3, -1)))  # ..., C, H, r, W, r
            x = graph.call_method("clone", (x,), {"memory_format": torch.contiguous_format})
            new = graph.call_method("flatten", (graph.call_method("flatten", (x, -2, -1)), -3, -2))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module
