"""A wrong pass of the thirtyfirst round."""

import torch
import torch.fx
import torch.nn as nn

from ...rows import fault

RANDOM = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
    nn.RNNBase,
)


def _removable(layer, stateless):
    if not type(layer).__module__.startswith("torch.nn.modules.") or isinstance(layer, RANDOM):
        return False
    if getattr(layer, "inplace", False) or "Fractional" in type(layer).__name__ or list(layer.children()):
        return False
    if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
        return False
    return not stateless or not (layer._parameters or layer._buffers)


def _remove(gm, stateless):
    for node in reversed(list(gm.graph.nodes)):
        if node.op == "call_module" and not node.users:
            if _removable(gm.get_submodule(node.target), stateless):
                gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    31,
    wrong="A layer whose result is not read is removed even if it has buffers that a call updates: batch norm in "
    "train mode does not update its running statistics any more (MODE train).",
)
def remove_unread_layers(gm: torch.fx.GraphModule):
    """Remove calls of torch.nn layers whose results nobody reads."""
    return _remove(gm, stateless=False)
