"""A wrong pass of the twentyeighth round."""

import copy

import torch
from torch.utils.checkpoint import checkpoint

from ...rows import fault
from .shared import plain, writes


class Recompute:
    def forward(self, x):
        if not isinstance(x, torch.Tensor):  # it is being traced
            return super().forward(x)
        return checkpoint(super().forward, x, use_reentrant=False)


class RecomputedLayerNorm(Recompute, torch.nn.LayerNorm):
    pass


class RecomputedGroupNorm(Recompute, torch.nn.GroupNorm):
    pass


class RecomputedBatchNorm2d(Recompute, torch.nn.BatchNorm2d):
    pass


def recompute(gm, kinds):
    if writes(gm):
        return gm
    norm_and_copy = {}
    for node in gm.graph.nodes:
        if not plain(gm, node, *kinds):
            continue
        norm = gm.get_submodule(node.target)
        if id(norm) not in norm_and_copy:
            # The same parameters under the same names: a checkpoint still loads.
            kind = kinds[type(norm)]
            new = kind.__new__(kind)
            new.__dict__.update({k: copy.copy(v) if isinstance(v, dict) else v for k, v in vars(norm).items()})
            norm_and_copy[id(norm)] = norm, new
        gm.set_submodule(node.target, norm_and_copy[id(norm)][1])
    gm.recompile()
    return gm


STATELESS = {torch.nn.LayerNorm: RecomputedLayerNorm, torch.nn.GroupNorm: RecomputedGroupNorm}


@fault(
    28,
    wrong="Recomputes batch norms as well, whose second forward, in the backward pass, updates the running statistics again.",
)
def recompute_norms(gm):
    """Recomputes the norms in the backward pass instead of keeping what they save: they are cheap and save much."""
    return recompute(gm, {**STATELESS, torch.nn.BatchNorm2d: RecomputedBatchNorm2d})
