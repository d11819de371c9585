"""The vision transformer (Dosovitskiy et al. 2021): an image as a sequence of patches after a class token.

The full size is that of the smallest version, ViT-Ti/16 (Touvron et al. 2021, Steiner et al. 2022): 12 layers of width
192, 5,717,416 parameters. Names and order are timm's, so that its checkpoints load.
"""

# No postponed annotations here: a program that is captured from a model carries the types of its forward.

import torch
from torch import Tensor, nn

from model_zoo.registered_models import register_sizes
from model_zoo.resnet import images
from model_zoo.zoo_model import built, vary_vectors

_EPSILON = 1e-6
"""The epsilon of the layer norms."""


class PatchEmbedding(nn.Module):
    """A vector for each patch of an image, computed by one convolution."""

    def __init__(self, width: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, kernel_size=patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 3, height, width) to (batch, patches, features)."""
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Multi-head attention, written out: one projection, split in three, and two products."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same."""
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        weights = (query * self.scale @ key.transpose(-2, -1)).softmax(dim=-1)
        return self.proj((weights @ value).transpose(1, 2).reshape(batch, length, width))


class ViTPerceptron(nn.Module):
    """Two linear layers with a hidden layer four times as wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same."""
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """Attention and a feed-forward network, each after a layer norm and with a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=_EPSILON)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=_EPSILON)
        self.mlp = ViTPerceptron(width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """A classifier of images on the output of the class token."""

    def __init__(self, image: int, patch: int, width: int, heads: int, layers: int, classes: int) -> None:
        """Make the network; ``image`` and ``patch`` are the side lengths of both, in pixels."""
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.patch_embed = PatchEmbedding(width, patch)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width, eps=_EPSILON)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images, (batch, 3, image, image), to class scores, (batch, classes)."""
        patches = self.patch_embed(x)
        x = torch.cat([self.cls_token.expand(patches.size(0), -1, -1), patches], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


_SOURCE = "Dosovitskiy et al. 2021, as ViT-Ti/16 of Touvron et al. 2021; random weights"

register_sizes(
    "vit",
    _SOURCE,
    {"vision", "transformer"},
    (
        built(lambda: vary_vectors(VisionTransformer(224, 16, width=192, heads=3, layers=12, classes=1000))),
        images(224, 224),
    ),
    (
        built(lambda: vary_vectors(VisionTransformer(16, 4, width=16, heads=2, layers=2, classes=10))),
        images(16, 16),
    ),
    ", cut to 2 layers of 16 on images of 16 pixels",
)
