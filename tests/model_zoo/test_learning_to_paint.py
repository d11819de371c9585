"""model_zoo.learning_to_paint: the authors' networks in names, order and sizes."""

import pytest
import torch
from torch import nn

import fx
from model_zoo.learning_to_paint import Actor, Critic, Renderer, TReLU


def count(model: nn.Module) -> tuple[int, int, int]:
    parameters = list(model.parameters())
    return sum(parameter.numel() for parameter in parameters), len(parameters), len(list(model.buffers()))


@pytest.mark.parametrize(
    "kind, sizes, nodes",
    [(Actor, (11_209_857, 65, 63), 74), (Critic, (11_178_770, 82, 0), 103), (Renderer, (11_040_812, 20, 0), 26)],
)
def test_networks_have_the_parameters_and_nodes_of_the_originals(kind, sizes, nodes):
    with torch.device("meta"):
        assert count(kind()) == sizes
    assert len(fx.symbolic_trace(kind().eval()).graph.nodes) == nodes


def test_actor_is_named_as_in_the_original():
    names = list(Actor(width=2).state_dict())
    assert names[:6] == [
        *(f"{layer}" for layer in ("conv1.weight", "bn1.weight", "bn1.bias")),
        *("bn1.running_mean", "bn1.running_var", "bn1.num_batches_tracked"),
    ]
    assert {"layer1.0.shortcut.0.weight", "layer1.0.shortcut.1.weight", "layer4.1.conv2.weight", "fc.bias"} <= {*names}
    assert not any(name.startswith("layer1.1.shortcut") for name in names)


def test_critic_loads_weights_under_the_originals_names():
    critic = Critic(width=2)
    original = {
        name.replace("parametrizations.weight.original0", "weight_g").replace(
            "parametrizations.weight.original1", "weight_v"
        ): torch.randn_like(tensor)
        for name, tensor in critic.state_dict().items()
    }
    assert {"conv1.weight_g", "conv1.weight_v", "layer1.0.relu_1.alpha", "relu_1.alpha"} <= original.keys()
    critic.load_state_dict(original)
    direction = original["conv1.weight_v"]
    norm = direction.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    torch.testing.assert_close(critic.conv1.weight, direction / norm * original["conv1.weight_g"])


def test_trelu_has_its_threshold_at_alpha():
    activation = TReLU()
    nn.init.constant_(activation.alpha, 0.5)
    assert activation(torch.tensor([-1.0, 0.25, 2.0])).tolist() == [0.5, 0.5, 2.0]


def test_renderer_draws_in_grey_between_0_and_1():
    picture = Renderer(32)(torch.rand(3, 10))
    assert picture.shape == (3, 32, 32)
    assert picture.min() >= 0 and picture.max() <= 1


def test_actor_gives_five_strokes_between_0_and_1():
    strokes = Actor(width=2).eval()(torch.rand(2, 9, 128, 128))
    assert strokes.shape == (2, 65)
    assert strokes.min() >= 0 and strokes.max() <= 1
