import copy
import io
import pickle
import random
import warnings

import pytest
import torch
from step_check import filled

from fx.errors import QuantizationError
from fx.quantize import Affine, QuantizedConv, QuantizedLinear, dequantize, quantize

BOUNDS = [(None, None), (0.0, None), (0.0, 6.0), (-1.0, 1.0)]


def draw_affine(draw):
    return draw.choice([Affine(draw.uniform(0.001, 0.3), draw.randint(0, 255)), Affine(0.1, 5, 15)])


def assert_like_its_reference(layer, shape, draw):
    """One step at most between integers, rounding of float32 between float values."""
    input = torch.randint(0, 256, shape, dtype=torch.uint8)
    source, (low, high) = draw_affine(draw), draw.choice(BOUNDS)
    expected = layer._reference(dequantize(input, source.scale, source.zero_point))
    expected = expected if low is high is None else expected.clamp(low, high)
    in_float = layer(input, source.scale, source.zero_point, low=low, high=high)
    assert in_float.dtype is torch.float32 and in_float.shape == expected.shape
    assert torch.allclose(
        in_float, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()) if in_float.numel() else 0
    )
    output = draw_affine(draw)
    quantized = layer(
        input, source.scale, source.zero_point, output.scale, output.zero_point, output.highest, low=low, high=high
    )
    assert quantized.dtype is torch.uint8
    difference = quantized.int() - quantize(expected, **output.settings).int()
    assert not difference.numel() or difference.abs().max() <= 1


@pytest.mark.parametrize("seed", range(25))
def test_linear_on_integers_matches_its_reference(seed):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    inputs, outputs = draw.randint(1, 70), draw.randint(1, 40)
    layer = filled(QuantizedLinear(inputs, outputs, draw.random() < 0.5))
    assert_like_its_reference(layer, draw.choice([(inputs,), (3, inputs), (2, 3, inputs), (0, inputs)]), draw)


@pytest.mark.parametrize("seed", range(60))
def test_convolution_on_integers_matches_its_reference(seed):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    dims, groups = 1 + seed % 3, draw.choice([1, 1, 2, 4])
    channels = groups * draw.randint(1, 5), groups * draw.randint(1, 5)
    if seed % 5 == 0:
        channels, groups = (8, 8), 8
    sizes = [[draw.randint(least, most) for _ in range(dims)] for least, most in ((1, 3), (1, 2), (0, 2), (1, 2))]
    layer = filled(QuantizedConv(*channels, *sizes, groups, draw.random() < 0.5))
    shape = (channels[0], *(draw.randint(6, 9) for _ in range(dims)))
    assert_like_its_reference(layer, draw.choice([shape, (2, *shape), (3, *shape)]), draw)


def test_a_layer_is_copied_and_pickled_without_its_packed_weight():
    layer, input = filled(QuantizedLinear(8, 4)), torch.randint(0, 256, (3, 8), dtype=torch.uint8)
    expected = layer(input, 0.1, 3)
    for other in (copy.deepcopy(layer), copy.copy(layer), pickle.loads(pickle.dumps(layer))):
        assert other._packed == {}
        assert torch.equal(other(input, 0.1, 3), expected)


def test_loading_other_weights_packs_them_again():
    layer, other = filled(QuantizedLinear(8, 4)), filled(QuantizedLinear(8, 4))
    input = torch.randint(0, 256, (3, 8), dtype=torch.uint8)
    before = layer(input, 0.1, 3)
    layer.load_state_dict(other.state_dict())
    after = layer(input, 0.1, 3)
    assert torch.equal(after, other(input, 0.1, 3)) and not torch.equal(after, before)


def test_a_traced_layer_computes_the_same_in_float_arithmetic():
    layer, input = filled(QuantizedLinear(8, 4)), torch.randint(0, 256, (3, 8), dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(layer, (input, torch.tensor(0.1), torch.tensor(3)))
        saved = io.BytesIO()
        torch.jit.save(traced, saved)
    assert torch.allclose(traced(input, torch.tensor(0.1), torch.tensor(3)), layer(input, 0.1, 3), atol=1e-5)


@pytest.mark.parametrize(
    "layer, change",
    [
        (QuantizedLinear(8, 4), {"weight": torch.zeros(4, 9, dtype=torch.int8)}),
        (QuantizedLinear(8, 4), {"weight": torch.zeros(4, 8)}),
        (QuantizedLinear(8, 4), {"weight_scale": torch.ones(3)}),
        (QuantizedLinear(8, 4), {"bias": torch.ones(5)}),
        (QuantizedLinear(8, 4), {"bias": torch.ones(4, dtype=torch.float64)}),
        (QuantizedConv(2, 4, (3,), (1,), (0,), (1,)), {"weight": torch.zeros(4, 2, 2, dtype=torch.int8)}),
    ],
)
def test_tensors_that_a_kernel_would_read_out_of_bounds_are_refused(layer, change):
    for name, tensor in change.items():
        setattr(layer, name, tensor)
    shape = (3, 8) if isinstance(layer, QuantizedLinear) else (1, 2, 5)
    with pytest.raises(QuantizationError, match=r"other shapes or types than it was made for(.|\n)*float32"):
        layer(torch.zeros(shape, dtype=torch.uint8), 0.1, 3)


def test_sizes_of_different_lengths_are_refused():
    layer = filled(QuantizedConv(2, 4, (3, 3), (1,), (0, 0), (1, 1)))
    with pytest.raises(QuantizationError, match="sizes of a convolution"):
        layer(torch.zeros(1, 2, 5, 5, dtype=torch.uint8), 0.1, 3)


def test_inputs_of_other_sizes_are_refused():
    with pytest.raises(QuantizationError, match="8 inputs was given 9"):
        filled(QuantizedLinear(8, 4))(torch.zeros(2, 9, dtype=torch.uint8), 0.1, 3)
    with pytest.raises(QuantizationError, match=r"2 channels was given a tensor of shape \(1, 3, 5\)"):
        filled(QuantizedConv(2, 4, (3,), (1,), (0,), (1,)))(torch.zeros(1, 3, 5, dtype=torch.uint8), 0.1, 3)
