"""A right pass of the twentythird round."""

import torch
import torch.fx
import torch.nn.modules.module as base

from ...rows import sound

_FUNCTIONS = {torch.nn.ReLU: torch.relu, torch.nn.Sigmoid: torch.sigmoid, torch.nn.Tanh: torch.tanh}


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _plain(module):
    if type(module) not in _FUNCTIONS or "forward" in vars(module) or getattr(module, "inplace", False):
        return False
    return not any(getattr(module, name) or base.__dict__[f"_global{name}"] for name in _HOOKS)


@sound(23)
def inline_activations_twentythird(gm: torch.fx.GraphModule):
    """Call ReLU, sigmoid and tanh as functions instead of as modules."""
    for node in list(gm.graph.nodes):
        if (
            node.op != "call_module"
            or len(node.args) != 1
            or node.kwargs
            or not isinstance(node.args[0], torch.fx.Node)
        ):
            continue
        module = gm.get_submodule(node.target)
        if not _plain(module):
            continue
        with gm.graph.inserting_before(node):
            called = gm.graph.call_function(_FUNCTIONS[type(module)], (node.args[0],))
        node.replace_all_uses_with(called)
        gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm
