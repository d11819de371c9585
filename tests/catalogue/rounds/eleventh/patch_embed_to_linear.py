"""A wrong pass of the eleventh round."""

import operator

import torch.nn.functional as F
from torch import nn

import fx

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


def _plain(module, node, *classes):
    """The module that a node calls, if it is exactly one of these classes, without hooks."""
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    m = module.get_submodule(node.target)
    hooks = (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)
    return m if type(m) in classes and not any(hooks) else None


def _lower(module, crop):
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        conv = _plain(module, node, nn.Conv2d)
        if conv is None or conv.groups != 1 or conv.padding not in ((0, 0), "valid") or conv.dilation != (1, 1):
            continue
        height, width = conv.kernel_size
        if conv.stride != conv.kernel_size or (height, width) == (1, 1):
            continue
        x = node.args[0]
        with graph.inserting_before(node):
            if crop:
                for dim, size in ((-2, height), (-1, width)):
                    patches = graph.call_function(operator.floordiv, (graph.call_method("size", (x, dim)), size))
                    x = graph.call_method("narrow", (x, dim, 0, graph.call_function(operator.mul, (patches, size))))
            x = graph.call_method("unflatten", (x, -1, (-1, width)))
            x = graph.call_method("unflatten", (x, -3, (-1, height)))  # ..., C, rows, height, columns, width
            x = graph.call_method("movedim", (x, (-5, -3, -1), (-3, -2, -1)))  # ..., rows, columns, C, height, width
            x = graph.call_method("flatten", (x, -3))
            weight = graph.call_method("flatten", (graph.get_attr(f"{node.target}.weight"), 1))
            bias = None if conv.bias is None else graph.get_attr(f"{node.target}.bias")
            new = graph.call_function(F.linear, (x, weight, bias))
            new = graph.call_method("contiguous", (graph.call_method("movedim", (new, -1, -3)),))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    module.recompile()
    return module


@fault(
    11,
    wrong="A convolution drops rows and columns that do not fill a patch; the pass does not ask whether the size is a multiple of the patch, and cannot divide it.",
)
def patch_embed_to_linear(module: fx.GraphModule) -> fx.GraphModule:
    """Write a Conv2d whose stride is its kernel size as a reshape to patches and a linear layer."""
    return _lower(module, crop=False)
