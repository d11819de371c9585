"""Small models trained on real data, reproducible by seed, as subjects of quantization."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wheels import digits, movielens
from model_zoo.deep_recommender import AutoEncoder, masked_mse
from pytest_fx.harness import evaluation

_HELD_BACK = 10
"""One of this many ratings is held back for the test; of the digits it is one in five."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained model with its training and test data."""

    model: nn.Module
    """The model, in evaluation mode."""
    batches: Sequence[Tensor]
    """The training inputs, without labels."""
    error: Callable[[Callable[[Tensor], Tensor]], float]
    """A function that returns the error of a program on the test data."""
    loss: Callable[[nn.Module, Tensor], Tensor]
    """The training loss, from a program and the indices of examples."""
    examples: int
    """Number of training examples."""


@cache
def trained(data: str, seed: int, epochs: int) -> Trained:
    """Train on ``"MovieLens-100k"`` or ``"MNIST"``; the same arguments give the same model without training again."""
    with evaluation.threads(1), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return (_autoencoder if data == "MovieLens-100k" else _classifier)(epochs)


def _autoencoder(epochs: int) -> Trained:
    """Train DeepRecommender at a tenth of its widths as its authors do: dropout, dense re-feeding, SGD."""
    rows = movielens()
    rows = rows[torch.randperm(len(rows))]
    users, items = (int(rows[:, column].max()) + 1 for column in (0, 1))
    held_back = len(rows) // _HELD_BACK
    train, test = (_dense(part, users, items) for part in (rows[held_back:], rows[:held_back]))
    model = AutoEncoder((items, 128, 256, 256), is_constrained=False, dp_drop_prob=0.65)

    def loss(program: nn.Module, users: Tensor) -> Tensor:
        total, count = masked_mse(program(train[users]), train[users])
        return total / count

    def error(program: Callable[[Tensor], Tensor]) -> float:
        with torch.no_grad():
            total, count = masked_mse(program(train), test)
        return float((total / count).sqrt())

    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    for _ in range(epochs):
        for chosen in torch.randperm(users).split(32):
            predicted = model(train[chosen])
            total, count = masked_mse(predicted, train[chosen])
            _step(optimizer, total / count)
            again = predicted.detach()
            _step(optimizer, F.mse_loss(model(again), again))
    return Trained(model.eval(), train.split(64), error, loss, users)


def _dense(rows: Tensor, users: int, items: int) -> Tensor:
    ratings = torch.zeros(users, items)
    ratings[rows[:, 0].long(), rows[:, 1].long()] = rows[:, 2]
    return ratings


def _classifier(epochs: int) -> Trained:
    """Train three convolutions with batch norm and a linear layer to classify digits."""
    images, labels = digits()
    order = torch.randperm(len(images))
    images, labels = images[order], labels[order]
    train = len(images) * 4 // 5

    def loss(program: nn.Module, chosen: Tensor) -> Tensor:
        return F.cross_entropy(program(images[chosen]), labels[chosen])

    def error(program: Callable[[Tensor], Tensor]) -> float:
        with torch.no_grad():
            return float((program(images[train:]).argmax(1) != labels[train:]).float().mean())

    model = nn.Sequential(
        *_convolution(1, 16), *_convolution(16, 32), *_convolution(32, 64), nn.Flatten(), nn.Linear(64 * 16, 10)
    )
    train_on(model, loss, train, epochs)
    return Trained(model.eval(), images[:train].split(64), error, loss, train)


def _convolution(before: int, after: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()


def train_on(
    model: nn.Module, loss: Callable[[nn.Module, Tensor], Tensor], examples: int, epochs: int, rate: float = 0.05
) -> None:
    """Minimize ``loss`` by gradient descent with momentum over batches of 64, the rate falling to zero."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    steps = max(1, epochs * -(-examples // 64))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for chosen in torch.randperm(examples).split(64):
            _step(optimizer, loss(model, chosen))
            schedule.step()


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
