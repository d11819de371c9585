"""`torch.compile` gives a tensor with gaps other strides when the program writes to it.

software: torch.compile
kind: wrong values
known: https://github.com/pytorch/pytorch/issues/133512
"""

import torch


def function(x):
    x.add_(1)
    return torch.as_strided_copy(x, (3,), (2,))


actual = torch.compile(function, backend="aot_eager")(torch.arange(10)[::2])
expected = function(torch.arange(10)[::2])
assert torch.equal(actual, expected), f"{actual} instead of {expected}"
