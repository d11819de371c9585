"""Blocks of the shapes that torchvision and timm have, for faults to be planted in; each line does one thing.

A factory is named for its block on the command line: ``planted_models:residual`` and so on.
"""

import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    """The basic block of a ResNet, with a projection beside it."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6, eps=1e-3)
        self.project, self.norm = nn.Conv2d(4, 6, 1, bias=False), nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.bn1(self.conv1(x))
        out = self.relu(out)
        out = self.bn2(self.conv2(out))
        shortcut = self.norm(self.project(x))
        out += shortcut
        return self.relu(out)


class ConvNeXt(nn.Module):
    """A depthwise convolution and a perceptron in channels last, scaled by a parameter, beside a shortcut."""

    def __init__(self):
        super().__init__()
        self.depthwise = nn.Conv2d(4, 4, 7, padding=3, groups=4)
        self.norm = nn.LayerNorm(4, eps=1e-6)
        self.up, self.act, self.down = nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4)
        self.gamma = nn.Parameter(torch.rand(4) + 0.5)

    def forward(self, x):
        shortcut = x
        x = self.depthwise(x)
        x = x.permute(0, 2, 3, 1)
        x = self.norm(x)
        x = self.up(x)
        x = self.act(x)
        x = self.down(x)
        x = self.gamma * x
        x = x.permute(0, 3, 1, 2)
        return shortcut + x


class Attention(nn.Module):
    """A block of a vision transformer: attention and a perceptron, each behind a norm and beside a shortcut."""

    def __init__(self, heads=2, width=8):
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        shortcut = x
        x = self.norm1(x)
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        query = query * self.scale
        scores = query @ key.transpose(-2, -1)
        weights = scores.softmax(dim=-1)
        x = weights @ value
        x = x.transpose(1, 2).reshape(batch, length, width)
        x = self.proj(x)
        x = shortcut + x
        hidden = self.fc1(self.norm2(x))
        hidden = functional.gelu(hidden)
        return x + self.fc2(hidden)


class SqueezeExcite(nn.Module):
    """Channels are weighted by a function of the image's mean."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.reduce, self.expand = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)

    def forward(self, x):
        x = functional.silu(self.bn(self.conv(x)))
        squeezed = x.mean((2, 3), keepdim=True)
        squeezed = self.reduce(squeezed)
        squeezed = functional.relu(squeezed)
        gate = self.expand(squeezed)
        gate = torch.sigmoid(gate)
        return x * gate


class Inception(nn.Module):
    """Parallel branches with concatenated channels."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(3, 4, 1)
        self.three, self.three_norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.five = nn.Conv2d(3, 4, 5, padding=2)
        self.pooled = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        by_one = torch.relu(self.one(x))
        three = self.three(x)
        three = self.three_norm(three)
        three = torch.relu(three)
        five = torch.relu(self.five(x))
        pooled = functional.avg_pool2d(x, 3, stride=1, padding=1)
        pooled = torch.relu(self.pooled(pooled))
        joined = torch.cat([by_one, three, five, pooled], 1)
        return joined.mean((2, 3))


class InPlace(nn.Module):
    """Layers as in NFNets: the output of an activation is scaled in place."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        hidden.mul_(0.5)
        hidden = self.second(hidden)
        gated = torch.sigmoid(hidden)
        hidden.relu_()
        hidden = hidden + gated
        hidden.add_(1.0)
        return self.third(hidden)


class Inverted(nn.Module):
    """An inverted residual of MobileNetV3."""

    def __init__(self):
        super().__init__()
        self.expand, self.expand_norm = nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.depthwise, self.depthwise_norm = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8)
        self.reduce, self.reduce_norm = nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.act = nn.Hardswish()

    def forward(self, x):
        out = self.expand(x)
        out = self.expand_norm(out)
        out = self.act(out)
        out = self.depthwise(out)
        out = self.depthwise_norm(out)
        out = self.act(out)
        out = self.reduce(out)
        out = self.reduce_norm(out)
        return x - out


def _made(block, *shape):
    torch.manual_seed(0)
    module = block()
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.05, 2)
            layer.weight.data.uniform_(0.5, 2)
            layer.bias.data.normal_()
    return module.eval(), torch.randn(*shape)


def residual():
    return _made(Residual, 2, 4, 7, 7)


def convnext():
    return _made(ConvNeXt, 2, 4, 8, 8)


def attention():
    return _made(Attention, 2, 5, 8)


def squeeze_excite():
    return _made(SqueezeExcite, 2, 3, 6, 6)


def inception():
    return _made(Inception, 2, 3, 6, 6)


def in_place():
    return _made(InPlace, 4, 6)


def inverted():
    return _made(Inverted, 2, 4, 6, 6)
