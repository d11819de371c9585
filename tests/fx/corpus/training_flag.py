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
class FlagAsNumber(nn.Module):
    def forward(self, x):
        return x * int(self.training) + x * (1 - self.training)


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


def _training_of(module):
    return module.training


def _scaled(x, training=False):
    return x * 2 if training is True else x * 3


@program(rows)
class FlagInStoredLambda(nn.Module):
    def __init__(self):
        super().__init__()
        self.scaled = lambda x: x * 2 if self.training else x * 3

    def forward(self, x):
        return self.scaled(x)


@program(rows)
class FlagInStoredFunctions(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = {"drop": [lambda x, model: F.dropout(x, 0.5, model.training)]}

    def forward(self, x):
        for step in self.steps["drop"]:
            x = step(x, self)
        return x


@program(rows)
class FlagByIdentity(nn.Module):
    def forward(self, x):
        return _scaled(x, training=self.training)


@program(rows)
class FlagMatched(nn.Module):
    def forward(self, x):
        match self.training:
            case True:
                return x * 2
            case _:
                return x * 3


@program(rows)
class FlagInArithmetic(nn.Module):
    def forward(self, x):
        return x * (1 - self.training) + self.training * x.sin()


@program(rows)
class FlagInOperator(nn.Module):
    def forward(self, x):
        return x * 2 if self.training & (x.dim() == 2) else x


@program(rows)
class FlagReturned(nn.Module):
    def forward(self, x):
        return {"x": x, "training": self.training}


@program(rows)
class FlagAsKey(nn.Module):
    def forward(self, x):
        return x * {True: 2, False: 3}[self.training]


@program(rows)
class FlagInText(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterDict({"scale_True": torch.ones(6), "scale_False": torch.zeros(6)})

    def forward(self, x):
        return x * self.scales[f"scale_{self.training}"]


@program(rows)
class FlagInProperty(nn.Module):
    @property
    def rate(self):
        return 0.5 if self.training else 0.0

    def forward(self, x):
        return F.dropout(x, self.rate)


@program(rows)
class FlagOfAll(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])

    def forward(self, x):
        drops = any(map(_training_of, self.layers))
        for layer in self.layers:
            x = F.dropout(layer(x), 0.5, training=drops)
        return x


@program(rows)
class FlagInHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(6, 6))
        self.layer.register_forward_hook(lambda module, inputs, output: output * 2 if module.training else output)

    def forward(self, x):
        return self.layer(x)


@program(rows)
class FlagPassedToInner(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = FlagPassedOn()

    def forward(self, x):
        return F.feature_alpha_dropout(self.inner(x).view(-1, 6, 1), 0.5, self.training)


@program(rows)
class FlagOfBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("noise", torch.ones(6))

    def forward(self, x):
        return x + F.dropout(self.noise, 0.5, self.training)


@program(rows)
class FlagAsDefault(nn.Module):
    def forward(self, x, training=None):
        training = self.training if training is None else training
        return F.dropout(x, 0.5, training)


@program(rows)
class EvaluatesFirst(nn.Module):
    def forward(self, x):
        self.eval()
        return F.dropout(x, 0.5, self.training)


@program(rows)
class EvaluatesLast(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = FlagPassedOn()

    def forward(self, x):
        y = self.inner(F.dropout(x, 0.5, self.training))
        self.train(False)
        return y + self.inner(x)


@program(rows)
class EvaluatesInner(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(FlagPassedOn(), FlagPassedOn())

    def forward(self, x):
        y = self.blocks(x)
        self.blocks.eval()
        return self.blocks(x) + y
