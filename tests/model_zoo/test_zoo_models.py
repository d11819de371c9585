"""Properties that hold for every model of the zoo."""

import pytest
import torch

from fx.errors import TraceError
from model_zoo import get_model, list_models
from pytest_fx.harness.capture import capture_without_leaves

SMALL = [name for name in list_models() if "small" in get_model(name).tags]


@pytest.mark.parametrize("name", SMALL)
def test_a_build_is_deterministic_and_leaves_the_random_state_alone(name):
    model = get_model(name)
    state = torch.get_rng_state()
    first, second = model.build().state_dict(), model.build().state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", SMALL)
def test_a_model_is_built_in_evaluation_mode_throughout(name):
    assert not any(module.training for module in get_model(name).build().modules())


@pytest.mark.parametrize("name", SMALL)
def test_inputs_have_the_batch_size_and_depend_on_the_seed_alone(name):
    model = get_model(name)
    state = torch.get_rng_state()
    inputs, again, others = (model.example_inputs(batch=3, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(tensor.shape[0] == 3 for tensor in inputs)
    assert all(torch.equal(*pair) for pair in zip(inputs, again, strict=True))
    assert not any(torch.equal(*pair) for pair in zip(inputs, others, strict=True))


@pytest.mark.parametrize("name", SMALL)
def test_a_model_accepts_its_inputs(name):
    model = get_model(name)
    with torch.no_grad():
        model.build()(*model.example_inputs(batch=2))


@pytest.mark.parametrize("name", SMALL)
def test_a_model_says_that_it_needs_leaf_modules_where_capture_refuses_it_without(name):
    model = get_model(name)
    try:
        capture_without_leaves(model.build())
    except TraceError:
        assert model.needs_leaves
    else:
        assert not model.needs_leaves


@pytest.mark.parametrize("name", SMALL)
def test_batch_norms_do_something_so_that_forgetting_one_shows(name):
    for module in get_model(name).build().modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for tensor, untrained in (
                (module.weight.detach(), 1.0),
                (module.bias.detach(), 0.0),
                (module.running_mean, 0.0),
                (module.running_var, 1.0),
            ):
                assert float((tensor - untrained).abs().max()) > 0.005
            assert module.momentum == 0.1


def test_two_heads_returns_a_dict_of_a_named_tuple_and_a_list():
    model = get_model("two_heads")
    output = model.build()(*model.example_inputs(batch=2))
    assert output["scores"].logits.shape == (2, 10)
    assert output["scores"].best.dtype == torch.int64
    assert torch.allclose(output["boxes"][0] + output["boxes"][1], torch.ones(2, 4))
