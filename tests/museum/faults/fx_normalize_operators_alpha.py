"""`NormalizeOperators` drops keyword arguments, such as `alpha=` and `rounding_mode=`.

software: torch.fx
kind: wrong values
known: not found
"""

import torch
from torch.fx.experimental.normalize import NormalizeOperators

traced = torch.fx.symbolic_trace(lambda x: torch.add(x, x, alpha=3))
actual = NormalizeOperators(traced).transform()(torch.ones(1))
assert actual == 4, f"{actual} instead of 4"
