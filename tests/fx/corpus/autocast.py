"""Programs that choose the precision of a part of them."""

from __future__ import annotations

import torch
from torch import nn

from .programs import Layered, program, rows


@program(rows)
class AutocastOn(Layered):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layer(x)


@program(rows)
class AutocastDecorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(6) / 3)

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, x):
        return x @ self.weight


@program(rows)
class AutocastInPart(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.last = nn.Linear(6, 6)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.first(x)
        return self.last(x.float())


@program(rows)
class AutocastOffInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.last = nn.Linear(6, 6)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.first(x)
            with torch.autocast("cpu", enabled=False):
                x = self.last(x.float())
        return x


@program(rows)
class AutocastFlag(Layered):
    def __init__(self):
        super().__init__()
        self.mixed = True

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.mixed):
            y = self.layer(x)
        return y.float() + x


@program(rows)
def asks_whether_autocast(x):
    if torch.is_autocast_enabled("cpu"):
        return x.bfloat16()
    return x * 2


@program(rows)
def custom_forward_in_autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        attention = (x @ x.t()).softmax(-1)
        return attention @ x
