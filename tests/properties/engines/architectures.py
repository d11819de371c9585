"""Sixteen architectures with inputs: of torchvision, of the model zoo, and two of this file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module

import torch
from models.factories import PACKAGES
from models.libraries import declare_operators
from torch import Tensor, nn

from model_zoo import get_model
from model_zoo.zoo_model import settle_batch_norm

Architecture = Callable[[], "tuple[nn.Module, tuple[Tensor, ...]]"]
"""A function that makes a model in evaluation mode, and inputs."""
_SIZE = 224
"""Pixels of a side of an image."""


class SequenceTagger(nn.Module):
    """An LSTM in both directions, and a GRU behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.lstm = nn.LSTM(64, 128, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(256, 128, batch_first=True)
        self.head = nn.Linear(128, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens, (batch, length), to scores, (batch, length, 20)."""
        x, _ = self.lstm(self.embed(tokens))
        x, _ = self.gru(x)
        return self.head(x)


class DepthwiseAudio(nn.Module):
    """Keywords in a second of sound: depthwise and pointwise convolutions along the samples."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv1d(1, 32, 25, stride=8, padding=12), nn.BatchNorm1d(32), nn.ReLU()]
        for inputs, outputs in ((32, 64), (64, 96), (96, 128), (128, 128)):
            depthwise = nn.Conv1d(inputs, inputs, 9, stride=2, padding=4, groups=inputs)
            layers += [depthwise, nn.BatchNorm1d(inputs), nn.ReLU()]
            layers += [nn.Conv1d(inputs, outputs, 1), nn.BatchNorm1d(outputs), nn.ReLU()]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(128, 12)

    def forward(self, sound: Tensor) -> Tensor:
        """Map sounds, (batch, 1, 16000), to scores, (batch, 12)."""
        return self.head(self.layers(sound).mean(-1))


def _torchvision(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    if str(PACKAGES) not in sys.path:
        sys.path.append(str(PACKAGES))
    declare_operators()
    images = torch.randn(1, 3, _SIZE, _SIZE)
    return _ready(import_module("torchvision.models").get_model(name, weights=None), images)


def _ready(module: nn.Module, *inputs: Tensor) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return a model whose batch norms have statistics, and whose heads are not zero."""
    for parameter in module.parameters():
        if parameter.dim() > 1 and not parameter.detach().any():
            nn.init.normal_(parameter, std=0.02)
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()):
        settle_batch_norm(module, inputs)
    return module.eval(), inputs


def _of_zoo(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = get_model(name)
    return model.build(), tuple(model.example_inputs(1, seed=0))


ARCHITECTURES: Mapping[str, Architecture] = {
    **{
        name: partial(_torchvision, name)
        for name in (
            "resnet18", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "vgg11_bn", "densenet121",
            "shufflenet_v2_x1_0", "squeezenet1_1", "regnet_y_400mf", "convnext_tiny", "vit_b_32", "swin_t",
        )
    },
    "bert": partial(_of_zoo, "bert"),
    "lstm_gru": lambda: _ready(SequenceTagger(), torch.randint(0, 1000, (1, 64))),
    "depthwise_audio": lambda: _ready(DepthwiseAudio(), torch.randn(1, 1, 16000)),
    "unet": partial(_of_zoo, "unet"),
}  # fmt: skip
"""The architectures by name, with one image, sentence or sound as input."""
