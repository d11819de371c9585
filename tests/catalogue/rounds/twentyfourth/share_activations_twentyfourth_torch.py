"""A wrong pass of the twentyfourth round."""

import torch.fx
from torch import nn

from ...rows import fault

KINDS = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU)


def _share(gm, refuse):
    first = {}
    for node in gm.graph.nodes:
        if node.op != "call_module":
            continue
        module = gm.get_submodule(node.target)
        if type(module) not in KINDS or "forward" in vars(module) or refuse(module):
            continue
        key = type(module), module.extra_repr(), module.training
        node.target = first.setdefault(key, node.target)
    gm.delete_all_unused_submodules()
    gm.recompile()
    return gm


@fault(
    24,
    wrong="Forward hooks are no part of the configuration that is compared; calls move to or from a module with a hook.",
)
def share_activations_twentyfourth(gm: torch.fx.GraphModule):
    """Call one module for all activations of the same class, options and mode."""
    return _share(gm, lambda module: False)
