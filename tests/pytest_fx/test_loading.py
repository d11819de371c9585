"""pytest_fx.loading: from names to models and passes, beyond what the options' tests show."""

import pytest
import torch

from fx.passes import Approximate, Close, FuseConvBN, approximate, close, exact
from pytest_fx.collection import ModelCase
from pytest_fx.errors import LoadError
from pytest_fx.loading import chosen_contract, load_dtype, load_pass, load_subject
from pytest_fx.options import TABLE, Options


def options(**given):
    return Options(timing=True, **{**{option.name: option.default for option in TABLE}, **given})


def case(model, batch=1):
    return ModelCase.of(model, options(batch=(batch,)))


@pytest.fixture
def mine(user):
    user.syspathinsert()
    return user


def test_draws_of_a_factorys_inputs_are_variations_of_them(mine):
    subject = load_subject(case("mine:pair"))
    first, second, third = (subject.arguments(draw).args[0] for draw in (0, 1, 2))
    assert torch.equal(first, torch.ones(2, 4))
    assert not torch.equal(second, first)
    assert not torch.equal(second, third)
    assert torch.equal(second, subject.arguments(1).args[0])


def test_draws_of_a_zoo_models_inputs_have_seeds_of_their_own():
    subject = load_subject(case("mlp", batch=2))
    assert subject.arguments(1).args[0].shape == (2, 16)
    assert not torch.equal(subject.arguments(1).args[0], subject.arguments(0).args[0])


@pytest.mark.parametrize(
    "factory, positional, keywords",
    [("pair", 1, []), ("pair_of_one_tensor", 1, []), ("pair_with_keywords", 0, ["x", "shift"])],
)
def test_inputs_are_positional_a_single_one_or_keywords(mine, factory, positional, keywords):
    arguments = load_subject(case(f"mine:{factory}")).arguments()
    assert len(arguments.args) == positional
    assert list(arguments.kwargs) == keywords


def test_a_registered_pass_is_found_by_its_name():
    assert load_pass("fuse-conv-bn") == FuseConvBN()


def test_an_attribute_of_an_attribute_can_be_named(mine):
    assert load_pass("mine:nn.functional.relu") is torch.nn.functional.relu


def test_a_pass_itself_is_one_and_a_class_makes_one():
    assert load_pass(FuseConvBN) == FuseConvBN()
    assert load_pass(test_a_registered_pass_is_found_by_its_name) is test_a_registered_pass_is_found_by_its_name


def test_a_contract_that_was_asked_for_stands_in_for_the_passes_own():
    assert chosen_contract(options(), exact) == exact
    assert chosen_contract(options(contract="close"), exact) == close
    assert chosen_contract(options(contract="approximate(30)"), exact) == Approximate(30)
    assert chosen_contract(options(contract="approximate(sqnr_db=-1.5)"), exact) == Approximate(-1.5)
    assert chosen_contract(options(contract=approximate(20)), exact) == Approximate(20)


def test_tolerances_change_close_and_nothing_else():
    assert chosen_contract(options(rtol=1e-3), close) == Close(rtol=1e-3, atol=1e-8)
    assert chosen_contract(options(atol=0.0), Close(rtol=1.0)) == Close(rtol=1.0, atol=0.0)
    assert chosen_contract(options(rtol=1e-3), exact) == exact


@pytest.mark.parametrize("text", ["exactly", "approximate", "approximate()", "approximate(x)"])
def test_a_contract_that_there_is_not_lists_those_there_are(text):
    with pytest.raises(LoadError, match=r"there is no contract '.*'\n  try    use exact, close or approximate"):
        chosen_contract(options(contract=text), close)


def test_dtypes_are_found_by_name_and_must_be_floating_point():
    assert load_dtype("bfloat16") is load_dtype("torch.bfloat16") is torch.bfloat16
    for name in ("int8", "nn", "flaot32"):
        with pytest.raises(LoadError, match=f"no floating-point dtype named '{name}'"):
            load_dtype(name)
