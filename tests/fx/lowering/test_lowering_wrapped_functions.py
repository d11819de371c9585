"""Functions marked ``fx.wrap`` do not cut the regions of TensorRT, unless they do more than compute their result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from building import Calling
from torch import Tensor, nn

import fx
from fx.lowering import OneDNN, TensorRT

COUNTS = [0]


@fx.wrap
def drop_path(x: Tensor, p: float, training: bool) -> Tensor:
    """As torchvision's stochastic depth: the identity in evaluation mode."""
    if not training or p == 0.0:
        return x
    return x * torch.bernoulli(torch.full((x.shape[0], 1, 1, 1), 1 - p)) / (1 - p)


@fx.wrap
def halves(x: Tensor, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    if x.shape[1] % 2:
        return x, x * scale
    half = x.shape[1] // 2
    return x[:, :half] * scale, drop_path(x[:, half:], 0.5, False)


@fx.wrap
def counted(x: Tensor) -> Tensor:
    COUNTS[0] += 1
    return x * 2


@fx.wrap
def printed(x: Tensor) -> Tensor:
    print("called")
    return x * 2


@fx.wrap
def branching(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x * 3


def blocks(function: Any) -> nn.Module:
    """Two convolutions around a function."""

    def forward(self: Any, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return torch.relu(self.second(function(x)) + x)

    return Calling(forward, first=nn.Conv2d(4, 4, 3, padding=1), second=nn.Conv2d(4, 4, 3, padding=1)).eval()


IMAGES = torch.randn(2, 4, 6, 6)


@pytest.mark.parametrize(
    "function",
    [lambda x: drop_path(x, 0.1, False), lambda x: halves(x)[0].repeat_interleave(2, 1) + halves(x)[1].sum(1, True)],
)
def test_a_function_that_only_computes_does_not_cut_the_region(function: Any) -> None:
    pytest.importorskip("tensorrt_rtx")
    program = fx.symbolic_trace(blocks(function))
    lowered = fx.lower(program, TensorRT(emulate=True), (IMAGES,))
    assert len(lowered.meta["lowering"].parts) == 1, str(lowered.meta["lowering"])
    torch.testing.assert_close(lowered(IMAGES), program(IMAGES))


@pytest.mark.parametrize(
    "name, function",
    [("counted", lambda x: counted(x)), ("printed", lambda x: printed(x)), ("branching", lambda x: branching(x))],
)
def test_a_function_that_does_more_stays_whole(name: str, function: Any) -> None:
    before = COUNTS[0]
    coverage = fx.lower(fx.symbolic_trace(blocks(function)), TensorRT(), (IMAGES,), dry_run=True)
    assert name in [placement.target.rpartition(".")[2] for placement in coverage.refused]
    assert COUNTS[0] == before


def test_other_backends_leave_functions_whole() -> None:
    program = fx.symbolic_trace(blocks(lambda x: drop_path(x, 0.1, False)))
    coverage = fx.lower(program, OneDNN(), (IMAGES,), dry_run=True)
    assert "drop_path" in " ".join(placement.target for placement in coverage.refused)
