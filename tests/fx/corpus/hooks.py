"""Programs with hooks."""

from __future__ import annotations

import torch
from torch import nn

from .programs import Layered, program, rows


class _Inner(Layered):
    def forward(self, x):
        return self.layer(x) * 2


class _WithInner(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = _Inner()

    def forward(self, x):
        return self.inner(x)


@program(rows)
class RootPreHook(Layered):
    def __init__(self):
        super().__init__()
        self.register_forward_pre_hook(lambda module, args: (args[0] * 2,))


@program(rows)
class RootHook(Layered):
    def __init__(self):
        super().__init__()
        self.register_forward_hook(lambda module, args, output: output * 3)


@program(rows)
class RootHookWithKeywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_forward_hook(lambda module, args, kwargs, output: output + args[0], with_kwargs=True)

    def forward(self, x):
        return x * 2


@program(rows)
class RootBackwardHook(Layered):
    def __init__(self):
        super().__init__()
        self.register_full_backward_hook(lambda module, into, out: (into[0] * 2,))


@program(rows)
class InnerHook(_WithInner):
    def __init__(self):
        super().__init__()
        self.inner.register_forward_hook(lambda module, args, output: output + 1)


@program(rows)
class InnerPreHook(_WithInner):
    def __init__(self):
        super().__init__()
        self.inner.register_forward_pre_hook(lambda module, args: (args[0] + 1,))


@program(rows)
class InnerBackwardHook(_WithInner):
    def __init__(self):
        super().__init__()
        self.inner.register_full_backward_hook(lambda module, into, out: (into[0] * 2,))


@program(rows)
class InnerBackwardPreHook(_WithInner):
    def __init__(self):
        super().__init__()
        self.inner.register_full_backward_pre_hook(lambda module, out: (out[0] * 2,))


@program(rows)
class LeafHook(Layered):
    def __init__(self):
        super().__init__()
        self.layer.register_forward_hook(lambda module, args, output: output * 3)


@program(rows)
class LeafBackwardHook(Layered):
    def __init__(self):
        super().__init__()
        self.layer.register_full_backward_hook(lambda module, into, out: (into[0] * 2,))


@program(rows)
class Features(Layered):
    def __init__(self):
        super().__init__()
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
class HookThatCounts(_WithInner):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.inner.register_forward_hook(self._count)

    def _count(self, module, args, output):
        self.calls += 1
        return output * self.calls


@program(rows)
class CallOverridden(Layered):
    def __call__(self, x):
        return super().__call__(x * 2)


@program(rows)
class ForwardReplaced(Layered):
    def __init__(self):
        super().__init__()
        forward = self.forward
        self.forward = lambda x: forward(x) * 5


@program(rows)
class ForwardCalledDirectly(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = _Inner()
        self.inner.register_forward_hook(lambda module, args, output: output * 9)

    def forward(self, x):
        return self.inner.forward(x)


@program(rows)
class FeaturesOfEarlierCall(Layered):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.last = torch.zeros(6)
        self.drop.register_forward_hook(self._keep)

    def _keep(self, module, args, output):
        self.last = output

    def forward(self, x):
        y = self.drop(self.layer(x))
        return y + self.last


@program(rows)
class FeaturesInClosure(Layered):
    def __init__(self):
        super().__init__()
        self.found = found = []
        self.layer.register_forward_pre_hook(lambda module, args: found.append(args[0] * 2))

    def forward(self, x):
        self.found.clear()
        y = self.layer(x)
        return y + self.found[0]


@program(rows)
class HookThatScales(Layered):
    def __init__(self):
        super().__init__()
        self.scale = 3.0
        self.layer.register_forward_hook(lambda module, args, output: output * self.scale)


@program(rows)
class HookThatCountsInItsModule(Layered):
    def __init__(self):
        super().__init__()
        self.layer.register_forward_hook(self._count)

    @staticmethod
    def _count(module, args, output):
        module.calls += 2.0

    def forward(self, x):
        self.layer.calls = 1.0
        return self.layer(x) * self.layer.calls


@program(rows)
class FeaturesInTheirModule(Layered):
    def __init__(self):
        super().__init__()
        self.layer.found = []
        self.layer.register_forward_hook(lambda module, args, output: module.found.append(output * 2))

    def forward(self, x):
        self.layer.found.clear()
        return self.layer(x) + self.layer.found[0]


@program(rows)
class FeatureThatWasNotThere(Layered):
    def __init__(self):
        super().__init__()
        self.layer.last = None
        self.layer.register_forward_hook(self._keep)

    @staticmethod
    def _keep(module, args, output):
        module.last = output * 2

    def forward(self, x):
        y = self.layer(x)
        return y if self.layer.last is None else self.layer.last + y


@program(rows)
class HookOfAProfiler(Layered):
    def __init__(self):
        super().__init__()
        self.layer.operations = 0
        self.layer.register_forward_hook(self._count)

    @staticmethod
    def _count(module, args, output):
        module.operations += output.numel()
