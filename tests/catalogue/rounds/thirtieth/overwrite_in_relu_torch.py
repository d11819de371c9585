"""A wrong pass of the thirtieth round."""

import copy

import torch
import torch.fx
import torch.nn as nn

from ...rows import fault
from .shared import _plain

PRODUCERS = (nn.Conv2d, nn.Linear, nn.BatchNorm2d)


def _safe(call, layers):
    """The input of this call is the result of a layer that does not keep it, and is for this call alone."""
    if len(call.args) != 1 or call.kwargs:
        return False
    source = call.args[0]
    if source.op != "call_module" or len(source.users) != 1:
        return False
    return any(_plain(layers[source.target], kind) for kind in PRODUCERS)


def _overwrite(gm, all_sites):
    layers = dict(gm.named_modules(remove_duplicate=False))
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or not _plain(layers[node.target], nn.ReLU) or layers[node.target].inplace:
            continue
        if any(other.op == "call_module" and node.target.startswith(f"{other.target}.") for other in gm.graph.nodes):
            continue  # another call runs the layer inside
        sites = [other for other in gm.graph.nodes if other.op == "call_module" and other.target == node.target]
        if all(_safe(site, layers) for site in (sites if all_sites else [node])):
            relu = copy.copy(layers[node.target])
            relu.inplace = True
            gm.set_submodule(node.target, relu)
            layers[node.target] = relu
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="One nn.ReLU called at several places becomes an in-place one because of one of them: at another place "
    "its input is still needed (a residual), and is overwritten. Shows in programs that share their "
    "activation module.",
)
def overwrite_in_relu(gm: torch.fx.GraphModule):
    """Let a ReLU write over the result of the layer in front of it, which saves a buffer."""
    return _overwrite(gm, False)
