"""Contracts of single outputs, and the functions that compare their tensors."""

import re

import pytest
import torch
from torch import nn

from fx.passes import approximate, close, exact
from pytest_fx import flipped, masked, matched_boxes, same_distribution, same_set, top_k
from pytest_fx.errors import CannotLoadError
from pytest_fx.harness.equality import Leaf
from pytest_fx.harness.output_contracts import PerOutput, per_output
from pytest_fx.loading import load_contract


def broken(contract, expected, actual):
    return contract.broken([Leaf("", torch.as_tensor(expected), torch.as_tensor(actual))])


def test_flipped_counts_elements_that_differ():
    labels = torch.arange(1000)
    other = labels.clone()
    other[[3, 500]] = 0
    assert broken(flipped(0.002), labels, other) is None
    assert broken(flipped(0.0019), labels, other) == "2 of 1,000 elements differ, the first at [3]"


def test_two_samples_of_one_distribution_are_the_same_and_of_two_are_not():
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 3000, generator=generator)
    assert broken(same_distribution(0.001), first, second) is None
    assert "distribution functions are" in broken(same_distribution(0.001), first, second + 0.2)
    assert "distribution functions are" in broken(same_distribution(0.001), first, second * 1.3)
    assert broken(same_distribution(0.001), first, second.fill_(torch.nan)) == "a sample contains NaN"


def test_the_level_of_a_distribution_is_the_share_of_false_alarms():
    generator = torch.Generator().manual_seed(1)
    samples = torch.rand(400, 2, 50, generator=generator)
    alarms = sum(broken(same_distribution(0.1), first, second) is not None for first, second in samples)
    assert 0.04 < alarms / 400 < 0.13  # ranks of 50 elements are coarse, so the test is a little careful


def test_top_k_allows_ties_and_no_other_choice():
    scores = torch.tensor([[3.0, 2.0, 2.0, 1.0]])
    tied, wrong = torch.tensor([[3.0, 1.9, 2.1, 1.0]]), torch.tensor([[3.0, 1.0, 1.0, 2.0]])
    assert broken(top_k(2), scores, tied) is None
    assert broken(top_k(2), scores, wrong) == "1 of 1 rows have another top 2, first in row [0]: the program chooses 3"
    assert broken(top_k(2, ties=0.6), scores, wrong) is None
    assert "without 9 elements in a row" in broken(top_k(9), scores, scores)


def test_sets_have_no_order():
    assert broken(same_set(), [[1, 2, 2], [4, 5, 6]], [[2, 1, 2], [6, 5, 4]]) is None
    assert broken(same_set(), [[1, 2, 2], [4, 5, 6]], [[2, 1, 1], [6, 5, 4]]) == "1 of 2 rows have other elements"


def test_boxes_have_a_partner_each_in_any_order():
    boxes = torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30], [20, 20, 30, 30.5]])
    assert broken(matched_boxes(0.95), boxes, boxes[[2, 0, 1]]) is None
    moved = boxes.clone()
    moved[0] += 1
    assert broken(matched_boxes(0.9), boxes, moved) == "1 of 3 boxes have no partner"
    assert broken(matched_boxes(0.6), boxes, moved) is None
    assert broken(matched_boxes(0.9, unmatched=0.4), boxes, moved) is None
    twice = boxes[[0, 1, 1]]
    assert broken(matched_boxes(0.97), boxes, boxes[[0, 0, 1]]) == "1 of 3 boxes have no partner"
    assert broken(matched_boxes(1.0), boxes, twice) == "1 of 3 boxes have no partner"
    assert broken(matched_boxes(0.9), torch.zeros(1, 4), torch.zeros(1, 4)) is None
    assert "not [..., boxes, 4]" in broken(matched_boxes(0.9), torch.ones(3, 5), torch.ones(3, 5))


