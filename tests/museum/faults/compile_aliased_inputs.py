"""`torch.compile` uses a program compiled for separate inputs where they share memory and one is written to.

software: torch.compile
kind: wrong values
known: https://github.com/pytorch/pytorch/issues/139789
"""

import torch


def function(x, y):
    x.mul_(2)
    return x + y


compiled = torch.compile(function, backend="aot_eager")
compiled(torch.ones(4), torch.ones(4))
memory, other = torch.ones(8), torch.ones(8)
actual, expected = compiled(memory[:4], memory[2:6]), function(other[:4], other[2:6])
assert torch.equal(actual, expected), f"{actual} instead of {expected}"
