"""A wrong pass of the ninth round."""

import copy
import operator

import torch.nn.functional as F
from torch import nn

import fx

from ...rows import fault

_WRITES = {operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow}


def _writes(module):
    for node in module.graph.nodes:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
        if node.op in ("call_method", "call_function") and (
            node.target in _WRITES
            or name.endswith("_")
            or "out" in node.kwargs
            or node.kwargs.get("inplace")
            or any(arg is True for arg in node.args)
        ):
            return True
        if node.op == "call_module" and any(
            getattr(m, "inplace", False) for m in module.get_submodule(node.target).modules()
        ):
            return True
    return False


def _run(module, right):
    graph = module.graph
    if _writes(module):
        return module
    for node in list(graph.nodes):
        pad = node.args[0] if node.op == "call_module" and len(node.args) == 1 and not node.kwargs else None
        if not isinstance(pad, fx.Node) or pad.target is not F.pad or list(pad.users) != [node]:
            continue
        conv = module.get_submodule(node.target)
        hooks = (conv._forward_hooks, conv._forward_pre_hooks, conv._backward_hooks, conv._backward_pre_hooks)
        if type(conv) is not nn.Conv2d or any(hooks) or "forward" in conv.__dict__:
            continue
        if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
            continue
        bound = {
            "mode": "constant",
            "value": None,
            **dict(zip(("input", "pad", "mode", "value"), pad.args)),
            **pad.kwargs,
        }
        sizes = bound["pad"]
        if bound["mode"] != "constant" or type(bound["value"]) not in (type(None), int, float) or bound["value"]:
            continue
        if not isinstance(sizes, (list, tuple)) or len(sizes) != 4 or not all(type(n) is int and n >= 0 for n in sizes):
            continue
        if sizes[0] != sizes[1] or sizes[2] != sizes[3]:
            continue  # a convolution pads both sides alike
        more = (sizes[2], sizes[0]) if right else (sizes[0], sizes[2])
        new = copy.deepcopy(conv)
        new.weight, new.bias = conv.weight, conv.bias
        new.padding = tuple(a + b for a, b in zip(conv.padding, more))
        name = f"{node.name}_padded"
        module.add_module(name, new)
        node.target, node.args = name, (bound["input"],)
        graph.erase_node(pad)
    graph.lint()
    module.recompile()
    return module


@fault(9, wrong="Takes the numbers of F.pad as height first, but they begin with the last dimension.")
def fold_pad_into_conv_ninth(module: fx.GraphModule) -> fx.GraphModule:
    """Let the convolution pad with zeros what is padded with zeros before it."""
    return _run(module, False)
