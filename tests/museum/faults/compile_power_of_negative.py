"""`torch.compile` with the backend `eager` computes `-(2 ** x)` for `(-2) ** x`.

software: torch.compile
kind: wrong values
known: https://github.com/pytorch/pytorch/issues/197894
"""

import torch

program = torch.compile(lambda x: (-2.0) ** x, backend="eager")
actual = program(torch.tensor(2.0))
assert actual == 4, f"{actual} instead of 4"
