"""model_zoo.blocks: small modules as public code writes them, each captured as it is."""

import copy

import pytest
import torch

import fx
import model_zoo
from pytest_fx.harness.structure import leaves

BLOCKS = {name: (build, inputs) for name, build, inputs in model_zoo.blocks()}
MOST_ELEMENTS = 2_000


def test_names_are_unique_and_always_in_one_order():
    names = [name for name, _, _ in model_zoo.blocks()]
    assert names == sorted(BLOCKS)
    assert len(names) > 70


@pytest.mark.parametrize("name", BLOCKS)
def test_a_captured_block_is_the_block(name):
    build, inputs = BLOCKS[name]
    module = build()
    assert not any(layer.training for layer in module.modules())
    captured = fx.symbolic_trace(build())
    with torch.no_grad():
        expected = module(*copy.deepcopy(inputs))
        torch.testing.assert_close(captured(*copy.deepcopy(inputs)), expected, rtol=0, atol=0)
    assert all(torch.isfinite(tensor).all() for _, tensor in leaves(expected))


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_the_same_each_time_and_small(name):
    build, inputs = BLOCKS[name]
    state = torch.get_rng_state()
    first, second = build().state_dict(), build().state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert max(tensor.numel() for tensor in (*first.values(), *inputs)) < MOST_ELEMENTS
    for tensor in (*first.values(), *inputs):
        assert tensor.device.type == "cpu"
        assert tensor.dtype in (torch.float32, torch.int64, torch.bool)


def test_each_call_yields_inputs_of_its_own_with_the_same_values():
    for name, _, inputs in model_zoo.blocks():
        assert all(torch.equal(*pair) for pair in zip(inputs, BLOCKS[name][1], strict=True))
        assert not any(left is right for left, right in zip(inputs, BLOCKS[name][1], strict=True))


def test_a_block_has_a_one_line_description():
    for name, (build, _) in BLOCKS.items():
        text = type(build()).forward.__doc__
        assert text is not None, name
        assert "\n" not in text, name
