"""A wrong pass of the twentyninth round."""

import torch.nn.functional as F

import fx

from ...rows import fault


class _Decompose(fx.Transformer):
    keeps_eps = False

    def call_function(self, target, args, kwargs):
        if target is not F.normalize or len(args) != 1 or kwargs.get("out") is not None:
            return super().call_function(target, args, kwargs)
        source = args[0]
        norm = source.norm(kwargs.get("p", 2.0), kwargs.get("dim", 1), keepdim=True)
        if self.keeps_eps:
            norm = norm.clamp_min(kwargs.get("eps", 1e-12)).expand_as(source)
        return source / norm


@fault(29, wrong="Leaves eps out, which makes a row of zeros 0 instead of 0 / 0.")
def decompose_normalize_twentyninth(gm):
    """Write F.normalize as a norm and a division, for an exporter that does not know it."""
    return _Decompose(gm).transform()
