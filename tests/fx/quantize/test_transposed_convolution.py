"""Transposed convolutions on integers match those on float values, with a scale for each output channel."""

import itertools
import pickle

import pytest
import torch
from building import decibels
from selection import thorough_except
from step_check import StepCheck, calibrated
from torch import nn

import fx
from fx.errors import QuantizationError
from fx.quantize import (
    Choice,
    QuantizationScheme,
    QuantizedConvTranspose,
    convert,
    dequantize,
    prepare_qat,
    quantize,
    quantize_channels,
    reference,
    report,
)
from fx.quantize.transposed_convolution import swap_channels

KINDS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def quantized_layer(model):
    weight, scale = quantize_channels(swap_channels(model.weight.detach(), model.groups))
    layer = QuantizedConvTranspose(
        model.in_channels, model.out_channels, model.kernel_size, model.stride, model.padding, model.output_padding,
        model.groups, model.dilation, model.bias is not None,
    )  # fmt: skip
    layer.fill(weight, scale, None if model.bias is None else model.bias.detach())
    return layer


SIZES = [
    sizes
    for sizes in itertools.product((1, 2, 3, 4), (1, 2, 3), (0, 1, 2), (0, 1), (1, 2), (1, 2))
    if sizes[3] < max(sizes[1], sizes[4]) and (sizes[0] - 1) * sizes[4] + 4 * sizes[1] + sizes[3] >= 2 * sizes[2]
]


@pytest.mark.parametrize("dims", thorough_except((2,), (1, 2, 3)))
def test_kernels_match_the_reference(dims):
    generator = torch.Generator().manual_seed(0)
    for number, (size, stride, padding, more, dilation, groups) in enumerate(SIZES[dims - 1 :: dims**2]):
        model = KINDS[dims - 1](
            4, 6, (size, 2, 3)[:dims], (stride, 2, 1)[:dims], (padding, 0, 1)[:dims], (more, 1, 0)[:dims], groups,
            number % 2 == 0, (dilation, 1, 1)[:dims],
        )  # fmt: skip
        layer = quantized_layer(model)
        input = torch.randint(0, 256, (2, 4, 5, 3, 4)[: dims + 2], dtype=torch.uint8, generator=generator)
        for value in (input, input[0]):
            expected = layer._reference(dequantize(value, 0.02, 100))
            assert torch.allclose(layer(value, 0.02, 100), expected, atol=1e-4)
            rounded = layer(value, 0.02, 100, 0.05, 128, low=0.0)
            assert rounded.shape == expected.shape
            assert (rounded.int() - quantize(expected.clamp(0), 0.05, 128).int()).abs().max() <= 1


def test_each_output_channel_has_a_scale_of_its_own_in_each_group():
    model = nn.ConvTranspose2d(4, 6, 2, groups=2)
    with torch.no_grad():
        model.weight[:2, 0] *= 100
    layer = quantized_layer(model)
    assert layer.weight_scale.shape == (6,) and int(layer.weight_scale.argmax()) == 0
    assert torch.allclose(swap_channels(layer.float_weight(), 2), model.weight, rtol=0.02, atol=0.5 / 127)


def decoder():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.ConvTranspose2d(8, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8),
        nn.ReLU(inplace=True), nn.ConvTranspose2d(8, 4, 3, 2, 1, 1, groups=2), nn.Tanh(), nn.ConvTranspose2d(4, 3, 2),
    )  # fmt: skip


DATA = torch.randn(4, 3, 9, 9, generator=torch.Generator().manual_seed(1))


@pytest.mark.filterwarnings("ignore")
def test_a_decoder_is_on_integers_from_end_to_end():
    prepared = calibrated(model := decoder(), DATA)
    program, meaning = convert(prepared), reference(prepared)
    check = StepCheck(program)
    with torch.no_grad():
        expected, output = model(DATA), check.run(DATA)
        assert max(check.steps.values()) <= 1
        assert decibels(output, expected) > 30 and decibels(output, meaning(DATA)) > 40
        assert torch.equal(pickle.loads(pickle.dumps(program))(DATA), output)
    for form in (program, meaning):
        summary = report(form)
        counts = summary.layers, summary.float_layers, summary.share_of_operations
        assert counts == (4, 0, 1.0) and summary.remainders == ()
    assert torch.allclose(torch.jit.trace(program, DATA)(DATA), output, atol=0.05)


@pytest.mark.parametrize("precision", ["dynamic", "weight-only", "bfloat16"])
def test_transposed_convolutions_have_the_other_precisions_too(precision):
    prepared = calibrated(model := decoder(), DATA, scheme=QuantizationScheme(Choice(precision=precision)))
    with torch.no_grad():
        assert decibels(convert(prepared)(DATA), model(DATA)) > 25
        assert decibels(reference(prepared)(DATA), model(DATA)) > 25


def test_transposed_convolutions_are_trained_as_they_are_converted(tmp_path):
    program = prepare_qat(fx.symbolic_trace(decoder())).train()
    for _ in range(3):
        program(DATA).square().mean().backward()
    program.eval()
    with torch.no_grad():
        quantized = convert(program)
        assert torch.allclose(reference(program)(DATA), program(DATA), atol=1e-5)
        assert decibels(quantized(DATA), program(DATA)) > 35
    fx.save(quantized, tmp_path / "decoder.fx")
    assert torch.equal(fx.load(tmp_path / "decoder.fx")(DATA), quantized(DATA))


def test_inputs_of_other_sizes_are_refused():
    layer = quantized_layer(nn.ConvTranspose2d(3, 4, 3, 2))
    with pytest.raises(QuantizationError, match=r"a convolution of 3 channels was given a tensor of shape"):
        layer(torch.zeros(2, 4, 5, 5, dtype=torch.uint8), 0.1, 7)
    layer.stride = (2,)
    with pytest.raises(QuantizationError, match="the sizes of a convolution are of different lengths"):
        layer(torch.zeros(2, 3, 5, 5, dtype=torch.uint8), 0.1, 7)
