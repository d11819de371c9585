"""`replace_pattern` moves a read across a write.

software: torch.fx
kind: wrong values
known: not found
"""

import torch


def program(x):
    y = torch.sin(x)
    x.add_(1)
    return torch.cos(y)


traced = torch.fx.symbolic_trace(program)
torch.fx.replace_pattern(traced, lambda x: torch.cos(torch.sin(x)), lambda x: torch.cos(x.sin()))
expected, actual = program(torch.zeros(1)), traced(torch.zeros(1))
assert torch.equal(expected, actual), f"{actual} instead of {expected}"
