"""pytest_fx.loading: from names to models and passes, beyond what the options' tests show."""

import pytest
import torch

from fx.passes import Approximate, Close, FuseConvBN, approximate, close, exact, pass_name
from pytest_fx.collection import ModelCase, labels
from pytest_fx.errors import CannotLoadError
from pytest_fx.factories import load_subject
from pytest_fx.loading import chosen_contract, load_contract, load_dtype, load_pass
from pytest_fx.options import TABLE, Options


def options(**given):
    return Options(timing=True, **{**{option.name: option.default for option in TABLE}, **given})


def case(model, batch=None):
    return ModelCase.of(model, options(batch=() if batch is None else (batch,)))


@pytest.fixture
def mine(user):
    user.syspathinsert()
    return user


def test_draws_of_a_factorys_inputs_are_variations_of_them(mine):
    subject = load_subject(case("mine:pair"))
    first, second, third = (subject.arguments(input_set).args[0] for input_set in (0, 1, 2))
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


def leave_alone(program):
    return program


def test_a_pass_itself_is_one_and_a_class_makes_one():
    assert load_pass(FuseConvBN) == FuseConvBN()
    assert load_pass(leave_alone) is leave_alone


def test_a_contract_that_was_requested_replaces_the_passes_own():
    assert chosen_contract(options(), exact) == exact
    assert chosen_contract(options(contract="close"), exact) == close
    assert chosen_contract(options(contract="approximate(30)"), exact) == Approximate(30)
    assert chosen_contract(options(contract="approximate(sqnr_db=-1.5)"), exact) == Approximate(-1.5)
    assert chosen_contract(options(contract=approximate(20)), exact) == Approximate(20)


def test_tolerances_change_close_and_nothing_else():
    assert chosen_contract(options(rtol=1e-3), close) == Close(rtol=1e-3, atol=1e-8)
    assert chosen_contract(options(atol=0.0), Close(rtol=1.0)) == Close(rtol=1.0, atol=0.0)
    assert chosen_contract(options(error_factor=2.0), close) == Close(error_factor=2.0)
    assert chosen_contract(options(rtol=1e-3), exact) == exact


@pytest.mark.parametrize("contract", [close, Close(1e-3, 0.0), Close(error_factor=2.5), exact, approximate(20)])
def test_the_text_of_a_contract_is_the_contract(contract):
    assert load_contract(str(contract)) == contract


@pytest.mark.parametrize("text", ["exactly", "approximate", "approximate()", "approximate(x)"])
def test_a_contract_that_there_is_not_lists_those_there_are(text):
    with pytest.raises(CannotLoadError, match=r"there is no contract '.*'\n  try    use exact, close, approximate"):
        chosen_contract(options(contract=text), close)


def test_dtypes_are_found_by_name_and_must_be_floating_point():
    assert load_dtype("bfloat16") is load_dtype("torch.bfloat16") is torch.bfloat16
    for name in ("int8", "nn", "flaot32"):
        with pytest.raises(CannotLoadError, match=f"no floating-point dtype named '{name}'"):
            load_dtype(name)


RESIZED = """
import torch
from torch import nn
from mine import Linear

class Two(nn.Module):
    def forward(self, x, labels=None, *, scale=None, more=()):
        loss = x.sum(1) if labels is None else x.sum(1) + labels
        return (loss if scale is None else loss * scale) + sum(one["y"] for one in more)

def labelled():
    return Two(), (torch.ones(2, 4), torch.tensor([0, 1]))

def scalar():
    return Two(), {"x": torch.ones(2, 4), "scale": torch.tensor(3.0), "more": [{"y": torch.tensor([5.0, 6.0])}]}

def times_first():
    return nn.RNN(4, 3), torch.ones(5, 2, 4)

def broadcast():
    return Linear(), {"x": torch.ones(4, 4), "shift": torch.ones(4)}

def empty():
    return Linear(), torch.ones(0, 4)

class Constant(nn.Module):
    def forward(self, size):
        return torch.ones(size)

def numbers():
    return Constant(), 3
"""


@pytest.fixture
def resizable(mine):
    mine.makepyfile(resizable=RESIZED)
    return mine


@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_a_users_inputs_are_resized_along_the_first_dimension_that_they_share(resizable, batch):
    subject = load_subject(case("resizable:labelled", batch))
    x, labels = subject.arguments().args
    assert subject.batch == batch
    assert x.shape == (batch, 4)
    assert labels.tolist() == ([0, 1] * 4)[:batch]


def test_tensors_in_containers_and_keywords_are_resized_and_scalars_stay(resizable):
    arguments = load_subject(case("resizable:scalar", 3)).arguments().kwargs
    assert arguments["x"].shape == (3, 4)
    assert arguments["scale"].shape == ()
    assert arguments["more"][0]["y"].tolist() == [5.0, 6.0, 5.0]


def test_without_a_batch_a_users_inputs_are_as_they_are_and_of_no_batch(resizable):
    subject = load_subject(case("resizable:labelled"))
    assert subject.arguments().args[0].shape == (2, 4)
    assert subject.batch is None


@pytest.mark.parametrize(
    "factory, why",
    [
        ("mine:pair_with_keywords", r"its input tensors share no first size: \(2, 4\), \(4,\)"),
        ("mine:bare", "it has no example inputs"),
        ("resizable:times_first", "the first dimension of its inputs is not the batch"),
        ("resizable:broadcast", "with them it raises RuntimeError: The size of tensor"),
        ("resizable:empty", r"its input tensors share no first size: \(0, 4\)"),
        ("resizable:numbers", "its input tensors share no first size: none"),
    ],
)
def test_inputs_that_cannot_have_that_many_samples_are_refused_with_a_remedy(resizable, factory, why):
    with pytest.raises(CannotLoadError, match=f"(?s)cannot have 3 sample.*{why}.*return a ZooModel, .* or leave out"):
        load_subject(case(factory, 3))


def test_the_one_size_that_the_inputs_have_is_always_right(resizable):
    assert load_subject(case("resizable:times_first", 5)).batch == 5
    with pytest.raises(CannotLoadError, match="or give 5, which they have"):
        load_subject(case("resizable:times_first", 3))


def test_things_of_one_name_are_distinguished_by_all_that_is_known_of_them():
    names = ["a:fuse", "b:fuse", "c:split"]
    assert labels(names, lambda name: name[2:]) == ["a:fuse", "b:fuse", "split"]
    own = test_a_registered_pass_is_found_by_its_name
    assert labels([own, load_pass], lambda thing: "one") == [
        f"{__name__}:test_a_registered_pass_is_found_by_its_name",
        "pytest_fx.loading:load_pass",
    ]
    same = [FuseConvBN(), FuseConvBN(checked=False), FuseConvBN()]
    assert labels(same, pass_name) == [
        "fx.passes.fuse_conv_bn:FuseConvBN (1)",
        "fx.passes.fuse_conv_bn:FuseConvBN{checked=false}",
        "fx.passes.fuse_conv_bn:FuseConvBN (2)",
    ]


class NeedsMore:
    def __init__(self, factor):
        self.factor = factor


def test_a_pass_class_that_cannot_be_called_without_arguments_is_refused():
    with pytest.raises(CannotLoadError, match=r"(?s)NeedsMore cannot be called without arguments.*missing 1 required"):
        load_pass(NeedsMore)
