"""Programs that are modules: state, hierarchy, sharing, containers and leaves."""

from __future__ import annotations

import functools
from collections import OrderedDict

import torch
import torch.nn.functional as functional
from torch import nn

from .programs import image, integers, matrix, program, vector


@program(matrix)
class ParameterAndBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))
        self.register_buffer("offset", torch.randn(6))
        self.register_buffer("scratch", torch.randn(6), persistent=False)

    def forward(self, x):
        return x * self.weight + self.offset + self.scratch, self.offset, self.weight


@program(matrix)
class PlainTensorAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.randn(6)
        self.child = nn.Module()
        self.child.table = torch.randn(6)

    def forward(self, x):
        return x + self.table + self.child.table + self.table + torch.ones(6)


@program(matrix)
class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.activation = nn.ReLU()
        self.second = nn.Linear(8, 3, bias=False)

    def forward(self, x):
        return self.second(self.activation(self.first(x)))


class Block(nn.Module):
    """A residual block that is traced through."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x, scale=1.0):
        return x + torch.tanh(self.norm(self.linear(x))) * scale


@program(matrix)
class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.outer = nn.Module()
        self.outer.block = Block(6)
        self.again = Block(6)

    def forward(self, x):
        return self.again(self.outer.block(x, scale=0.5))


@program(matrix)
class CalledTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block(6)
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return self.block(self.linear(self.block(self.linear(x)))) + self.block.linear(x)


@program(matrix)
class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = self.first
        self.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x)) @ self.weight


@program(matrix)
class Containers(nn.Module):
    def __init__(self):
        super().__init__()
        self.stack = nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.ReLU(), nn.Linear(6, 6)))
        self.listed = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.mapped = nn.ModuleDict({"one": nn.Sigmoid(), "other": nn.Tanh()})

    def forward(self, x):
        x = self.stack(x)
        for index, layer in enumerate(self.listed):
            x = layer(x) + index
        return self.mapped["one"](x) + self.mapped["other"](x) + self.stack[1][0](x)


@program(matrix)
class Named(nn.Sequential):
    def __init__(self):
        super().__init__(
            OrderedDict([("fully_connected", nn.Linear(6, 4)), ("Activation", nn.ReLU()), ("fc2", nn.Linear(4, 2))])
        )


@program(matrix)
class OddNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module("my layer", nn.Linear(6, 6))
        self.add_module("sum", nn.ReLU())
        self.add_module("0", nn.Linear(6, 6))
        self.register_buffer("a-b", torch.ones(6))
        self.UPPER = nn.Identity()
        self.inputLayer = nn.Identity()

    def forward(self, x):
        x = self.sum(getattr(self, "my layer")(x))
        return self.inputLayer(self.UPPER(getattr(self, "0")(x))) + getattr(self, "a-b")


@program(image)
class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.drop = nn.Dropout(0.5)
        self.classifier = nn.Linear(4, 2)

    def forward(self, x):
        x = torch.flatten(self.pool(self.features(x)), 1)
        return functional.log_softmax(self.classifier(self.drop(x)), dim=1)


@program(image)
class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.downsample = None

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.conv(x)
        out += identity
        return out


@program(matrix)
class FunctionalState(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_parameter("absent", None)
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(3)) for _ in range(2)])

    def forward(self, x):
        x = functional.linear(x, self.linear.weight, self.linear.bias)
        return x * self.weights[0] + self.weights[1], self.linear.weight.shape[0], self.linear.weight.t()


@program(integers)
class Embeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 6)
        self.out = nn.Linear(6, 8)
        self.out.weight = self.embedding.weight

    def forward(self, tokens):
        return self.out(self.embedding(tokens))


@program(matrix)
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 5, batch_first=True)

    def forward(self, x):
        output, (hidden, cell) = self.lstm(x.unsqueeze(0))
        return output, hidden + cell


@program(matrix)
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


@program(matrix)
class ModuleFlags(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 3
        self.options = {"shift": 0.5}
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        x = self.linear(x) * self.scale + self.options["shift"]
        return x if not self.training else x.neg()


@program(matrix, keywords={"scale": 0.5})
class KeywordSignature(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor, *, scale: float = 2.0) -> torch.Tensor:
        return self.linear(input=x) * scale


class Doubling(nn.Module):
    """A module with its own ``__call__``."""

    def __call__(self, x):
        return super().__call__(x * 2)

    def forward(self, x):
        return x.relu()


@program(vector)
class CustomCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Doubling()

    def forward(self, x):
        return self.inner(x) + 1


def logged(method):
    """Decorate a forward with its signature kept."""

    @functools.wraps(method)
    def decorated(self, *args, **kwargs):
        return method(self, *args, **kwargs)

    return decorated


@program(matrix)
class DecoratedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)

    @logged
    def forward(self, x, shift=1):
        return self.linear(x) + shift


class Pair(nn.Module):
    """Returns a nested result that its caller takes apart."""

    def forward(self, x):
        return {"plus": x + 1, "minus": (x - 1, x)}


@program(vector)
class StructuredChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.pair = Pair()

    def forward(self, x):
        result = self.pair(x)
        first, second = result["minus"]
        return result["plus"] * first + second


class Inherited(Layers):
    """Calls its parent's forward."""

    def forward(self, x):
        return super().forward(x) * 2


program(matrix)(Inherited)


@program(matrix)
class OtherMethods(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def embed(self, x):
        return self.linear(x).relu()

    def forward(self, x):
        return self.embed(x) + self.linear.forward(x)


@program(matrix)
class LeavesWithOptions(nn.Module):
    def __init__(self):
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)
        self.flatten = nn.Flatten(0)
        self.unflatten = nn.Unflatten(0, (4, 6))
        self.group = nn.GroupNorm(2, 6)
        self.prelu = nn.PReLU()

    def forward(self, x):
        x = self.unflatten(self.flatten(self.softmax(x)))
        return self.prelu(self.group(x) - 1)


@program(matrix, pickles=False)
class Parametrized(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))

    def forward(self, x):
        return self.linear(x)
