"""LearningToPaint, the paper's second example of lowering to TensorRT (section 6.4, appendix D, figure 8).

Huang, Heng and Zhou, "Learning to Paint With Model-based Deep Reinforcement Learning" (2019). The actor looks at a
canvas and a target and chooses five strokes; the neural renderer draws a stroke; the critic judges a canvas. Names,
shapes and order of parameters are those of the authors' implementation, so that its checkpoints load.
"""

# No postponed annotations here: a program that is captured from a model carries the types of its forward.

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from model_zoo.registered_models import register_sizes
from model_zoo.resnet import images
from model_zoo.zoo_model import built, settle_batch_norm


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, each normalized, with a shortcut."""

    def __init__(self, in_planes: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, planes, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(planes)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, in_planes, height, width) to (batch, planes, height / stride, width / stride)."""
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return functional.relu(out)


class Actor(nn.Module):
    """An 18-layer residual network from canvas, target, step and coordinates to the parameters of five strokes."""

    def __init__(self, num_inputs: int = 9, num_outputs: int = 65, width: int = 64) -> None:
        """Make the network with ``width`` channels in the first stage, and twice as many in each later stage."""
        super().__init__()
        self.conv1 = nn.Conv2d(num_inputs, width, kernel_size=3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = nn.Sequential(BasicBlock(width, width, 2), BasicBlock(width, width))
        self.layer2 = nn.Sequential(BasicBlock(width, width * 2, 2), BasicBlock(width * 2, width * 2))
        self.layer3 = nn.Sequential(BasicBlock(width * 2, width * 4, 2), BasicBlock(width * 4, width * 4))
        self.layer4 = nn.Sequential(BasicBlock(width * 4, width * 8, 2), BasicBlock(width * 8, width * 8))
        self.fc = nn.Linear(width * 8, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 9, 128, 128) to (batch, 65), 13 numbers between 0 and 1 for each stroke."""
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = functional.avg_pool2d(x, 4)
        x = x.view(x.size(0), -1)
        return torch.sigmoid(self.fc(x))


class TReLU(nn.Module):
    """A ReLU with a learned threshold: ``relu(x - alpha) + alpha``."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Map any shape to the same."""
        return functional.relu(x - self.alpha) + self.alpha


def _normed(in_planes: int, planes: int, kernel_size: int, stride: int = 1) -> nn.Module:
    """Return a convolution with bias and weight norm: the weight is stored as a direction and a length."""
    padding = kernel_size // 2
    return parametrizations.weight_norm(nn.Conv2d(in_planes, planes, kernel_size, stride=stride, padding=padding))


class CriticBlock(nn.Module):
    """A :class:`BasicBlock` with weight norm and learned thresholds instead of batch norm and ReLU."""

    def __init__(self, in_planes: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = _normed(in_planes, planes, 3, stride)
        self.conv2 = _normed(planes, planes, 3)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(_normed(in_planes, planes, 1, stride))
        self.relu_1 = TReLU()
        self.relu_2 = TReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, in_planes, height, width) to (batch, planes, height / stride, width / stride)."""
        out = self.relu_1(self.conv1(x))
        out = self.conv2(out)
        out += self.shortcut(x)
        return self.relu_2(out)


class Critic(nn.Module):
    """An estimate of the value of a canvas after a step: the actor's architecture without batch norm."""

    def __init__(self, num_inputs: int = 12, num_outputs: int = 1, width: int = 64) -> None:
        """Make the network with ``width`` channels in the first stage."""
        super().__init__()
        self.conv1 = _normed(num_inputs, width, 3, 2)
        self.layer1 = nn.Sequential(CriticBlock(width, width, 2), CriticBlock(width, width))
        self.layer2 = nn.Sequential(CriticBlock(width, width * 2, 2), CriticBlock(width * 2, width * 2))
        self.layer3 = nn.Sequential(CriticBlock(width * 2, width * 4, 2), CriticBlock(width * 4, width * 4))
        self.layer4 = nn.Sequential(CriticBlock(width * 4, width * 8, 2), CriticBlock(width * 8, width * 8))
        self.fc = nn.Linear(width * 8, num_outputs)
        self.relu_1 = TReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 12, 128, 128) to (batch, 1)."""
        x = self.relu_1(self.conv1(x))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = functional.avg_pool2d(x, 4)
        x = x.view(x.size(0), -1)
        return self.fc(x)


class Renderer(nn.Module):
    """The neural renderer: a network from the ten parameters of a stroke to a greyscale image of it."""

    def __init__(self, width: int = 512) -> None:
        """Make the network; ``width`` is that of the first hidden layer.

        The fourth layer is eight times as wide, and is reshaped to a square image of 16 channels.
        """
        super().__init__()
        self.side = int((width // 2) ** 0.5)
        self.fc1 = nn.Linear(10, width)
        self.fc2 = nn.Linear(width, width * 2)
        self.fc3 = nn.Linear(width * 2, width * 4)
        self.fc4 = nn.Linear(width * 4, width * 8)
        self.conv1 = nn.Conv2d(16, 32, 3, 1, 1)
        self.conv2 = nn.Conv2d(32, 32, 3, 1, 1)
        self.conv3 = nn.Conv2d(8, 16, 3, 1, 1)
        self.conv4 = nn.Conv2d(16, 16, 3, 1, 1)
        self.conv5 = nn.Conv2d(4, 8, 3, 1, 1)
        self.conv6 = nn.Conv2d(8, 4, 3, 1, 1)
        self.pixel_shuffle = nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 10) to (batch, 128, 128), with 1 where the canvas is unchanged."""
        x = functional.relu(self.fc1(x))
        x = functional.relu(self.fc2(x))
        x = functional.relu(self.fc3(x))
        x = functional.relu(self.fc4(x))
        x = x.view(-1, 16, self.side, self.side)
        x = functional.relu(self.conv1(x))
        x = self.pixel_shuffle(self.conv2(x))
        x = functional.relu(self.conv3(x))
        x = self.pixel_shuffle(self.conv4(x))
        x = functional.relu(self.conv5(x))
        x = self.pixel_shuffle(self.conv6(x))
        x = torch.sigmoid(x)
        return 1 - x.view(-1, self.side * 8, self.side * 8)


