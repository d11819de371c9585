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
def test_whole_numbers_are_the_nearest_and_saturate(layout):
    value = LAYOUTS[layout]()
    expected = (value.double() / 0.02).round().add(100).clamp(0, 200)
    whole = quantize(value, 0.02, 100, highest=200)
    assert whole.dtype is torch.uint8 and whole.shape == value.shape
    assert ((whole - expected).abs() <= 1).all() and (whole == expected).float().mean().nan_to_num(1.0) > 0.99


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_table_is_looked_up_element_by_element(layout):
    whole, table = LAYOUTS[layout]().mul(50).to(torch.uint8), torch.randn(256)
    assert torch.equal(lookup(whole, table), table[whole.long()])


def test_tables_keep_the_order_of_dimensions_in_memory():
    whole = torch.zeros(2, 3, 4, 5, dtype=torch.uint8).to(memory_format=torch.channels_last)
    assert lookup(whole, torch.zeros(256)).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("function, exact", [(add, torch.add), (mul, torch.mul)])
def test_arithmetic_on_whole_numbers_is_one_step_off_at_most(function, exact):
    draw = random.Random(0)
    for _ in range(40):
        shape = (2, draw.randint(1, 60), 3)
        shapes = [shape, draw.choice([shape, (1, 3), ()])]
        operands = [torch.randint(0, 256, one, dtype=torch.uint8) for one in shapes]
        scales = [draw.uniform(0.001, 0.1) for _ in range(3)]
        zeros = [draw.randint(0, 255) for _ in range(3)]
        highest = draw.choice([255, 255, 200])
        zeros[2] = min(zeros[2], highest)
        whole = function(*operands, scales[0], zeros[0], scales[1], zeros[1], scales[2], zeros[2], highest)
        real = exact(*(dequantize(*one) for one in zip(operands, scales, zeros, strict=False)))
        assert whole.dtype is torch.uint8 and whole.max() <= highest
        assert (whole.int() - quantize(real, scales[2], zeros[2], highest).int()).abs().max() <= 1


def test_whole_numbers_stay_what_they_are_there_and_back():
    whole = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(quantize(dequantize(whole, 0.037, 91), 0.037, 91), whole)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("is_channels_last", [False, True])
def test_the_largest_whole_numbers_are_those_of_the_largest_values(dims, is_channels_last):
    whole = torch.randint(0, 256, (2, 3, *[20] * dims), dtype=torch.uint8)
    whole = whole.movedim(-1, 1).contiguous().movedim(1, -1) if is_channels_last else whole
    sizes = [(number,) * dims for number in (3, 2, 1, 1)]
    expected = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1](whole.float(), *sizes, True)
    assert torch.equal(max_pool(whole, *sizes, ceil_mode=True).float(), expected)
