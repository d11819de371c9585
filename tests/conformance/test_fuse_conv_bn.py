"""Folded layers compared with those of torch: the same programs and the same weights."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from building import Calling, settle
from torch import nn

import fx
from fx.passes import FuseConvBN
from fx.passes.shape_prop import ShapeProp

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, which that module still uses
    from torch.fx.experimental import optimization


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.conv2, self.bn2 = nn.Conv2d(3, 3, 1, groups=3), nn.BatchNorm2d(3)
        self.bn3 = nn.BatchNorm2d(3)

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return self.bn3(y + x)


MODELS = {
    "residual": (Residual, (3, 6, 6)),
    "1d": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU()), (2, 6)),
    "3d": (lambda: nn.Sequential(nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4)), (2, 4, 4, 4)),
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU()), (2, 3)),
}


@pytest.mark.parametrize("build, size", MODELS.values(), ids=MODELS.keys())
def test_programs_and_weights_are_those_of_torch(build: Any, size: tuple[int, ...]) -> None:
    model = settle(build())
    x = torch.randn(2, *size)
    program = fx.symbolic_trace(model)
    ShapeProp(program).propagate(x)  # which spares the check that a convolution in one dimension gets a batch
    ours, theirs = FuseConvBN()(program), optimization.fuse(model)
    assert [(n.op, n.name, n.target) for n in ours.graph.nodes] == [
        (n.op, n.name, n.target) for n in theirs.graph.nodes
    ]
    expected = {name: tensor for name, tensor in theirs.state_dict().items() if name in ours.state_dict()}
    torch.testing.assert_close(dict(ours.state_dict()), expected)
    torch.testing.assert_close(ours(x), theirs(x))


def test_a_convolution_that_is_used_twice_is_right_here_and_wrong_there() -> None:
    model = settle(
        Calling(lambda self, x: self.bn(self.conv(self.conv(x))), conv=nn.Conv2d(2, 2, 1), bn=nn.BatchNorm2d(2))
    )
    x = torch.randn(1, 2, 3, 3)
    torch.testing.assert_close(FuseConvBN()(fx.symbolic_trace(model))(x), model(x))
    assert not torch.allclose(optimization.fuse(model)(x), model(x))


def test_a_linear_layer_on_three_dimensions_is_refused_here_and_silently_wrong_there() -> None:
    model = settle(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    x = torch.randn(2, 4, 4)
    with pytest.raises(AssertionError, match="holds only where _0 has 2 dimensions"):
        FuseConvBN()(fx.symbolic_trace(model))(x)
    torch.testing.assert_close(FuseConvBN(checked=False)(fx.symbolic_trace(model))(x), model(x))
    assert not torch.allclose(optimization.fuse(model)(x), model(x))
