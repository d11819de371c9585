"""A right pass of the twentyfifth round."""

import torch
import torch.fx

from ...rows import sound
from .shared import writes


def single(value):
    return value == 1 if isinstance(value, int) else set(value) == {1}


@sound(25)
def pool_before_relu_twentyfifth(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Move ReLU behind the max pooling that reads it: less to compute."""
    if writes(gm):
        return gm
    for pool in list(gm.graph.nodes):
        module = gm.get_submodule(pool.target) if pool.op == "call_module" else None
        # dilation could let a window see padding alone, whose -inf only one of the orders would let through
        if type(module) is not torch.nn.MaxPool2d or module.return_indices or not single(module.dilation):
            continue
        if len(pool.args) != 1 or pool.kwargs:
            continue
        relu = pool.args[0]
        if relu.op != "call_module" or type(gm.get_submodule(relu.target)) is not torch.nn.ReLU:
            continue
        if len(relu.args) != 1 or relu.kwargs or len(relu.users) != 1:
            continue
        pool.replace_all_uses_with(relu)
        pool.args, relu.args = relu.args, (pool,)
        pool.append(relu)
    gm.recompile()
    return gm