def strokes(batch: int = 1, seed: int = 0) -> tuple[Tensor]:
    """Return the parameters of ``batch`` strokes, (batch, 10), between 0 and 1."""
    return (torch.rand(batch, 10, generator=torch.Generator().manual_seed(seed)),)


def _actor(width: int) -> Callable[[], nn.Module]:
    return built(lambda: settle_batch_norm(Actor(width=width), _CANVAS(batch=4, seed=1)))


def _critic(width: int) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = Critic(width=width)
        for module in model.modules():
            if isinstance(module, TReLU):
                nn.init.normal_(module.alpha, std=0.2)  # a threshold of 0 would hide a transform that drops it
        return model

    return built(build)


_SOURCE = "Huang et al. 2019, in the authors' layout; random weights"
_TAGS = {"vision", "paper"}
_CANVAS, _CANVAS_AND_STEP = images(128, 128, channels=9), images(128, 128, channels=12)

register_sizes(
    "learning_to_paint_actor", _SOURCE, _TAGS, (_actor(64), _CANVAS), (_actor(4), _CANVAS), ", a sixteenth as wide"
)
register_sizes(
    "learning_to_paint_critic",
    _SOURCE,
    _TAGS,
    (_critic(64), _CANVAS_AND_STEP),
    (_critic(4), _CANVAS_AND_STEP),
    ", a sixteenth as wide",
)
register_sizes(
    "learning_to_paint_renderer",
    _SOURCE,
    _TAGS,
    (built(lambda: Renderer(512)), strokes),
    (built(lambda: Renderer(32)), strokes),
    ", 32 x 32 pixels",
)
