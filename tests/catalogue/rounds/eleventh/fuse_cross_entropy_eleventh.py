"""A wrong pass of the eleventh round."""

import torch.nn.functional as F

import fx

from ...rows import fault


def _pattern(dim):
    def pattern(scores, target):
        return F.nll_loss(F.log_softmax(scores, dim=dim), target)

    return pattern


def _replacement(scores, target):
    return F.cross_entropy(scores, target)


@fault(
    11,
    wrong="dim=-1 of the log-softmax is taken for the class dimension, which nll_loss and cross_entropy have at 1: with (N, C, L) scores they are two dimensions.",
)
def fuse_cross_entropy_eleventh(module: fx.GraphModule) -> fx.GraphModule:
    """Replace F.nll_loss(F.log_softmax(x, dim), y) by F.cross_entropy(x, y)."""
    for dim in (1, -1):
        fx.replace_pattern(module, _pattern(dim), _replacement)
    return module
