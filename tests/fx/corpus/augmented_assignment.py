"""Augmented assignments, where it shows that they are in place and where it does not."""

from __future__ import annotations

import torch
from torch import nn

from .programs import Layered, longer, other_rows, program, rows


@program(rows)
def on_fresh(x):
    y = x * 2
    y += 1
    return y


@program(rows)
def on_input(x):
    x += 1
    return x * 2


@program(rows, other_rows)
def on_second_input(x, y):
    y *= x
    return x + 1


@program(rows)
def on_view(x):
    y = x.clone()
    v = y[1:]
    v *= 2
    return y


@program(rows)
def on_column(x):
    y = x * 1
    c = y[:, 0]
    c -= 5
    return y, c


@program(rows)
def on_slice(x):
    y = x * 1
    y[:, 2:4] *= 0
    return y


@program(rows)
def held_in_list(x):
    h = x.sin()
    kept = [h]
    h += 1
    kept.append(h)
    return kept


@program(rows)
def held_by_another_name(x):
    a = x.cos()
    b = a
    a -= 1
    return a * b


@program(rows)
def used_before(x):
    a = x * 2
    b = a.sum()
    a += 1
    return a + b


@program(rows)
def used_before_and_after(x):
    a = x + 0
    b = a.view(-1)
    a /= 2
    return a.sum() + b


@program(longer)
def on_chunk(x):
    y = x.clone()
    first, second = y.chunk(2)
    first += second
    return y


@program(rows)
def on_size(x):
    n = x.shape[0]
    n += 1
    return x * n


@program(rows)
def on_number(x):
    total = 0
    for column in range(3):
        total += x[:, column]
    return total


@program(rows)
def accumulated_from_zeros(x):
    total = torch.zeros(6)
    for factor in (1, 2, 3):
        total += (x * factor).sum(0)
    return total


@program(rows)
def powers(x):
    y = x.abs() + 1
    z = y
    y **= 2
    return y + z


@program(rows)
def bitwise(x):
    mask = x > 0
    kept = mask
    mask &= x < 1
    return mask, kept


@program(rows)
def matmul_assigned(x):
    y = x
    y @= x.t()
    return y, x


@program(rows)
class OnParameterCopy(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.ones(6))

    def forward(self, x):
        bias = self.bias * 1
        other = bias
        bias += 1
        return x + bias + other


@program(rows)
class OnBufferWithInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(6))

    def forward(self, x):
        self.total += x.sum(0).detach()
        return x + self.total


@program(rows)
class Residual(Layered):
    def forward(self, x):
        out = self.layer(x)
        out += x
        return out.relu()


@program(rows)
class ResidualThroughIdentity(nn.Module):
    def __init__(self):
        super().__init__()
        self.skip = nn.Identity()

    def forward(self, x):
        x = x * 1
        y = self.skip(x)
        y += 1
        return x * y


@program(rows)
class ResidualThroughDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        x = x * 1
        y = self.drop(x)
        y *= 2
        return x + y


@program(rows)
def mask_assigned(x):
    y = x.clone()
    y[y < 0] = 0
    return y


@program(rows)
def into_view_of_zeros(x):
    out = torch.zeros(3, 6)
    row = out[2]
    row.copy_(x[0])
    row += 1
    return out


@program(rows)
def into_zeros_first_real(x):
    out = torch.zeros(3, 6)
    out[0] = 7
    before = x[0] * out
    out[0] = 8
    out[1] = x[1]
    return out, before


@program(rows)
def out_argument(x):
    x = x.detach()
    out = torch.empty(6)
    torch.sum(x, 0, out=out)
    return out * 2


@program(rows)
def on_size_kept(x):
    n = x.shape[0]
    before = n
    n += 1
    return x * n + before


@program(rows)
def with_gradients_again(x):
    with torch.no_grad():
        y = x * 2
    y *= x
    return y


@program(rows)
def made_and_written_without_gradients(x):
    with torch.no_grad():
        y = x * 2
        y *= 3
    return x * y


@program(rows)
def keeps_half(x):
    y = x.mean(0).half()
    y += x.sum(0)
    return y


@program(rows)
def keeps_single(x):
    y = x * 2
    y += x.double().exp()
    return y


@program(rows)
def keeps_made_dtype(x):
    y = torch.ones(6, dtype=torch.float64) * x.sum().double()
    z = x.mean(0)
    z -= y
    return z


@program(rows)
class KeepsWhatAutocastGave(Layered):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.layer(x)
            y += x
        return y


@program(rows)
class WritesBehindAutocast(Layered):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.layer(x)
        y *= x
        return y
