import pytest
import torch

from fx.errors import QuantizationError
from fx.quantize import Affine, quantize_channels


def test_a_range_is_covered_with_zero_represented_exactly():
    affine = Affine.of_range(-1.0, 3.0)
    values = affine.values()
    assert values[affine.zero_point] == 0
    assert values[0] <= -1.0 + affine.scale / 2 and values[255] >= 3.0 - affine.scale / 2


def test_a_range_on_one_side_of_zero_is_extended_to_it():
    assert Affine.of_range(2.0, 5.1).zero_point == 0
    assert Affine.of_range(-5.1, -2.0).zero_point == 255


def test_symmetric_maps_store_a_value_and_its_negative_alike():
    affine = Affine.of_range(-1.0, 0.2, symmetric=True)
    assert affine.zero_point == 128
    assert affine.quantized(0.5) - 128 == 128 - affine.quantized(-0.5)


def test_fewer_bits_use_fewer_integers():
    affine = Affine.of_range(0.0, 15.0, bits=4)
    assert (affine.highest, affine.scale, affine.quantized(100.0)) == (15, 1.0, 15)


def test_a_range_without_width_has_a_step():
    assert Affine.of_range(0.0, 0.0).scale == 1.0
    assert Affine.of_range(0.0, 1e-45).scale > 0


def test_a_scale_that_is_not_positive_is_refused():
    with pytest.raises(QuantizationError, match=r"a scale is positive(.|\n)*Affine.of_range"):
        Affine(0.0, 0)
    with pytest.raises(QuantizationError, match="zero point"):
        Affine(1.0, 16, highest=15)


def test_weights_are_symmetric_by_channel_and_at_most_half_a_step_off():
    weight = torch.randn(5, 70_000) * torch.tensor([1.0, 10.0, 0.1, 1e-3, 1.0])[:, None]
    quantized, scale = quantize_channels(weight)
    assert quantized.dtype is torch.int8 and quantized.abs().amax(1).tolist() == [127] * 5
    assert ((quantized * scale[:, None] - weight).abs() <= 0.5001 * scale[:, None]).all()


def test_weights_with_one_scale_share_the_largest():
    weight = torch.tensor([[1.0, -2.0], [0.1, 0.2]])
    quantized, scale = quantize_channels(weight, bits=4, per_channel=False)
    assert scale.tolist() == pytest.approx([2 / 7] * 2)
    assert quantized.tolist() == [[4, -7], [0, 1]] or quantized.tolist() == [[3, -7], [0, 1]]


def test_a_channel_of_zeros_stays_zero():
    quantized, scale = quantize_channels(torch.zeros(2, 3))
    assert not quantized.any() and scale.tolist() == [1.0, 1.0]


def test_a_weight_without_elements_has_scales():
    quantized, scale = quantize_channels(torch.zeros(2, 0))
    assert quantized.shape == (2, 0) and scale.tolist() == [1.0, 1.0]
