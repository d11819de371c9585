"""Programs that would leave traces in what they use, whether or not they can be captured."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn

from .programs import Layered, program, rows


class _Fails(Layered):
    """Does something, and then what cannot be captured."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-2, 2, 6))
        self.register_buffer("table", torch.arange(6.0))
        self.plain = torch.arange(6.0)
        self.items = []
        self.entries = {"a": 1}
        self.count = 0

    def damage(self, x):
        raise NotImplementedError

    def forward(self, x):
        self.damage(x)
        if x.sum() > 1e9:
            return x
        return x * 2


@program(rows)
class BufferThenFailure(_Fails):
    def damage(self, x):
        self.table.add_(1)


@program(rows)
class BufferDataThenFailure(_Fails):
    def damage(self, x):
        self.table.data.add_(1)


@program(rows)
class BufferDataReplacedThenFailure(_Fails):
    def damage(self, x):
        self.table.data = self.table.data + 1


@program(rows)
class ParameterDataThenFailure(_Fails):
    def damage(self, x):
        for p in self.parameters():
            p.data.mul_(0.5)


@program(rows)
class ParameterNoGradThenFailure(_Fails):
    def damage(self, x):
        with torch.no_grad():
            for p in self.layer.parameters():
                p.mul_(0.5)


@program(rows)
class PlainThenFailure(_Fails):
    def damage(self, x):
        self.plain.mul_(3)


@program(rows)
class PlainItemThenFailure(_Fails):
    def damage(self, x):
        self.plain[0] = 9


@program(rows)
class ListThenFailure(_Fails):
    def damage(self, x):
        self.items.append(x)


@program(rows)
class DictThenFailure(_Fails):
    def damage(self, x):
        self.entries["b"] = x
        del self.entries["a"]


@program(rows)
class CounterThenFailure(_Fails):
    def damage(self, x):
        self.count += 1


@program(rows)
class RequiresGradThenFailure(_Fails):
    def damage(self, x):
        for p in self.parameters():
            p.requires_grad_(False)


@program(rows)
class RequiresGradSetThenFailure(_Fails):
    def damage(self, x):
        for p in self.parameters():
            p.requires_grad = False


@program(rows)
class ModeThenFailure(_Fails):
    def damage(self, x):
        self.layer.train(not self.layer.training)


@program(rows)
class RandomThenFailure(_Fails):
    def damage(self, x):
        torch.rand(3)
        torch.empty(3).normal_()
        random.random()
        np.random.rand()


@program(rows)
class SeedThenFailure(_Fails):
    def damage(self, x):
        torch.manual_seed(0)


@program(rows)
class GradModeThenFailure(_Fails):
    def damage(self, x):
        torch.set_grad_enabled(False)


@program(rows)
class AttributeDeletedThenFailure(_Fails):
    def damage(self, x):
        del self.plain


@program(rows)
class ModuleAddedThenFailure(_Fails):
    def damage(self, x):
        self.added = nn.Linear(2, 2)
        self.register_buffer("late", torch.zeros(1))


@program(rows)
class NestedThenFailure(_Fails):
    def damage(self, x):
        self.entries["a"] = {"deep": [x]}
        self.items.append([x, {"k": x}])


@program(rows)
class HookThenFailure(_Fails):
    def damage(self, x):
        self.layer.register_forward_hook(lambda module, args, output: output)


@program(rows)
class ResizedThenFailure(_Fails):
    def damage(self, x):
        self.table.unsqueeze_(0)


@program(rows)
class SetThenFailure(_Fails):
    def damage(self, x):
        self.table.set_(torch.zeros(6).untyped_storage())


@program(rows)
class InitThenFailure(_Fails):
    def damage(self, x):
        nn.init.zeros_(self.layer.weight)


@program(rows)
class LoadsStateThenFailure(_Fails):
    def damage(self, x):
        self.layer.load_state_dict({"weight": torch.zeros(6, 6), "bias": torch.zeros(6)})


@program(rows)
class HalvesThenFailure(_Fails):
    def damage(self, x):
        self.layer.half()


@program(rows)
class BuffersSwapped(_Fails):
    def damage(self, x):
        self.table, self.plain = self.plain, self.table
