"""Programs with hooks."""

from __future__ import annotations

import torch
from torch import nn

from .programs import program, rows


class _Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(x) * 2


@program(rows)
class RootPreHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_forward_pre_hook(lambda module, args: (args[0] * 2,))

    def forward(self, x):
        return self.layer(x)


@program(rows)
class RootHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_forward_hook(lambda module, args, output: output * 3)

    def forward(self, x):
        return self.layer(x)


@program(rows)
class RootHookWithKeywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_forward_hook(lambda module, args, kwargs, output: output + args[0], with_kwargs=True)

    def forward(self, x):
        return x * 2


@program(rows)
class RootBackwardHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_full_backward_hook(lambda module, into, out: (into[0] * 2,))

    def forward(self, x):
        return self.layer(x)


@program(rows)
class InnerHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = _Inner()
        self.inner.register_forward_hook(lambda module, args, output: output + 1)

    def forward(self, x):
        return self.inner(x)


@program(rows)
class InnerPreHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = _Inner()
        self.inner.register_forward_pre_hook(lambda module, args: (args[0] + 1,))

    def forward(self, x):
        return self.inner(x)


@program(rows)
class InnerBackwardHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = _Inner()
        self.inner.register_full_backward_hook(lambda module, into, out: (into[0] * 2,))

    def forward(self, x):
        return self.inner(x)


@program(rows)
class InnerBackwardPreHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = _Inner()
        self.inner.register_full_backward_pre_hook(lambda module, out: (out[0] * 2,))

    def forward(self, x):
        return self.inner(x)


@program(rows)
class LeafHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.layer.register_forward_hook(lambda module, args, output: output * 3)

    def forward(self, x):
        return self.layer(x)


@program(rows)
class LeafBackwardHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.layer.register_full_backward_hook(lambda module, into, out: (into[0] * 2,))

    def forward(self, x):
        return self.layer(x)


@program(rows)
class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.head = nn.Linear(6, 2)
        self.features = {}
        self.layer.register_forward_hook(self._keep)

    def _keep(self, module, args, output):
        self.features["layer"] = output

    def forward(self, x):
        y = self.head(self.layer(x))
        return y, self.features["layer"]


@program(rows)
class ParameterHook(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.weight.register_hook(lambda gradient: gradient * 2)

    def forward(self, x):
        return x * self.weight


@program(rows)
class HookThatCounts(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = _Inner()
        self.calls = 0
        self.inner.register_forward_hook(self._count)

    def _count(self, module, args, output):
        self.calls += 1
        return output * self.calls

    def forward(self, x):
        return self.inner(x)


@program(rows)
class CallOverridden(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def __call__(self, x):
        return super().__call__(x * 2)

    def forward(self, x):
        return self.layer(x)


@program(rows)
class ForwardReplaced(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        forward = self.forward
        self.forward = lambda x: forward(x) * 5

    def forward(self, x):
        return self.layer(x)


@program(rows)
class ForwardCalledDirectly(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = _Inner()
        self.inner.register_forward_hook(lambda module, args, output: output * 9)

    def forward(self, x):
        return self.inner.forward(x)


@program(rows)
class FeaturesOfEarlierCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.drop = nn.Dropout(0.5)
        self.last = torch.zeros(6)
        self.drop.register_forward_hook(self._keep)

    def _keep(self, module, args, output):
        self.last = output

    def forward(self, x):
        y = self.drop(self.layer(x))
        return y + self.last


@program(rows)
class FeaturesInClosure(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.found = found = []
        self.layer.register_forward_pre_hook(lambda module, args: found.append(args[0] * 2))

    def forward(self, x):
        self.found.clear()
        y = self.layer(x)
        return y + self.found[0]


@program(rows)
class HookThatScales(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.scale = 3.0
        self.layer.register_forward_hook(lambda module, args, output: output * self.scale)

    def forward(self, x):
        return self.layer(x)


@program(rows)
class HookThatCountsInItsModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.layer.register_forward_hook(self._count)

    @staticmethod
    def _count(module, args, output):
        module.calls += 2.0

    def forward(self, x):
        self.layer.calls = 1.0
        return self.layer(x) * self.layer.calls


@program(rows)
class FeaturesInTheirModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.layer.found = []
        self.layer.register_forward_hook(lambda module, args, output: module.found.append(output * 2))

    def forward(self, x):
        self.layer.found.clear()
        return self.layer(x) + self.layer.found[0]


@program(rows)
class FeatureThatWasNotThere(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.layer.last = None
        self.layer.register_forward_hook(self._keep)

    @staticmethod
    def _keep(module, args, output):
        module.last = output * 2

    def forward(self, x):
        y = self.layer(x)
        return y if self.layer.last is None else self.layer.last + y


@program(rows)
class HookOfAProfiler(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.layer.operations = 0
        self.layer.register_forward_hook(self._count)

    @staticmethod
    def _count(module, args, output):
        module.operations += output.numel()

    def forward(self, x):
        return self.layer(x)
