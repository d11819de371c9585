"""Programs that draw random numbers, also without a traced input."""

from __future__ import annotations

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .programs import Layered, one_liners, program, rows, sequences

one_liners(
    rows,
    rand_of_fixed_size=lambda x: x + torch.rand(6),
    randn_of_fixed_size=lambda x: x + torch.randn(1, 6) * 0.1,
    rand_of_the_input=lambda x: x * torch.rand(x.shape),
    randn_from_sizes=lambda x: x + torch.randn(x.shape[0], 1),
    permuted_columns=lambda x: x[:, torch.randperm(6)],
    permuted_rows=lambda x: x[torch.randperm(x.shape[0])],
    random_integers=lambda x: x + torch.randint(0, 10, (6,)),
    bernoulli_of_constant=lambda x: x * torch.bernoulli(torch.full((6,), 0.5)),
    bernoulli_of_input=lambda x: torch.bernoulli(x.sigmoid()) + x,
    normal_function=lambda x: x + torch.normal(0.0, 1.0, (6,)),
    dropout_on_constant=lambda x: x * F.dropout(torch.ones(6), 0.5),
    python_random_number=lambda x: x * random.uniform(0.5, 1.5),
    python_random_choice=lambda x: x * random.choice([1.0, 2.0, 3.0]),
    numpy_random_number=lambda x: x * float(np.random.rand()),
    numpy_random_permutation=lambda x: x[:, np.random.permutation(6).tolist()],
    shared_generator=lambda x: x + torch.rand(6, generator=_GENERATOR),
    gumbel=lambda x: F.gumbel_softmax(x, tau=1.0),
)


@program(rows)
def rand_like(x):
    return x + torch.rand_like(x)


@program(rows)
def normal_on_fresh(x):
    noise = torch.empty(6).normal_()
    return x + noise


@program(rows)
def uniform_on_fresh(x):
    noise = torch.zeros(6)
    noise.uniform_(-1, 1)
    return x + noise * 2


@program(rows)
def filled_by_init(x):
    weight = torch.empty(6, 6)
    nn.init.xavier_uniform_(weight)
    return x @ weight


@program(rows)
def derived_from_random(x):
    noise = torch.rand(6)
    mask = (noise > 0.5).float()
    return x * mask + noise.mean()


@program(rows)
def branch_on_random_tensor(x):
    if torch.rand(()) < 0.5:
        return x * 2
    return x * 3


@program(rows)
def branch_on_random_item(x):
    if torch.rand(1).item() < 0.5:
        return x * 2
    return x * 3


@program(rows)
def branch_on_python_random(x):
    if random.random() < 0.5:
        return x * 2
    return x * 3


@program(rows)
def seeded_inside(x):
    torch.manual_seed(3)
    return x + torch.rand(6)


@program(rows)
def forked(x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        noise = torch.randn(6)
    return x + noise


@program(rows)
def own_generator(x):
    generator = torch.Generator().manual_seed(4)
    return x + torch.rand(6, generator=generator)


_GENERATOR = torch.Generator()


@program(rows)
def multinomial_of_constant(x):
    index = torch.multinomial(torch.ones(6), 3)
    return x[:, index]


@program(rows)
def gumbel_by_hand(x):
    noise = -torch.empty(6).exponential_().log()
    return (x + noise).softmax(-1)


@program(rows)
class LayerDrop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            if self.training and torch.rand([]) < 0.3:
                continue
            x = layer(x)
        return x


@program(rows)
class LayerDropByRandom(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            if not self.training or random.uniform(0, 1) > 0.3:
                x = layer(x)
        return x


@program(rows)
class NoisyLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, 6) / 6)
        self.sigma = nn.Parameter(torch.full((6, 6), 0.017))
        self.register_buffer("epsilon", torch.zeros(6, 6))

    def reset_noise(self):
        a = torch.randn(6)
        b = torch.randn(6)
        self.epsilon.copy_(a.sign().mul(a.abs().sqrt()).outer(b.sign().mul(b.abs().sqrt())))

    def forward(self, x):
        self.reset_noise()
        return F.linear(x, self.weight + self.sigma * self.epsilon)


@program(rows)
class GaussianNoise(nn.Module):
    def forward(self, x):
        if self.training:
            return x + torch.randn_like(x) * 0.1
        return x


@program(sequences)
class Variational(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(6, 3)
        self.log_variance = nn.Linear(6, 3)

    def forward(self, x):
        mean, log_variance = self.mean(x), self.log_variance(x)
        std = torch.exp(0.5 * log_variance)
        return mean + torch.randn_like(std) * std, mean


@program(rows)
class DropPath(nn.Module):
    def forward(self, x):
        if not self.training:
            return x
        keep = 0.8
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        return x.div(keep) * torch.floor(keep + torch.rand(shape))


@program(rows)
class DiffusionLoss(Layered):
    def __init__(self):
        super().__init__()
        self.register_buffer("alphas", torch.linspace(0.99, 0.1, 10))

    def forward(self, x):
        t = torch.randint(0, 10, (x.shape[0],))
        noise = torch.randn_like(x)
        a = self.alphas[t].unsqueeze(-1)
        return F.mse_loss(self.layer(a.sqrt() * x + (1 - a).sqrt() * noise), noise)


@program(rows)
class Mixup(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 2)

    def forward(self, x):
        if self.training:
            weight = np.random.beta(0.4, 0.4)
            x = weight * x + (1 - weight) * x.flip(0)
        return self.net(x)


@program(rows)
def distribution_sample(x):
    normal = torch.distributions.Normal(0.0, 1.0)
    return x + normal.sample((6,))
