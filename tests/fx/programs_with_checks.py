"""Programs whose ``assert`` statements must reach the byte code as written, which pytest changes in test files."""

from __future__ import annotations

import torch


class Compound(torch.nn.Module):
    strict = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 2 and x.dim() != 3:
            raise ValueError("two or three dimensions")
        assert x.dtype == torch.float32 or x.ndim == 3, "wide only in 3-D"
        if x.dim() == 3 and self.strict:
            raise ValueError("strict")
        if x.dim() == 2 and not self.strict:
            raise ValueError("lax")
        return x
