"""Transforms from the documentation of torch.fx, unchanged, through --fx-pass."""

import re

import pytest
from catalogue import WRONG
from catalogue.users import text_of


@pytest.fixture
def documented(pytester):
    pytester.makepyfile(documented=text_of("documented"))
    return pytester


def run(pytester, pass_):
    options = ("--fx-model", "documented:model", "--fx-pass", f"documented:{pass_}", "-k", "test_pass", "--fx-rounds=2")
    return pytester.runpytest(*options, "-v")


def test_the_decomposition_of_relu_is_verified_and_timed(documented):
    result = run(documented, "decompose")
    assert (result.parseoutcomes()["passed"], result.ret) == (3, 0)
    result.stdout.fnmatch_lines("*decompose*7 -> 8 *")


def test_the_replacement_of_add_by_mul_is_another_program_and_blamed_on_that_node(documented):
    result = run(documented, "transform")
    assert result.ret == 1
    words = re.sub(r"\s+(E\s+)?", " ", str(result.stdout))
    places = [words.find(text) for text in WRONG["documented:transform"].says]
    assert places[0] > -1 and places == sorted(places)
