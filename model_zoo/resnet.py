"""ResNet50 v1.5, the paper's example in sections 6.1 and 6.2 and appendices C and D, and a small sibling for tests.

He et al., "Deep Residual Learning for Image Recognition" (2015); v1.5 moves the stride of a downsampling block from its
first convolution to the 3x3 one. Names of parameters and buffers, the order of layers and their initialisation are
torchvision's, so that its checkpoints load and equal seeds give equal weights.
"""

# No postponed annotations here: a program that is captured from a model carries the types of its forward.

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from model_zoo.registered_models import register_model
from model_zoo.zoo_model import ExampleInputs, ZooModel, built, settle_batch_norm


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, each normalized, with a shortcut; ``planes * 4`` channels come out."""

    expansion = 4
    """The number of output channels by the channels of the 3x3 convolution, at a base width of 64."""

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        downsample: nn.Module | None = None,
        groups: int = 1,
        base_width: int = 64,
    ) -> None:
        super().__init__()
        width = int(planes * base_width / 64) * groups
        self.conv1 = nn.Conv2d(inplanes, width, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, stride=stride, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, planes * self.expansion, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inplanes, height, width) to (batch, planes * 4, height / stride, width / stride)."""
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """A stem, four stages of :class:`Bottleneck` blocks, a mean over the image and a linear classifier."""

    def __init__(
        self,
        layers: Sequence[int],
        num_classes: int = 1000,
        zero_init_residual: bool = False,
        groups: int = 1,
        width_per_group: int = 64,
        stem_width: int = 64,
    ) -> None:
        """``layers`` counts the blocks of each stage; stage k has ``stem_width * 2**k`` planes."""
        super().__init__()
        self.inplanes = stem_width
        self.groups = groups
        self.base_width = width_per_group
        self.conv1 = nn.Conv2d(3, stem_width, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(stem_width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._make_layer(stem_width, layers[0], stride=1)
        self.layer2 = self._make_layer(stem_width * 2, layers[1], stride=2)
        self.layer3 = self._make_layer(stem_width * 4, layers[2], stride=2)
        self.layer4 = self._make_layer(stem_width * 8, layers[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(stem_width * 8 * Bottleneck.expansion, num_classes)
        self._initialize(zero_init_residual)

    def _make_layer(self, planes: int, blocks: int, stride: int) -> nn.Sequential:
        """Return a stage; only its first block changes the size, so only that one needs a shortcut with weights."""
        downsample: nn.Module | None = None
        outplanes = planes * Bottleneck.expansion
        if stride != 1 or self.inplanes != outplanes:
            convolution = nn.Conv2d(self.inplanes, outplanes, kernel_size=1, stride=stride, bias=False)
            downsample = nn.Sequential(convolution, nn.BatchNorm2d(outplanes))
        stage = [Bottleneck(self.inplanes, planes, stride, downsample, self.groups, self.base_width)]
        self.inplanes = outplanes
        for _ in range(1, blocks):
            stage.append(Bottleneck(outplanes, planes, groups=self.groups, base_width=self.base_width))
        return nn.Sequential(*stage)

    def _initialize(self, zero_init_residual: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
        if zero_init_residual:
            for module in self.modules():
                if isinstance(module, Bottleneck):
                    nn.init.zeros_(module.bn3.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map images, (batch, 3, height, width), to class scores, (batch, num_classes)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet50(num_classes: int = 1000) -> ResNet:
    """Return a new ResNet50 v1.5 in training mode, with weights drawn from the global random state."""
    return ResNet([3, 4, 6, 3], num_classes=num_classes)


def images(height: int, width: int, channels: int = 3) -> ExampleInputs:
    """Return a maker of one normally distributed batch of images, (batch, channels, height, width)."""

    def example_inputs(batch: int = 1, seed: int = 0) -> tuple[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return (torch.randn(batch, channels, height, width, generator=generator),)

    return example_inputs


register_model(
    ZooModel(
        name="resnet50",
        build=built(lambda: settle_batch_norm(resnet50(), images(160, 160)(batch=2, seed=1))),
        example_inputs=images(224, 224),
        source="He et al. 2015, v1.5, in torchvision's layout; random weights, batch norm settled on random images",
        tags=frozenset({"vision", "paper"}),
        small="resnet_tiny",
    )
)
register_model(
    ZooModel(
        name="resnet_tiny",
        build=built(
            lambda: settle_batch_norm(
                ResNet([1, 2, 1, 1], num_classes=10, stem_width=8), images(32, 32)(batch=8, seed=1)
            )
        ),
        example_inputs=images(32, 32),
        source="resnet50 with five blocks and an eighth of the channels",
        tags=frozenset({"vision", "small"}),
    )
)
