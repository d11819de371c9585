"""The memory layout of results of convolutions on integers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from building import Calling
from step_check import calibrated
from torch import Tensor, nn

from fx.quantize import QuantizedConv, convert
from model_zoo import get_model


def of_images(end: Callable[[Tensor], Any], layer: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 3, 3, padding=1)
    return Calling(lambda m, x: end(m.layer(F.relu(m.first(x)))), first=first, layer=layer)


def images() -> Tensor:
    return torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(0))


ENDS = {
    "view": lambda x: x.view(x.shape[0], -1),
    "view of an activation": lambda x: torch.sigmoid(x).view(-1, 3),
    "view for a layer": lambda x: F.linear(x.view(-1, 3), torch.eye(3)),
    "view of float values": lambda x: torch.sort(x)[0].view(-1),
    "view of a permuted one": lambda x: x.permute(1, 0, 2, 3).contiguous().view(3, -1),
    "view of a sum": lambda x: (x + x.mean()).view(-1),
    "view of a join": lambda x: torch.cat((x, F.relu(x))).view(-1),
    "as it is": lambda x: x,
}


@pytest.mark.parametrize("layer", [nn.Conv2d(3, 3, 1), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2)], ids=str)
@pytest.mark.parametrize("end", ENDS)
def test_results_lie_as_those_of_the_program_where_that_shows(end, layer):
    program = of_images(ENDS[end], layer)
    converted = convert(calibrated(program, images()))
    assert any(isinstance(module, QuantizedConv) for module in converted.modules())
    expected, actual = program(images()), converted(images())
    assert actual.stride() == expected.stride()
    assert (actual - expected).square().sum() < 0.01 * expected.square().sum()


def test_results_that_are_the_same_memory_stay_so():
    converted = convert(calibrated(of_images(lambda x: (x.contiguous(), x.contiguous()), nn.Identity()), images()))
    first, second = converted(images())
    assert first.data_ptr() == second.data_ptr()


@pytest.mark.parametrize("name", ["resnet_tiny", "learning_to_paint_actor_small"])
def test_results_that_go_from_layer_to_layer_keep_their_channels_last(name):
    model = get_model(name)
    converted = convert(calibrated(model.build(), *model.example_inputs(2, 0)))
    layers = [node for node in converted.graph.nodes if node.op == "call_module"]
    laid_out = converted.graph.find_nodes(op="call_method", target="contiguous")
    assert len(layers) >= 20
    assert len(laid_out) == {"resnet_tiny": 0, "learning_to_paint_actor_small": 3}[name]


def test_programs_with_channels_last_keep_them_last():
    program = of_images(lambda x: x, nn.Conv2d(3, 3, 3)).to(memory_format=torch.channels_last)
    inputs = images().to(memory_format=torch.channels_last)
    assert convert(calibrated(program, inputs))(inputs).stride() == program(inputs).stride()


def test_the_layout_node_of_a_result_has_a_unique_name():
    converted = convert(calibrated(of_images(lambda x: (x.contiguous(), x.contiguous())[1], nn.Identity()), images()))
    assert "first_contiguous" in {node.name for node in converted.graph.nodes}
