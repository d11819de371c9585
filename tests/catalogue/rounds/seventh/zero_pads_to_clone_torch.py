"""A right pass of the seventh round."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ...rows import sound


def plain(layer, *kinds):
    """Return whether a layer is exactly of one of these classes and has no hooks."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(layer) in kinds and "forward" not in vars(layer) and not any(getattr(layer, name) for name in hooks)


LAYERS = (nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d)


def nothing(amounts):
    return isinstance(amounts, (tuple, list)) and len(amounts) > 0 and all(type(a) is int and a == 0 for a in amounts)


def padded(module, node):
    """Return the operand of a pad by zero amounts, or None."""
    if node.op == "call_module":
        layer = module.get_submodule(node.target)
        alone = len(node.args) == 1 and not node.kwargs
        return node.args[0] if alone and plain(layer, *LAYERS) and nothing(layer.padding) else None
    if node.op != "call_function" or node.target is not F.pad:
        return None
    bound = dict(zip(("input", "pad", "mode", "value"), node.args)) | dict(node.kwargs)
    return bound.get("input") if bound.get("mode", "constant") == "constant" and nothing(bound.get("pad")) else None


@sound(7)
def zero_pads_to_clone(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Write constant padding by zero amounts on all sides (left over from exporters) as a `clone`. The pad is not dropped: its result is a new tensor."""
    for node in list(module.graph.nodes):
        source = padded(module, node)
        if not isinstance(source, torch.fx.Node):
            continue
        with module.graph.inserting_before(node):
            copied = module.graph.call_function(torch.clone, (source,))
        node.replace_all_uses_with(copied)
        module.graph.erase_node(node)
    module.graph.lint()
    module.recompile()
    return module
