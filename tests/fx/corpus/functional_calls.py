"""Programs that call modules with other parameters, and functions of functions."""

from __future__ import annotations

import copy
import functools

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.utils import parametrizations, parametrize

from .programs import Layered, one_liners, program, rows


@program(rows)
class Functional(Layered):
    def forward(self, x):
        parameters = {name: p * 2 for name, p in self.layer.named_parameters()}
        return functional_call(self.layer, parameters, (x,))


@program(rows)
class FunctionalFromInput(Layered):
    def forward(self, x):
        return torch.func.functional_call(self.layer, {"bias": x.mean(0)}, x)


@program(rows)
class FunctionalOfOwn(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))

    def forward(self, x):
        new = {name: p + 0.5 for name, p in self.net.named_parameters()}
        return torch.nn.utils.stateless.functional_call(self.net, new, (x,))


@program(rows)
class HyperNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker = nn.Linear(6, 36)
        self.target = nn.Linear(6, 6, bias=False)

    def forward(self, x):
        del self.target.weight
        self.target.weight = self.maker(x.mean(0)).view(6, 6)
        return self.target(x)


@program(rows)
class SwappedParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6)

    def forward(self, x):
        self.a.weight, self.b.weight = self.b.weight, self.a.weight
        return self.a(x)


@program(rows)
class WeightNormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = parametrizations.weight_norm(nn.Linear(6, 6))

    def forward(self, x):
        return self.layer(x)


@program(rows)
class SpectralNormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = parametrizations.spectral_norm(nn.Linear(6, 6))

    def forward(self, x):
        return self.layer(x)


@program(rows)
class SpectralNormedWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = parametrizations.spectral_norm(nn.Linear(6, 6))

    def forward(self, x):
        return x @ self.layer.weight


@program(rows)
class OldSpectralNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.utils.spectral_norm(nn.Linear(6, 6))

    def forward(self, x):
        return self.layer(x)


class _Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 36).reshape(6, 6))

    def forward(self, x):
        return x @ self.weight


@program(rows)
class OldSpectralNormInlined(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.utils.spectral_norm(_Inner())

    def forward(self, x):
        return self.layer(x)


class _Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).transpose(-1, -2)


@program(rows)
class OwnParametrization(Layered):
    def __init__(self):
        super().__init__()
        parametrize.register_parametrization(self.layer, "weight", _Symmetric())


one_liners(
    rows,
    mapped=lambda x: vmap(lambda row: row * row.sum())(x),
    mapped_twice=lambda x: vmap(vmap(torch.sin))(x),
    gradient_of_function=lambda x: torch.func.grad(lambda y: (y**3).sum())(x),
    jacobian=lambda x: torch.func.jacrev(lambda y: y * 2)(x[0]),
    mapped_by_python=lambda x: list(map(torch.relu, [x, -x])),
    reduced=lambda x: functools.reduce(torch.add, [x, x * 2, x * 3]),
    forward_derivative=lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1],
    branch_as_operator=lambda x: torch.cond(x.sum() > 0, lambda t: t * 2, lambda t: t * 3, (x,)),
    global_layer=lambda x: _ACTIVATION(x) + nn.functional.gelu(nn.Flatten()(x)),
)


@program(rows)
def partial_function(x):
    doubled = functools.partial(torch.mul, other=2)
    return doubled(x)


@program(rows)
class CopiedInside(Layered):
    def forward(self, x):
        return copy.deepcopy(self.layer)(x)


@program(rows)
class MadeInside(nn.Module):
    def forward(self, x):
        return nn.ReLU()(x)


@program(rows)
class WeightsMadeInside(nn.Module):
    def forward(self, x):
        return nn.Linear(6, 6)(x)


@program(rows)
class LossInside(Layered):
    def forward(self, x):
        return nn.MSELoss()(self.layer(x), x)


@program(rows)
class Penalty(Layered):
    def forward(self, x):
        decay = sum(p.pow(2).sum() for p in self.parameters())
        return self.layer(x).sum() + decay


@program(rows)
class PenaltyByName(Layered):
    def forward(self, x):
        decay = sum(p.abs().sum() for name, p in self.named_parameters() if "weight" in name)
        return self.layer(x).mean() + 0.1 * decay


@program(rows)
class ThroughStateDict(Layered):
    def forward(self, x):
        return x @ self.layer.state_dict()["weight"]


@program(rows)
class ThroughList(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.kept = [self.weight]

    def forward(self, x):
        return x * (self.kept[0] * 2)


@program(rows)
class EnsembleMapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.members = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        parameters, buffers = torch.func.stack_module_state(list(self.members))
        return vmap(lambda p, b: functional_call(self.members[0], (p, b), (x,)))(parameters, buffers)


@program(rows)
class DropoutMadeInside(nn.Module):
    def forward(self, x):
        return nn.Dropout(0.5)(x)


_ACTIVATION = nn.Softmax(dim=1)
