"""A wrong pass of the eleventh round."""

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


def _zero_pad(module, node):
    """Return (x, rows, columns) if the node pads the image x by zeros, alike on opposite sides, else None."""
    if isinstance(node, fx.Node) and node.op == "call_function" and node.target is F.pad:
        arguments = {**dict(zip(("input", "pad", "mode", "value"), node.args)), **node.kwargs}
        x, pad, value = arguments["input"], arguments["pad"], arguments.get("value")
        if arguments.get("mode", "constant") != "constant" or not (
            value is None or type(value) in (int, float) and value == 0
        ):
            return None
    elif (m := _plain(module, node, nn.ZeroPad2d)) is not None:
        x, pad = node.args[0], m.padding
    else:
        return None
    if not isinstance(pad, (tuple, list)) or len(pad) != 4 or not all(type(p) is int and p >= 0 for p in pad):
        return None
    left, right, top, bottom = pad
    return (x, top, left) if left == right and top == bottom else None


def _fold(module, ask_mode):
    graph = module.graph
    for node in [] if _writes(module) else list(graph.nodes):
        conv = _plain(module, node, nn.Conv2d)
        zero_pad = _zero_pad(module, node.args[0]) if conv is not None else None
        if zero_pad is None or isinstance(conv.padding, str) or ask_mode and conv.padding_mode != "zeros":
            continue
        x, rows, columns = zero_pad
        padding = (conv.padding[0] + rows, conv.padding[1] + columns)
        with graph.inserting_before(node):
            weight = graph.get_attr(f"{node.target}.weight")
            bias = None if conv.bias is None else graph.get_attr(f"{node.target}.bias")
            new = graph.call_function(F.conv2d, (x, weight, bias, conv.stride, padding, conv.dilation, conv.groups))
        pad = node.args[0]
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        if not pad.users:
            graph.erase_node(pad)
    module.recompile()
    return module


@fault(
    11,
    wrong="The convolution's own padding_mode is not asked: with reflect, replicate or circular the padding of the convolution is not zeros, but the functional convolution that replaces it pads with zeros.",
)
def pad_into_conv(module: fx.GraphModule) -> fx.GraphModule:
    """Fold a symmetric zero padding before a Conv2d into the padding of the convolution. Same result, one copy less."""
    return _fold(module, ask_mode=False)
