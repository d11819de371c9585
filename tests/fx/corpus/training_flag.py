"""Programs whose meaning depends on the training flag, which somebody switches later."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .programs import images, program, rows


@program(rows)
class FlagPassedOn(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, training=self.training)


@program(rows)
class FlagPassedByPosition(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, self.training) + 1


@program(rows)
class FlagBranch(nn.Module):
    def forward(self, x):
        if self.training:
            return x * 2
        return x * 3


@program(rows)
class FlagNegated(nn.Module):
    def forward(self, x):
        if not self.training:
            x = x.clamp(0, 1)
        return x


@program(rows)
class FlagAsNumber(nn.Module):
    def forward(self, x):
        return x * int(self.training) + x * (1 - self.training)


@program(rows)
class FlagInExpression(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = 0.3

    def forward(self, x):
        return F.dropout(x, self.rate if self.training else 0.0)


@program(rows)
class FlagOfInner(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = FlagBranch()

    def forward(self, x):
        return self.inner(x) + 1


@program(rows)
class FlagOfLeaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        if self.norm.training:
            x = x * 2
        return self.norm(x)


@program(rows)
class LeafOnly(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.3))

    def forward(self, x):
        return self.layers(x)


@program(rows)
class InnerFrozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        self.norm.eval()
        return self.norm(x)


@program(rows)
class TrainOverridden(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.layer = nn.Linear(6, 6)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.layer(self.norm(x))


@program(rows)
class SwitchesItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        was = self.training
        self.eval()
        y = self.drop(x)
        self.train(was)
        return y + self.drop(x)


@program(rows)
class OwnDropout(nn.Dropout):
    def forward(self, x):
        return super().forward(x) * 2


@program(rows)
class FunctionalBatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("variance", torch.ones(6))

    def forward(self, x):
        return F.batch_norm(x, self.mean, self.variance, training=self.training)


@program(images)
class AuxiliaryHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 5)
        self.auxiliary = nn.Linear(4, 5)

    def forward(self, x):
        x = self.body(x).mean((2, 3))
        if self.training:
            return self.head(x), self.auxiliary(x)
        return self.head(x)


@program(rows)
class DictInTraining(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        y = self.layer(x)
        return {"loss": y.sum(), "logits": y} if self.training else y.softmax(-1)


@program(rows)
class OwnBatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.register_buffer("running_mean", torch.zeros(6))
        self.register_buffer("running_var", torch.ones(6))

    def forward(self, x):
        if self.training:
            mean, var = x.mean(0), x.var(0, unbiased=False)
            with torch.no_grad():
                self.running_mean.mul_(0.9).add_(mean, alpha=0.1)
                self.running_var.mul_(0.9).add_(var, alpha=0.1)
        else:
            mean, var = self.running_mean, self.running_var
        return (x - mean) * torch.rsqrt(var + 1e-5) * self.weight


@program(rows)
class FlagThroughGetattr(nn.Module):
    def forward(self, x):
        return x * 2 if getattr(self, "training", False) else x


@program(rows)
class FlagStored(nn.Module):
    def forward(self, x):
        train = self.training
        y = F.dropout(x, 0.2, train)
        return F.alpha_dropout(y, 0.2, train)
