"""A wrong pass of the twentysixth round."""

import copy

import fx

from ...rows import fault
from .shared import _hooked


def _unshare(gm, accepted):
    last_number = {}
    for node in gm.graph.nodes:
        if node.op != "call_module":
            continue
        module = gm.get_submodule(node.target)
        if any(_hooked(m) for m in module.modules()) or not type(module).__module__.startswith("torch.nn.modules."):
            continue
        number = last_number[module] = last_number.get(module, -1) + 1
        if number == 0 or not accepted(module):
            continue
        name = f"{node.target.replace('.', '_')}_{number}"
        while hasattr(gm, name):
            name += "_"
        gm.add_submodule(name, copy.deepcopy(module))
        node.target = name
    gm.recompile()
    return gm


@fault(
    26,
    wrong="Copies modules with parameters too, so the calls no longer share them and each gets its part of the gradient.",
)
def unshare_modules(gm: fx.GraphModule):
    """Give each call of a reused module its own copy, as calibration wants one observer for each call."""
    return _unshare(gm, lambda module: True)
