"""A wrong pass of the twentyfourth round."""

import torch.fx
from torch import nn
from torch.utils.checkpoint import checkpoint

from ...rows import fault

CHEAP = (nn.GELU, nn.SiLU, nn.Softmax, nn.Tanh, nn.Dropout)


class Recomputed(nn.Module):
    """A layer without parameters whose intermediate values are not kept."""

    def __init__(self, layer, preserve_rng_state):
        super().__init__()
        self.layer = layer
        self.preserve_rng_state = preserve_rng_state

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=False, preserve_rng_state=self.preserve_rng_state)


def _wrap(gm, preserve_rng_state):
    for target in {n.target for n in gm.graph.nodes if n.op == "call_module"}:
        calls = [n for n in gm.graph.nodes if n.op == "call_module" and n.target == target]
        layer = gm.get_submodule(target)
        if type(layer) in CHEAP and not getattr(layer, "inplace", False):
            if all(len(n.args) == 1 and not n.kwargs for n in calls):
                wrapped = Recomputed(layer, preserve_rng_state)
                wrapped.training = layer.training
                gm.set_submodule(target, wrapped)
    gm.recompile()
    return gm


@fault(
    24,
    wrong="The random state is not restored for the recomputation, so Dropout drops other elements in backward than in forward.",
)
def recompute_activations(gm: torch.fx.GraphModule):
    """Checkpoint activations; saving and restoring the state of the generator costs more than they do."""
    return _wrap(gm, preserve_rng_state=False)
