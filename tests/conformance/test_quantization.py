"""Small models in 8 bits, beside torch.ao's quantization of the same models on the same data."""

import copy
import warnings

import pytest
import torch
from building import decibels
from torch import nn

import fx
import model_zoo
from fx.quantize import Choice, QuantizationScheme, convert, prepare

quantize_fx = pytest.importorskip("torch.ao.quantization.quantize_fx", reason="torch.ao has no quantization by FX")


def by_torch(module, data):
    from torch.ao.quantization import get_default_qconfig_mapping

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # it is deprecated
        prepared = quantize_fx.prepare_fx(copy.deepcopy(module), get_default_qconfig_mapping("x86"), (data[0],))
        for batch in data:
            prepared(batch)
        return quantize_fx.convert_fx(prepared)


def ours(module, data):
    prepared = prepare(fx.symbolic_trace(module), QuantizationScheme(Choice(observer="histogram")), (data[0],))
    with torch.no_grad():
        for batch in data:
            prepared(batch)
    return convert(prepared)


def perceptron():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8)), (16,)


def convolutional():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1),
        nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    return model, (3, 12, 12)


def residual():
    model = model_zoo.get_model("resnet_tiny")
    return model.build(), tuple(model.example_inputs(1)[0].shape[1:])


@pytest.mark.filterwarnings("ignore")  # torch.ao warns of its end
@pytest.mark.parametrize("build", [perceptron, convolutional, residual])
def test_there_is_no_more_noise_than_in_the_quantization_of_torch(build):
    torch.manual_seed(0)
    module, shape = build()
    module.eval()
    data = [torch.randn(16, *shape) for _ in range(4)]
    held_out = torch.randn(64, *shape)
    with torch.no_grad():
        expected = module(held_out)
        mine, theirs = (decibels(quantize_by(module, data)(held_out), expected) for quantize_by in (ours, by_torch))
    assert mine > theirs - 0.5
