"""Programs that clients are tried on."""

from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from .sides import Side


class Network(nn.Module):
    """A convolution with a norm, dropout, and a linear layer whose input is added to itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.norm, self.dropout = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout()
        self.linear = nn.Linear(2, 3)

    def forward(self, x):  # our Transformers keep annotations, torch.fx's drop them
        x = self.dropout(torch.relu(self.norm(self.convolution(x)))).mean((2, 3))
        return self.linear(x + x) * 2


FAKE = FakeTensorMode(allow_non_fake_inputs=True)
X = torch.linspace(-1, 1, 32).reshape(2, 1, 4, 4)


def program(side: Side) -> Any:
    return side.library.symbolic_trace(Network().eval())


def vector(side: Side) -> Any:
    """A program of functions on one vector, with a branch that joins again."""

    def function(x):
        a = torch.relu(x)
        b = torch.sigmoid(a) + 1
        return torch.cat([a.neg(), torch.tanh(b)]).sum(0)

    return side.library.symbolic_trace(function)


V = torch.tensor([[-1.0, 2.0]])
