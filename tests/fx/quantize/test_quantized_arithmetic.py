import random

import pytest
import torch
import torch.nn.functional as F

from fx.quantize import add, arithmetic, dequantize, lookup, max_pool, mul, quantize

LAYOUTS = {
    "dense": lambda: torch.randn(4, 6),
    "transposed": lambda: torch.randn(6, 4).t(),
    "with gaps": lambda: torch.randn(4, 12)[:, ::2],
    "a part": lambda: torch.randn(5, 6)[1:],
    "spread": lambda: torch.randn(4, 1).expand(4, 6),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "empty": lambda: torch.randn(0, 3),
    "one number": lambda: torch.randn(()),
    "large": lambda: torch.randn(3, 70_000),
}


@pytest.fixture(params=["kernels", "without kernels"])
def kernels(request, monkeypatch):
    if request.param == "without kernels":
        monkeypatch.setattr(arithmetic, "has_quantized_tensors", lambda: False)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_integers_are_the_nearest_and_saturate(layout):
    value = LAYOUTS[layout]()
    expected = (value.double() / 0.02).round().add(100).clamp(0, 200)
    quantized = quantize(value, 0.02, 100, highest=200)
    assert quantized.dtype is torch.uint8 and quantized.shape == value.shape
    assert ((quantized - expected).abs() <= 1).all() and (quantized == expected).float().mean().nan_to_num(1.0) > 0.99


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_table_is_looked_up_element_by_element(layout):
    quantized, table = LAYOUTS[layout]().mul(50).to(torch.uint8), torch.randn(256)
    assert torch.equal(lookup(quantized, table), table[quantized.long()])


def test_tables_keep_the_order_of_dimensions_in_memory():
    quantized = torch.zeros(2, 3, 4, 5, dtype=torch.uint8).to(memory_format=torch.channels_last)
    assert lookup(quantized, torch.zeros(256)).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("function, exact", [(add, torch.add), (mul, torch.mul)])
def test_arithmetic_on_integers_is_one_step_off_at_most(function, exact):
    draw = random.Random(0)
    for _ in range(40):
        shape = (2, draw.randint(1, 60), 3)
        shapes = [shape, draw.choice([shape, (1, 3), ()])]
        operands = [torch.randint(0, 256, shape, dtype=torch.uint8) for shape in shapes]
        scales = [draw.uniform(0.001, 0.1) for _ in range(3)]
        zeros = [draw.randint(0, 255) for _ in range(3)]
        highest = draw.choice([255, 255, 200])
        zeros[2] = min(zeros[2], highest)
        quantized = function(*operands, scales[0], zeros[0], scales[1], zeros[1], scales[2], zeros[2], highest)
        in_float = exact(*(dequantize(*quantized) for quantized in zip(operands, scales, zeros, strict=False)))
        assert quantized.dtype is torch.uint8 and quantized.max() <= highest
        assert (quantized.int() - quantize(in_float, scales[2], zeros[2], highest).int()).abs().max() <= 1


def test_integers_survive_a_round_trip():
    quantized = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(quantize(dequantize(quantized, 0.037, 91), 0.037, 91), quantized)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("is_channels_last", [False, True])
def test_the_largest_integers_are_those_of_the_largest_values(dims, is_channels_last):
    quantized = torch.randint(0, 256, (2, 3, *[20] * dims), dtype=torch.uint8)
    quantized = quantized.movedim(-1, 1).contiguous().movedim(1, -1) if is_channels_last else quantized
    sizes = [(number,) * dims for number in (3, 2, 1, 1)]
    expected = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1](quantized.float(), *sizes, True)
    assert torch.equal(max_pool(quantized, *sizes, ceil_mode=True).float(), expected)