def test_a_dict_of_contracts_finds_them_by_key_index_attribute_or_path():
    contract = load_contract(
        {"logits": "exact", 0: flipped(0.5), ".state": close, "['a'][0]": "approximate(30)", ...: exact}
    )
    assert isinstance(contract, PerOutput)
    paths = ["['logits']", "[0]", ".state", "['a'][0]['x']", "['a'][1]", "['logits2']"]
    expected = [exact, flipped(0.5), close, approximate(30), exact, exact]
    assert [contract.contract_at(path) for path in paths] == expected
    assert per_output({"x": exact}).contract_at("['y']") == close
    assert per_output({0: exact, "[0]['x']": close}).contract_at("[0]['x']") == close


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: flipped(2), "the share of flipped is a number from 0 to 1"),
        (lambda: same_distribution(0.0 - 1), "the level of same_distribution"),
        (lambda: top_k(0), "the k of top_k is a number from 1"),
        (lambda: load_contract({"x": 3}), "3 is not a contract|int is not a contract"),
        (lambda: load_contract({(1, 2): close}), "an output has a key, an index or a path"),
        (lambda: load_contract({"x": {"y": close}}), "the contract of an output is a contract"),
        (lambda: masked({"x": close}, 0), "'contract' of masked is a Contract, not a dict"),
        (lambda: masked(close, 1.5), "'mask' of masked is a str or an int or a function, not a float"),
        (lambda: load_contract("flipped(3)"), "the share of flipped"),
    ],
)
def test_a_mistake_in_a_contract_is_told_in_a_sentence(make, message):
    with pytest.raises(CannotLoadError) as raised:
        make()
    assert re.search(message, str(raised.value).splitlines()[0])  # the next line quotes the call


class Detector(nn.Module):
    """Returns scores, labels of them, and a padded part whose values mean nothing."""

    def __init__(self, error=0.0, flips=0, junk=0.0):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        nn.init.eye_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.error, self.flips, self.junk = error, flips, junk

    def forward(self, x, mask):
        scores = self.linear(x)
        labels = scores.argmax(-1)
        labels = torch.where(torch.arange(labels.shape[1]) < self.flips, 3 - labels, labels)
        return {
            "logits": scores + self.error,
            "labels": labels,
            "padded": scores * mask[..., None] + self.junk * (1 - mask[..., None]),
        }


def detector():
    x = torch.randn(4, 50, 4, generator=torch.Generator().manual_seed(0))
    return Detector(), {"x": x, "mask": (torch.arange(50) < 30).long().repeat(4, 1)}


FILE = """
import pytest
from fx.passes import Close, close
from pytest_fx import flipped, masked
from test_output_contracts import Detector, detector

CASES = {cases}

@pytest.mark.parametrize("settings, contract", CASES, ids=map(str, range(len(CASES))))
def test_it(fx_equal, settings, contract):
    fx_equal(Detector(**settings), contract=contract, input_sets=2, label="detector")
"""


def judged(pytester, monkeypatch, cases, *options):
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])
    path = pytester.makepyfile(FILE.format(cases=cases))
    return pytester.runpytest("--fx-model", "test_output_contracts:detector", *options, path)


def test_each_output_is_judged_by_its_own_contract(pytester, monkeypatch):
    wide, mask = "{'logits': Close(atol=0.5)}", "masked(close, 'mask')"
    cases = [
        f"({{'error': 0.1}}, {wide})",
        "({'flips': 1}, {'labels': flipped(0.05)})",
        f"({{'junk': 9.0}}, {{'padded': {mask}}})",
        "({'junk': 9.0}, {'padded': masked(close, lambda x, mask: mask)})",
    ]
    judged(pytester, monkeypatch, f"[{', '.join(cases)}]").assert_outcomes(passed=4)


def told(result, *texts):
    """Return whether the output has the texts in this order."""
    rest = result.stdout.str()
    for text in texts:
        assert text in rest, text
        rest = rest[rest.index(text) + len(text) :]
    return True


def test_a_broken_contract_names_its_output_and_the_difference(pytester, monkeypatch):
    cases = (
        "({'flips': 3}, {'labels': flipped(0.05)})",
        "({'junk': 9.0}, {'labels': flipped(0.05)})",
        "({'error': 0.1, 'junk': 9.0}, {'padded': masked(close, 'mask')})",
    )
    result = judged(pytester, monkeypatch, f"[{', '.join(cases)}]")
    result.assert_outcomes(failed=3)
    difference = "where  output['labels']", "24 of 400 elements differ", "its contract is flipped(0.05)"
    assert told(result, *difference, "where  output['padded'][0, 30, 0]", "where  output['logits'][")


def test_a_contract_for_an_output_that_does_not_exist_names_those_that_do(pytester, monkeypatch):
    cases = (
        "({}, {'logit': close})",
        "({'junk': 9.0}, {'padded': masked(close, 'masks')})",
        "({'flips': 1}, {'labels': masked(close, lambda x, mask: x[:, :7])})",
    )
    result = judged(pytester, monkeypatch, f"[{', '.join(cases)}]")
    result.assert_outcomes(failed=3)
    assert told(
        result,
        "the contract is for output['logit'], which test_output_contracts:detector does not return",
        "did you mean output['logits']?",
        "the mask input['masks'] of a contract does not exist",
        "the mask of output['labels'] does not fit",
    )
