"""A wrong pass of the twentysixth round."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ...rows import fault
from .shared import _hooked


class _Lower(torch.fx.Transformer):
    def __init__(self, gm, drop_hooks):
        super().__init__(gm)
        self.drop_hooks = drop_hooks

    def call_module(self, target, args, kwargs):
        layer = self.fetch_attr(target)
        if type(layer) is not nn.Linear or len(args) != 1 or kwargs or (_hooked(layer) and not self.drop_hooks):
            return super().call_module(target, args, kwargs)
        weight = self.get_attr(f"{target}.weight", (), {})
        bias = None if layer.bias is None else self.get_attr(f"{target}.bias", (), {})
        return self.call_function(F.linear, (args[0], weight, bias), {})


@fault(26, wrong="Forward hooks of the layer, such as an adapter that adds to its result, are no longer run.")
def lower_linear(gm: torch.fx.GraphModule):
    """Lower nn.Linear to F.linear on its parameters, so that a backend sees the weights."""
    return _Lower(gm, True).transform()
