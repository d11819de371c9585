"""Numbers that programs compute from sizes, and tensors that they create from numbers, do not cut engines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fx
from fx.lowering import get_backend
from fx.lowering.tensorrt import TensorRT

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
BACKENDS = ["openvino", "onnxruntime", "tensorrt"]
WINDOW, SHIFT = 4, 2


class ShiftedWindows(nn.Module):
    """Attention within windows of a padded and rolled image, with a mask that depends on the size of the image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        below, right = (WINDOW - height % WINDOW) % WINDOW, (WINDOW - width % WINDOW) % WINDOW
        x = F.pad(x, (0, 0, 0, right, 0, below))
        _, padded_height, padded_width, _ = x.shape
        x = torch.roll(x, shifts=(-SHIFT, -SHIFT), dims=(1, 2))
        windows = self.divided(x, padded_height, padded_width)
        q, k, v = (self.qkv(windows) * channels**-0.5).chunk(3, -1)
        scores = q @ k.transpose(-2, -1)
        places = x.new_zeros((padded_height, padded_width))
        count = 0
        for rows in ((0, -WINDOW), (-WINDOW, -SHIFT), (-SHIFT, None)):
            for columns in ((0, -WINDOW), (-WINDOW, -SHIFT), (-SHIFT, None)):
                places[rows[0] : rows[1], columns[0] : columns[1]] = count
                count += 1
        places = self.divided(places[None, :, :, None], padded_height, padded_width).squeeze(-1)
        mask = places.unsqueeze(1) - places.unsqueeze(2)
        mask = mask.masked_fill(mask != 0, -100.0).masked_fill(mask == 0, 0.0)
        scores = scores.view(batch, windows.size(0) // batch, WINDOW * WINDOW, -1) + mask
        attended = self.out(torch.softmax(scores, -1) @ v.view(batch, -1, WINDOW * WINDOW, channels))
        rows = attended.view(batch, padded_height // WINDOW, padded_width // WINDOW, WINDOW, WINDOW, channels)
        image = rows.permute(0, 1, 3, 2, 4, 5).reshape(batch, padded_height, padded_width, channels)
        return torch.roll(image, (SHIFT, SHIFT), (1, 2))[:, :height, :width] * 2

    def divided(self, x: Tensor, height: Any, width: Any) -> Tensor:
        x = x.view(x.size(0), height // WINDOW, WINDOW, width // WINDOW, WINDOW, x.size(3))
        return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW * WINDOW, x.size(5))


class WholeTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.transformer = nn.Transformer(16, 2, 2, 2, 32, batch_first=True)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(7))

    def forward(self, source: Tensor, target: Tensor, padding: Tensor) -> Tensor:
        masks = {"tgt_mask": self.mask, "src_key_padding_mask": padding, "memory_key_padding_mask": padding}
        return self.transformer(source, target, **masks)


def lowered_to(name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> fx.GraphModule:
    backend = TensorRT(emulate=True) if name == "tensorrt" else get_backend(name)
    if (why := backend.why_unavailable()) is not None:
        pytest.skip(f"{name}: {why}")
    with torch.no_grad():
        lowered = fx.lower(fx.capture(module.eval(), inputs), backend, inputs)
    coverage = lowered.meta["lowering"]
    assert (len(coverage.parts), coverage.flop_share) == (1, 1.0), str(coverage)
    return lowered


def assert_same(lowered: nn.Module, module: nn.Module, *inputs: Tensor) -> None:
    with torch.no_grad():
        for _ in range(2):  # an engine may write into the memory of its constants
            torch.testing.assert_close(lowered(*inputs), module(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_in_shifted_windows_is_in_one_engine(backend: str) -> None:
    module, x = ShiftedWindows(), torch.randn(2, 9, 11, 8)
    lowered = lowered_to(backend, module, (x,))
    assert_same(lowered, module, x)
    assert [node.target for node in lowered.graph.nodes if node.op == "call_module"] == [f"{backend}_0"]


@pytest.mark.parametrize(
    "size",
    [(2, 14, 11, 8), pytest.param((3, 14, 10, 8), marks=pytest.mark.thorough)],  # three free sizes take a minute
)
@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_images_of_other_sizes_get_other_masks(backend: str, size: tuple[int, ...]) -> None:
    module = ShiftedWindows()
    lowered = lowered_to(backend, module, (torch.randn(2, 9, 11, 8),))
    assert_same(lowered, module, torch.randn(size))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_transformer_with_masks_is_in_one_engine(backend: str) -> None:
    padding = torch.arange(9) > torch.tensor([[8], [5]])
    inputs = torch.randn(2, 9, 16), torch.randn(2, 7, 16), padding
    module = WholeTransformer()
    assert_same(lowered_to(backend, module, inputs), module, *inputs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_assignments_that_eager_sees_stay_in_python(backend: str) -> None:
    def function(x: Tensor, cache: Tensor) -> Tensor:
        cache[:, 1:3] = torch.relu(x[:, :2] * 2) + 1
        return torch.relu(cache * 3 + 1).exp()

    captured = fx.symbolic_trace(function)
    target = TensorRT(emulate=True) if backend == "tensorrt" else get_backend(backend)
    x, cache = torch.randn(2, 4), torch.zeros(2, 4)
    lowered = fx.lower(captured, target, (x, cache), min_size=1)
    expected_cache, actual_cache = torch.zeros(2, 4), torch.zeros(2, 4)
    torch.testing.assert_close(lowered(x, actual_cache), function(x, expected_cache))
    torch.testing.assert_close(actual_cache, expected_cache)
    assert "writes to" in str(lowered.meta["lowering"])


def test_numbers_that_vary_from_run_to_run_do_not_create_constants_of_tensorrt() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.relu(x * 2) + x.new_ones(x.size(0), 1)

    backend = TensorRT(emulate=True, ranges={"x": {0: (2, 5)}})
    lowered = fx.lower(fx.symbolic_trace(function), backend, (torch.randn(3, 4),), min_size=1)
    assert "it depends on sizes that vary" in str(lowered.meta["lowering"])
    for batch in (2, 5):
        x = torch.randn(batch, 4)
        torch.testing.assert_close(lowered(x), function(x))
