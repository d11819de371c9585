"""``torch.ao.quantization.quantize_fx`` with ``fx`` in place of torch.fx prepares, converts and fuses as with it."""

import copy
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from conformance.libraries import assert_identical, neutral
from torch import nn
from torch.ao import quantization
from torch.ao.quantization import quantize_fx as on_torch

import fx

from .replaced import replaced

# torch.ao warns of its deprecation, and of its own settings
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "UserWarning")]


class Convolutions(nn.Module):
    """Layers that fuse, an addition that becomes ``quantized::add``, and a mean that keeps its input's scale."""

    inputs = (torch.linspace(-1, 2, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8),)

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm, self.linear = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.convolution(x)))
        return self.linear((x + x).mean((2, 3)))


class Functions(nn.Module):
    """A weight that is a parameter of the root, a layer norm, a concatenation, and sizes of the input."""

    inputs = (torch.linspace(-1, 2, 6).reshape(2, 3),)

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))
        self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.layers(nn.functional.linear(x, self.weight)))
        return torch.sigmoid(torch.cat([x, self.linear(x)], -1)).reshape(x.shape[0], -1)


def _static(library: ModuleType, model: nn.Module, inputs: Any, convert: str = "convert_fx") -> list[Any]:
    prepared = library.prepare_fx(model.eval(), quantization.get_default_qconfig_mapping("x86"), inputs)
    prepared(*inputs)
    return [copy.deepcopy(prepared), getattr(library, convert)(prepared)]


def _dynamic(library: ModuleType, model: nn.Module, inputs: Any) -> list[Any]:
    mapping = quantization.QConfigMapping().set_global(quantization.default_dynamic_qconfig)
    prepared = library.prepare_fx(model.eval(), mapping, inputs)
    return [copy.deepcopy(prepared), library.convert_fx(prepared)]


def _trained(library: ModuleType, model: nn.Module, inputs: Any) -> list[Any]:
    prepared = library.prepare_qat_fx(model.train(), quantization.get_default_qat_qconfig_mapping("x86"), inputs)
    prepared(*inputs).sum().backward()
    return [copy.deepcopy(prepared), library.convert_fx(prepared.eval())]


WAYS: dict[str, Callable[[ModuleType, nn.Module, Any], list[Any]]] = {
    "fused": lambda library, model, inputs: [library.fuse_fx(model.eval())],
    "static": _static,
    "reference": lambda library, model, inputs: _static(library, model, inputs, "convert_to_reference_fx"),
    "dynamic": _dynamic,
    "trained": _trained,
}


@pytest.fixture(scope="module")
def on_fx() -> ModuleType:
    return replaced("torch.ao.quantization.quantize_fx")


QUICK = [(Convolutions, "fused"), (Convolutions, "static"), (Functions, "dynamic"), (Functions, "trained")]
CASES = [
    pytest.param(kind, way, marks=() if (kind, way) in QUICK else pytest.mark.thorough)
    for kind in (Convolutions, Functions)
    for way in WAYS
]


@pytest.mark.parametrize("kind, way", CASES)
def test_it_makes_the_same_programs(on_fx: ModuleType, kind: Any, way: str) -> None:
    model = kind()
    ours = WAYS[way](on_fx, copy.deepcopy(model), kind.inputs)
    theirs = WAYS[way](on_torch, copy.deepcopy(model), kind.inputs)
    for our, their in zip(ours, theirs, strict=True):
        assert isinstance(our, fx.GraphModule)
        assert neutral(our.code) == neutral(their.code)
        assert_identical(our(*kind.inputs), their(*kind.inputs))


def test_attributes_that_are_to_be_kept_are_kept_by_copies(on_fx: ModuleType) -> None:
    model = Functions().eval()
    model.version = "7"
    config = quantization.fx.custom_config.PrepareCustomConfig().set_preserved_attributes(["version"])
    mapping = quantization.get_default_qconfig_mapping("x86")
    prepared = on_fx.prepare_fx(model, mapping, Functions.inputs, config)
    assert copy.deepcopy(prepared).version == "7"


def test_a_quantized_program_is_saved_and_loaded_as_a_state(on_fx: ModuleType) -> None:
    _, converted = _static(on_fx, Convolutions(), Convolutions.inputs)
    _, other = _static(on_fx, Convolutions(), Convolutions.inputs)
    other.load_state_dict(converted.state_dict())
    assert_identical(other(*Convolutions.inputs), converted(*Convolutions.inputs))
