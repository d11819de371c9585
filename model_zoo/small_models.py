"""Models that run in a millisecond, each with one difficulty: functions, shared layers, dicts, nothing to fuse."""

# No postponed annotations here: a program that is captured from a model carries the types of its forward.

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fx.serialization import allow
from model_zoo.registered_models import register_model
from model_zoo.resnet import images
from model_zoo.zoo_model import ExampleInputs, ZooModel, built, settle_batch_norm


class Perceptron(nn.Module):
    """Three linear layers; nothing in it can be fused with a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 16) to (batch, 10)."""
        return self.layers(x)


class FunctionalConvNet(nn.Module):
    """Convolution and batch norm called as functions, on parameters and buffers of the model itself."""

    weight: Tensor
    scale: Tensor
    shift: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3, 3, 3) * 0.2)
        self.scale = nn.Parameter(torch.rand(8) + 0.5)
        self.shift = nn.Parameter(torch.randn(8) * 0.2)
        self.register_buffer("running_mean", torch.randn(8) * 0.2)
        self.register_buffer("running_var", torch.rand(8) + 0.5)
        self.classifier = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 3, height, width) to (batch, 10)."""
        x = functional.conv2d(x, self.weight, padding=1)
        x = functional.batch_norm(x, self.running_mean, self.running_var, self.scale, self.shift, training=False)
        x = functional.relu(x)
        return self.classifier(x.mean((2, 3)))


class SharedConvNet(nn.Module):
    """One convolution called twice, before two different batch norms: it can be folded into neither."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Conv2d(3, 8, 3, padding=1)
        self.entry_norm = nn.BatchNorm2d(8)
        self.shared = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.first_norm = nn.BatchNorm2d(8)
        self.second_norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 3, height, width) to (batch, 8)."""
        x = torch.relu(self.entry_norm(self.entry(x)))
        x = torch.relu(self.first_norm(self.shared(x)))
        x = torch.relu(self.second_norm(self.shared(x)) + x)
        return torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1)


@allow
class Scores(NamedTuple):
    """The predictions of :class:`TwoHeads` for each sample."""

    logits: Tensor
    """Class scores, (batch, 10)."""
    best: Tensor
    """Index of the highest score, (batch,), int64."""


class TwoHeads(nn.Module):
    """A model of two tensors that returns tensors nested in a dict, a named tuple and a list."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.classify = nn.Linear(8, 10)
        self.locate = nn.Linear(8, 4)

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, Scores | list[Tensor]]:
        """Map images, (batch, 3, height, width), and scales, (batch, 1), to scores and boxes."""
        features = self.trunk(x).mean((2, 3)) * scale
        logits = self.classify(features)
        boxes = torch.sigmoid(self.locate(features))
        return {"scores": Scores(logits, logits.argmax(1)), "boxes": [boxes, 1 - boxes]}


def _vectors(batch: int = 1, seed: int = 0) -> tuple[Tensor]:
    return (torch.randn(batch, 16, generator=torch.Generator().manual_seed(seed)),)


def _images_and_scales(batch: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, 16, 16, generator=generator), torch.rand(batch, 1, generator=generator) + 0.5


def _register(name: str, build: Callable[[], nn.Module], example_inputs: ExampleInputs) -> None:
    source = "made for the tests of this project"
    register_model(ZooModel(name, built(build), example_inputs, source, frozenset({"small"})))


_register("mlp", Perceptron, _vectors)
_register("functional_convnet", FunctionalConvNet, images(16, 16))
_register(
    "shared_convnet",
    lambda: settle_batch_norm(SharedConvNet(), images(16, 16)(batch=8, seed=1)),
    images(16, 16),
)
_register("two_heads", lambda: settle_batch_norm(TwoHeads(), _images_and_scales(batch=8, seed=1)), _images_and_scales)
