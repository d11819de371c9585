"""A wrong pass of the twentyseventh round."""

from torch import nn

from ...rows import fault
from .shared import _hooked

ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.Hardtanh, nn.GELU, nn.Tanh, nn.Sigmoid, nn.Softplus)


def _sweep(gm, may_go):
    modules = dict(gm.named_modules())
    for node in reversed(list(gm.graph.nodes)):
        if node.op != "call_module" or node.users:
            continue
        layer = modules[node.target]
        if type(layer) in ACTIVATIONS and not _hooked(layer) and may_go(layer):
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(27, wrong="An activation with inplace=True has done its work on its input, also where its result is not read.")
def drop_unused_activations(gm):
    """Removes activation layers whose result nobody reads, as they are left over after other passes."""
    return _sweep(gm, lambda layer: True)
