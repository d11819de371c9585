"""Generated code computes `-(2 ** x)` for `(-2) ** x`.

software: torch.fx
kind: wrong values
known: https://github.com/pytorch/pytorch/issues/197894
"""

import torch

traced = torch.fx.symbolic_trace(lambda x: (-2.0) ** x)
actual = traced(torch.tensor(2.0))
assert actual == 4, f"{actual} instead of 4"
