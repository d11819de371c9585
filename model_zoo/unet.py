"""A network like U-Net (Ronneberger et al. 2015) with several outputs: a mask at each scale, by name."""

# No postponed annotations here: a program that is captured from a model carries the types of its forward.

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from model_zoo.registered_models import register_sizes
from model_zoo.resnet import images
from model_zoo.zoo_model import ExampleInputs, built, settle_batch_norm


class DoubleConvolution(nn.Sequential):
    """Two 3x3 convolutions, each normalized and rectified."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, out_channels, 3, padding=1),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 3, padding=1),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """A network that halves an image in steps and enlarges it again, with a shortcut at every scale."""

    def __init__(self, channels: int, width: int, depth: int, classes: int) -> None:
        """Make the network.

        Args:
            channels: channels of the image.
            width: channels at full resolution; they double at each of the ``depth`` steps.
            depth: number of halvings of the image.
            classes: channels of each mask.
        """
        super().__init__()
        widths = [width * 2**step for step in range(depth + 1)]
        self.stem = DoubleConvolution(channels, width)
        self.down = nn.ModuleList([DoubleConvolution(a, b) for a, b in itertools.pairwise(widths)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(w * 2, w, 2, stride=2) for w in reversed(widths[:-1])])
        self.join = nn.ModuleList([DoubleConvolution(w * 2, w) for w in reversed(widths[:-1])])
        self.heads = nn.ModuleList([nn.Conv2d(w, classes, 1) for w in reversed(widths[:-1])])

    def forward(self, x: Tensor) -> dict[str, Tensor | list[Tensor]]:
        """Map images, (batch, channels, height, width), to ``mask``, (batch, classes, height, width), and ``coarse``.

        ``coarse`` lists the masks at lower resolutions, the smallest first.
        """
        shortcuts: list[Tensor] = []
        x = self.stem(x)
        for block in self.down:
            shortcuts.append(x)
            x = block(functional.max_pool2d(x, 2))
        masks: list[Tensor] = []
        for up, join, head in zip(self.up, self.join, self.heads, strict=True):
            x = join(torch.cat([up(x), shortcuts.pop()], dim=1))
            masks.append(head(x))
        return {"mask": masks[-1], "coarse": masks[:-1]}


def _unet(width: int, depth: int, example_inputs: ExampleInputs) -> Callable[[], nn.Module]:
    return built(lambda: settle_batch_norm(UNet(3, width, depth, classes=4), example_inputs(batch=2, seed=1)))


register_sizes(
    "unet",
    "after Ronneberger et al. 2015, with transposed convolutions and a mask at each scale; random weights",
    {"vision"},
    (_unet(32, 4, images(128, 128)), images(128, 128)),
    (_unet(4, 2, images(16, 16)), images(16, 16)),
)
