"""Attention modules of torch, which each engine takes apart and takes whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from selection import thorough_except
from torch import Tensor, nn

import fx
from fx.lowering import get_backend
from fx.lowering.tensorrt import TensorRT

X = torch.randn(2, 9, 64, generator=torch.Generator().manual_seed(0))
PADDING = torch.arange(9) > torch.tensor([[6], [8]])


class Block(nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True, **settings)
        self.norm, self.linear = nn.LayerNorm(64), nn.Linear(64, 64)

    def attend(self, x: Tensor, **masks: Any) -> tuple[Tensor, Any]:
        attended, weights = self.attention(x, x, x, **masks)
        return self.linear(torch.relu(self.norm(attended + x))), weights


class Plain(Block):
    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, need_weights=False)[0]


class Weights(Block):
    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        return self.attend(x)


class Padded(Block):
    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.attend(x, key_padding_mask=padding, need_weights=False)[0]


class Causal(Block):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(9, 9, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, attn_mask=self.mask, is_causal=True, need_weights=False)[0]


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = (nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=first) for first in (True, False))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.mark.parametrize(
    "model",
    [Plain(), Plain(bias=False), Weights(), Padded(), Causal(), Encoder()],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize("name", thorough_except(["tensorrt"], ["openvino", "onnxruntime", "tensorrt"]))
def test_attention_of_torch_is_in_one_engine(name: str, model: nn.Module) -> None:
    expect_one_engine(name, model)


@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
def test_attention_with_a_mask_is_in_one_engine(name: str) -> None:
    expect_one_engine(name, Padded())


def expect_one_engine(name: str, model: nn.Module) -> None:
    backend = TensorRT().emulated() if name == "tensorrt" else get_backend(name)
    if backend is None or (why := backend.why_unavailable()) is not None:
        pytest.skip(f"{name}: {'no package' if backend is None else why}")
    inputs = (X, PADDING) if isinstance(model, Padded) else (X,)
    captured = fx.symbolic_trace(model.eval())
    with torch.no_grad():
        lowered = fx.lower(captured, backend, inputs)
        outputs, expected = lowered(*inputs), model(*inputs)
    coverage = lowered.meta["lowering"]
    assert len(coverage.parts) == 1
    assert all(each.flops in (0, None) for each in coverage.placements if each.region is None)  # checks
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
    assert not any(isinstance(module, nn.MultiheadAttention) for module in lowered.modules())


def test_attention_that_no_backend_takes_apart_stays_one_call() -> None:
    captured = fx.symbolic_trace(Plain().eval())
    with torch.no_grad():
        lowered = fx.lower(captured, "onednn", (X.repeat(8, 8, 1),))
    assert any(isinstance(module, nn.MultiheadAttention) for module in lowered.modules())
