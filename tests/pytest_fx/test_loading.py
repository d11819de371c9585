"""pytest_fx.loading: from names to models and passes, beyond what the options' tests show."""

import pytest
import torch

from fx.passes import FuseConvBN
from pytest_fx.loading import load_pass, load_subject


@pytest.fixture
def mine(user):
    user.syspathinsert()
    return user


def test_draws_of_a_factorys_inputs_are_variations_of_them(mine):
    subject = load_subject("mine:pair")
    first, second, third = (subject.arguments(draw).args[0] for draw in (0, 1, 2))
    assert torch.equal(first, torch.ones(2, 4))
    assert not torch.equal(second, first)
    assert not torch.equal(second, third)
    assert torch.equal(second, subject.arguments(1).args[0])


def test_draws_of_a_zoo_models_inputs_have_seeds_of_their_own():
    subject = load_subject("mlp", batch=2)
    assert subject.arguments(1).args[0].shape == (2, 16)
    assert not torch.equal(subject.arguments(1).args[0], subject.arguments(0).args[0])


@pytest.mark.parametrize(
    "factory, positional, keywords",
    [("pair", 1, []), ("pair_of_one_tensor", 1, []), ("pair_with_keywords", 0, ["x", "shift"])],
)
def test_inputs_are_positional_a_single_one_or_keywords(mine, factory, positional, keywords):
    arguments = load_subject(f"mine:{factory}").arguments()
    assert len(arguments.args) == positional
    assert list(arguments.kwargs) == keywords


def test_a_registered_pass_is_found_by_its_name():
    assert load_pass("fuse-conv-bn") == FuseConvBN()


def test_an_attribute_of_an_attribute_can_be_named(mine):
    assert load_pass("mine:nn.functional.relu") is torch.nn.functional.relu
