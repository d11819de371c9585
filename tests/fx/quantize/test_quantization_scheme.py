import json

import pytest
import torch
from building import Calling
from torch import nn

import fx
from fx.errors import QuantizationError
from fx.quantize import Choice, Override, QuantizationScheme, prepare


def observed(prepared):
    return [str(node.target).removeprefix("observers.") for node in prepared.graph.find_nodes(op="call_module")]


def two_layers():
    body, head = nn.Linear(3, 4), nn.Linear(4, 2)
    return fx.symbolic_trace(Calling(lambda m, x: m.head(torch.relu(m.body(x))), body=body, head=head))


def test_a_scheme_survives_json():
    scheme = QuantizationScheme(Choice(symmetric=True, weight_bits=7)).skip(node="a*").skip(module="b", operator="c")
    assert QuantizationScheme.from_data(json.loads(json.dumps(scheme.to_data()))) == scheme


@pytest.mark.parametrize("data", [{}, {"default": {}, "overrides": [{}]}, {"default": {"colour": 1}, "overrides": []}])
def test_data_that_is_no_scheme_is_refused(data):
    with pytest.raises(QuantizationError, match=r"describes no scheme(.|\n)*to_data"):
        QuantizationScheme.from_data(data)


@pytest.mark.parametrize(
    "skipped", [{"node": "head"}, {"module": "head"}, {"node": "h*", "operator": "linear"}, {"module": "he?d"}]
)
def test_skipped_layers_are_not_observed(skipped):
    scheme = QuantizationScheme().skip(**skipped)
    assert observed(prepare(two_layers(), scheme)) == ["x"]


def test_operators_are_skipped_by_the_name_of_the_canonical_function():
    scheme = QuantizationScheme().skip(operator="torch.nn.functional.linear")
    assert observed(prepare(two_layers(), scheme)) == []


def test_modules_are_found_by_class_too():
    scheme = QuantizationScheme().skip(module="Linear")
    assert observed(prepare(two_layers(), scheme)) == []


def test_the_last_override_that_matches_counts():
    scheme = QuantizationScheme().skip(operator="linear").override(Choice(observer="min-max"), node="body")
    prepared = prepare(two_layers(), scheme)
    assert observed(prepared) == ["x"]
    assert type(prepared.get_submodule("observers.x")).__name__ == "MinMaxObserver"


def test_an_override_without_a_place_is_refused():
    with pytest.raises(QuantizationError, match="nothing about where it holds"):
        Override(Choice())


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"precision": "int4"},
            "'precision' of Choice is 'int8' or 'dynamic' or 'weight-only' or 'bfloat16' or 'float', not 'int4'",
        ),
        ({"observer": "none"}, "'observer' of Choice is 'min-max' or .*, not 'none'"),
        ({"weight_bits": 9}, "'weight_bits' of Choice is an int from 2 to 8, not 9"),
        ({"activation_bits": 1}, "'activation_bits' of Choice is an int from 2 to 8, not 1"),
        ({"percentile": 30}, "'percentile' of Choice is a number above 50 and at most 100, not 30"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused(settings, message):
    with pytest.raises(QuantizationError, match=message):
        Choice(**settings)
