"""A right pass of the twelfth round."""

import torch

import fx

from ...rows import sound

FUNCTIONS = (torch.relu, torch.abs, torch.floor, torch.ceil, torch.trunc, torch.sign)


@sound(12)
def drop_repeated_idempotents(module: fx.GraphModule) -> fx.GraphModule:
    """Apply a ReLU, an absolute value or a rounding once where it is applied to its own result."""
    for function in FUNCTIONS:
        while fx.replace_pattern(module, lambda x: function(function(x)), lambda x: function(x)):
            pass
    return module
