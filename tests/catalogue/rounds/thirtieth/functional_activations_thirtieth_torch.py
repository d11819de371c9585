"""A wrong pass of the thirtieth round."""

import torch
import torch.fx
import torch.nn as nn
import torch.nn.functional as F

from ...rows import fault

SPELLINGS = {
    nn.GELU: (F.gelu, ("approximate",)),
    nn.LeakyReLU: (F.leaky_relu, ("negative_slope",)),
    nn.ELU: (F.elu, ("alpha",)),
    nn.SiLU: (F.silu, ()),
    nn.ReLU: (F.relu, ()),
    nn.Softplus: (F.softplus, ("beta", "threshold")),
}


def _open(gm, accepts):
    layers = dict(gm.named_modules(remove_duplicate=False))
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or type(layers[node.target]) not in SPELLINGS:
            continue
        layer = layers[node.target]
        if len(node.args) != 1 or node.kwargs or "forward" in vars(layer) or not accepts(layer):
            continue
        function, names = SPELLINGS[type(layer)]
        options = {name: getattr(layer, name) for name in names}
        if getattr(layer, "inplace", False):
            options["inplace"] = True
        with gm.graph.inserting_before(node):
            call = gm.graph.call_function(function, node.args, options)
        node.replace_all_uses_with(call)
        gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="Forward hooks of the activation modules are lost with the module call: wrong for models with a hook that "
    "changes the result, or writes a statistic, on an activation (calibration, activation clipping, "
    "steering).",
)
def functional_activations_thirtieth(gm: torch.fx.GraphModule):
    """Call activation functions instead of activation modules, so that later patterns have one spelling to match."""
    return _open(gm, lambda layer: True)
