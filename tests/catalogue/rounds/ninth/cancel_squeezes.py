"""A wrong pass of the ninth round."""

import torch

import fx

from ...rows import fault


def _same(x):
    return x.view_as(x)


def _patterns(dim):
    def there_and_back(x):
        return torch.squeeze(torch.unsqueeze(x, dim), dim)

    def back_and_there(x):
        return torch.unsqueeze(torch.squeeze(x, dim), dim)

    return there_and_back, back_and_there


def _run(module, right):
    for dim in range(-4, 4):
        there_and_back, back_and_there = _patterns(dim)
        for pattern in (there_and_back,) if right else (there_and_back, back_and_there):
            fx.replace_pattern(module, pattern, _same)
    return module


@fault(9, wrong="Cancels squeeze(d) followed by unsqueeze(d) too, which adds a dimension where the size at d is not 1.")
def cancel_squeezes(module: fx.GraphModule) -> fx.GraphModule:
    """Drop squeeze and unsqueeze of the same dimension where they follow each other."""
    return _run(module, False)
