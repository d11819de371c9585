"""A wrong pass of the twentysixth round."""

import torch
import torch.fx
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from ...rows import fault
from .shared import _plain


def checkpointed_gelu(*args, **kwargs):
    return checkpoint(F.gelu, *args, use_reentrant=False, **kwargs)


def checkpointed_softplus(*args, **kwargs):
    return checkpoint(F.softplus, *args, use_reentrant=False, **kwargs)


def checkpointed_batch_norm(*args, **kwargs):
    return checkpoint(F.batch_norm, *args, use_reentrant=False, **kwargs)


PURE = {F.gelu: checkpointed_gelu, F.softplus: checkpointed_softplus}


def _checkpoint(gm, table):
    if not _plain(gm):
        return gm  # the recomputation would read what was written since
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in table:
            node.target = table[node.target]
    gm.recompile()
    return gm


@fault(26, wrong="A batch norm in training brings its running statistics up to date once more when it is recomputed.")
def checkpoint_functions(gm: torch.fx.GraphModule):
    """Recompute cheap functions in the backward pass instead of keeping what they save."""
    return _checkpoint(gm, {**PURE, F.batch_norm: checkpointed_batch_norm})
