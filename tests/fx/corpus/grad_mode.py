"""Programs that switch the recording of gradients off or on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .programs import other_rows, program, rows


@program(rows)
def inference_block(x):
    with torch.inference_mode():
        y = x.sin()
    return y.clone() + 1


@torch.no_grad()
def _normalized(x):
    return x / x.norm()


@program(rows)
def decorated_helper(x):
    return _normalized(x) * x


@program(rows)
@torch.no_grad()
def decorated_program(x):
    return x.exp()


@program(rows)
@torch.enable_grad()
def decorated_with_enable(x):
    return x.exp()


@program(rows)
def switched_by_value(x):
    with torch.set_grad_enabled(False):
        y = x.cos()
    return x * y


@program(rows)
def switched_by_call(x):
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    y = x.cos()
    torch.set_grad_enabled(before)
    return x * y


@program(rows)
def left_off(x):
    torch.set_grad_enabled(False)
    return x.cos()


@program(rows)
def enabled_inside(x):
    with torch.no_grad():
        y = x * 3
        with torch.enable_grad():
            z = x * 4
    return y * z + z


@program(rows)
def asked_about_mode(x):
    if torch.is_grad_enabled():
        return x * 2
    return x * 3


@program(rows, other_rows)
def straight_through(x, y):
    with torch.no_grad():
        rounded = x.round() - x
    return x + rounded + y


@program(rows)
def forgotten_graph(x):
    with torch.no_grad():
        y = x
    return y * 2


@program(rows)
def gradient_inside(x):
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        energy = (x**2).sum()
        (gradient,) = torch.autograd.grad(energy, x)
    return gradient


@program(rows)
class Distillation(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Linear(6, 4)
        self.teacher = nn.Linear(6, 4)

    def forward(self, x):
        with torch.no_grad():
            target = self.teacher(x).softmax(-1)
        return F.kl_div(self.student(x).log_softmax(-1), target, reduction="batchmean")


@program(rows)
class MomentumEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Linear(6, 4)
        self.target = nn.Linear(6, 4)

    @torch.no_grad()
    def _update(self):
        for p, q in zip(self.online.parameters(), self.target.parameters()):
            q.data = q.data * 0.9 + p.data * 0.1

    def forward(self, x):
        with torch.no_grad():
            self._update()
            key = self.target(x)
        return self.online(x) * key


@program(rows)
class TrainableIf(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.last = nn.Linear(6, 6)

    def forward(self, x):
        with torch.set_grad_enabled(self.training):
            x = self.first(x)
        return self.last(x)


@program(rows)
class RotaryLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", torch.arange(3.0) + 1, persistent=False)

    @torch.no_grad()
    def forward(self, x):
        angles = x[:, :3] * self.frequencies
        return torch.cat((angles.cos(), angles.sin()), -1)
