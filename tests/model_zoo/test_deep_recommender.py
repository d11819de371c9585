"""model_zoo.deep_recommender: NVIDIA's network in names, order and sizes."""

import pytest
import torch
from torch.nn import functional

import fx
from model_zoo import ModelError
from model_zoo.deep_recommender import AutoEncoder, masked_mse


def small(**options):
    return AutoEncoder((6, 4, 3), **options).eval()


@pytest.mark.parametrize("constrained, parameters", [(False, 204_475_711), (True, 102_338_367)])
def test_the_full_size_has_the_parameters_of_torchbenchs(constrained, parameters):
    with torch.device("meta"):
        model = AutoEncoder((197_951, 512, 512, 1024), is_constrained=constrained)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_parameters_are_named_and_ordered_as_in_the_original():
    shapes = {name: tuple(tensor.shape) for name, tensor in small(is_constrained=False).state_dict().items()}
    assert list(shapes.items()) == [
        ("encode_w.0", (4, 6)),
        ("encode_w.1", (3, 4)),
        ("encode_b.0", (4,)),
        ("encode_b.1", (3,)),
        ("decode_w.0", (4, 3)),
        ("decode_w.1", (6, 4)),
        ("decode_b.0", (4,)),
        ("decode_b.1", (6,)),
    ]


def test_it_computes_the_layers_one_after_the_other():
    model = small(is_constrained=False)
    state, x = model.state_dict(), torch.randn(5, 6)
    expected = x
    for half in ("encode", "decode"):
        for index in range(2):
            expected = functional.selu(expected @ state[f"{half}_w.{index}"].T + state[f"{half}_b.{index}"])
    torch.testing.assert_close(model(x), expected)


def test_a_constrained_decoder_uses_the_encoders_weights_transposed():
    model = small(nl_type="none")
    state, x = model.state_dict(), torch.randn(5, 6)
    code = x @ state["encode_w.0"].T @ state["encode_w.1"].T
    torch.testing.assert_close(model(x), code @ state["encode_w.1"] @ state["encode_w.0"])


def test_the_last_activation_can_be_left_out():
    model, x = small(nl_type="relu", last_layer_activations=False), torch.randn(50, 6)
    assert (model(x) < 0).any()
    assert (small(nl_type="relu")(x) >= 0).all()


def test_capture_has_as_many_nodes_as_the_papers():
    assert len(fx.symbolic_trace(small(is_constrained=False)).graph.nodes) == 18
    full = AutoEncoder((6, 4, 4, 3), is_constrained=False)
    assert len(fx.symbolic_trace(full).graph.nodes) == 26
    assert len(fx.symbolic_trace(AutoEncoder((6, 4, 4, 3), is_constrained=False, dp_drop_prob=0.8)).graph.nodes) == 27


def test_an_unknown_activation_lists_those_there_are():
    with pytest.raises(ModelError, match="no activation named 'sleu'\n  try    use one of selu, relu"):
        small(nl_type="sleu")


def test_the_loss_counts_known_ratings_only():
    error, count = masked_mse(torch.tensor([1.0, 5.0, 2.0]), torch.tensor([3.0, 0.0, 2.0]))
    assert (error.item(), count.item()) == (4.0, 2)
