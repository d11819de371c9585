"""Programs that draw random numbers, also without a traced input."""

from __future__ import annotations

import math
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .programs import images, program, rows, sequences


@program(rows)
def rand_of_fixed_size(x):
    return x + torch.rand(6)


@program(rows)
def randn_of_fixed_size(x):
    return x + torch.randn(1, 6) * 0.1


@program(rows)
def rand_of_the_input(x):
    return x * torch.rand(x.shape)


@program(rows)
def rand_like(x):
    return x + torch.rand_like(x)


@program(rows)
def randn_from_sizes(x):
    return x + torch.randn(x.shape[0], 1)


@program(rows)
def permuted_columns(x):
    return x[:, torch.randperm(6)]


@program(rows)
def permuted_rows(x):
    return x[torch.randperm(x.shape[0])]


@program(rows)
def random_integers(x):
    return x + torch.randint(0, 10, (6,))


@program(rows)
def bernoulli_of_constant(x):
    return x * torch.bernoulli(torch.full((6,), 0.5))


@program(rows)
def bernoulli_of_input(x):
    return torch.bernoulli(x.sigmoid()) + x


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
def normal_function(x):
    return x + torch.normal(0.0, 1.0, (6,))


@program(rows)
def dropout_on_constant(x):
    return x * F.dropout(torch.ones(6), 0.5)


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
def python_random_number(x):
    return x * random.uniform(0.5, 1.5)


@program(rows)
def python_random_choice(x):
    return x * random.choice([1.0, 2.0, 3.0])


@program(rows)
def numpy_random_number(x):
    return x * float(np.random.rand())


@program(rows)
def numpy_random_permutation(x):
    return x[:, np.random.permutation(6).tolist()]


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
def shared_generator(x):
    return x + torch.rand(6, generator=_GENERATOR)


@program(rows)
def multinomial_of_constant(x):
    index = torch.multinomial(torch.ones(6), 3)
    return x[:, index]


@program(rows)
def gumbel(x):
    return F.gumbel_softmax(x, tau=1.0)


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


@program(images)
class DropBlockLike(nn.Module):
    def forward(self, x):
        mask = (torch.rand(1, 1, 8, 8) > 0.2).float()
        return x * mask * (mask.numel() / mask.sum())


@program(rows)
class DropPath(nn.Module):
    def forward(self, x):
        if not self.training:
            return x
        keep = 0.8
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        return x.div(keep) * torch.floor(keep + torch.rand(shape))


@program(sequences)
class RandomFeatures(nn.Module):
    def forward(self, x):
        weights = torch.randn(6, 4) / math.sqrt(6)
        return torch.cos(x @ weights)


@program(rows)
class DiffusionLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 6)
        self.register_buffer("alphas", torch.linspace(0.99, 0.1, 10))

    def forward(self, x):
        t = torch.randint(0, 10, (x.shape[0],))
        noise = torch.randn_like(x)
        a = self.alphas[t].unsqueeze(-1)
        return F.mse_loss(self.net(a.sqrt() * x + (1 - a).sqrt() * noise), noise)


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
