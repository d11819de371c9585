"""A wrong pass of the twentythird round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault


def _function(module):
    """Return the function that a module calls, and its further arguments, or None."""
    kind = type(module)
    if kind is torch.nn.ReLU and not module.inplace:
        return torch.relu, ()
    if kind in (torch.nn.Sigmoid, torch.nn.Tanh):
        return (torch.sigmoid if kind is torch.nn.Sigmoid else torch.tanh), ()
    if kind is torch.nn.Flatten:
        return torch.flatten, (module.start_dim, module.end_dim)
    if kind is torch.nn.AvgPool2d:
        sizes = (module.kernel_size, module.stride, module.padding)
        return F.avg_pool2d, (*sizes, module.ceil_mode, module.count_include_pad, module.divisor_override)
    return None


def _rewrite(gm, refuses):
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        module = gm.get_submodule(node.target)
        function = _function(module)
        if function is None or refuses(module):
            continue
        with gm.graph.inserting_before(node):
            inlined = gm.graph.call_function(function[0], (node.args[0], *function[1]))
        node.replace_all_uses_with(inlined)
        gm.graph.erase_node(node)
    gm.delete_all_unused_submodules()
    gm.recompile()
    return gm


@fault(23, wrong="A module with forward hooks is inlined as well, and its hooks no longer run.")
def inline_simple_modules(gm: torch.fx.GraphModule):
    """Turn modules without parameters into functions, so that later pattern passes need to know one spelling only."""
    return _rewrite(gm, lambda module: False)
