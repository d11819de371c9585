import math

import pytest
import torch
from building import Calling
from torch import nn

import fx
from fx.errors import QuantizationError
from fx.quantize import Choice, QuantizationScheme, advise, convert, noise, prepare, sensitivity


@pytest.fixture(scope="module")
def program():
    """Three layers, of which the second has a few large weights in rows that matter little to the others."""
    torch.manual_seed(0)
    layers = {name: nn.Linear(8, 8) for name in ("one", "two", "three")}
    with torch.no_grad():
        layers["two"].weight[:, 0] = 1000.0
        layers["one"].weight[0], layers["one"].bias[0] = 0.0, 0.0
    model = Calling(lambda m, x: m.three(torch.relu(m.two(torch.relu(m.one(x))))), **layers)
    return fx.symbolic_trace(model.eval())


@pytest.fixture(scope="module")
def data():
    return [(torch.randn(64, 8, generator=torch.Generator().manual_seed(call)),) for call in range(3)]


def test_noise_is_reported_for_each_operation(program, data):
    by_node = {entry.node: entry for entry in noise(program, data)}
    assert list(by_node) == ["one", "relu", "two", "relu_1", "three"]
    assert by_node["one"].sqnr_db > 30 > 20 > by_node["two"].sqnr_db
    assert "test_numerics.py" in str(by_node["two"].where)


def test_unquantized_layers_have_no_noise(program, data):
    scheme = QuantizationScheme(Choice(precision="float"))
    assert {entry.sqnr_db for entry in noise(program, data, scheme)} == {math.inf}


def test_the_most_sensitive_layer_comes_first(program, data):
    ranking = sensitivity(program, data)
    assert ranking[0].node == "two"
    assert sorted(entry.sqnr_db for entry in ranking) == [entry.sqnr_db for entry in ranking]
    assert len(sensitivity(program, data, QuantizationScheme().skip(node="two"))) == 2


def test_the_fewest_layers_are_kept_that_meet_the_budget(program, data):
    advice = advise(program, data, sqnr_db=25)
    assert advice.skipped == ("two",)
    assert advice.sqnr_db >= 25
    assert advice.scheme == QuantizationScheme().skip(node="two")


def test_nothing_is_kept_where_the_budget_is_met(program, data):
    assert advise(program, data, sqnr_db=0).scheme == QuantizationScheme()


def test_everything_is_kept_where_no_noise_is_allowed(program, data):
    advice = advise(program, data, sqnr_db=1000)
    assert sorted(advice.skipped) == ["one", "three", "two"] and advice.sqnr_db == math.inf


def test_without_data_nothing_is_measured(program):
    with pytest.raises(QuantizationError, match=r"there is none(.|\n)*some calls"):
        advise(program, [], sqnr_db=20)


def test_the_fewest_layers_are_kept_for_an_accuracy(program, data):
    with torch.no_grad():
        wanted = [program(*args).argmax(1) for args in data]

    def accuracy(quantized):
        ratios = [
            (quantized(*args).argmax(1) == labels).float().mean() for args, labels in zip(data, wanted, strict=True)
        ]
        return float(torch.stack(ratios).mean())

    with torch.no_grad():
        advice = advise(program, data, accuracy=0.97, evaluate=accuracy)
        prepared = prepare(program, advice.scheme)
        for args in data:
            prepared(*args)
        assert accuracy(convert(prepared)) >= 0.97
    assert advice.skipped in ((), ("two",))
    assert advise(program, data, accuracy=-1, evaluate=accuracy).skipped == ()
    assert len(advise(program, data, accuracy=2, evaluate=accuracy).skipped) == 3


@pytest.mark.parametrize(
    "budget", [{}, {"sqnr_db": 3, "accuracy": 1, "evaluate": len}, {"accuracy": 1}, {"sqnr_db": 3, "evaluate": len}]
)
def test_a_budget_that_is_none_or_two_is_refused(program, data, budget):
    with pytest.raises(QuantizationError, match=r"one budget(.|\n)*evaluate=function"):
        advise(program, data, **budget)


def test_integers_and_structures_are_compared_too():
    model = Calling(lambda m, x: {"values": (y := m.fc(x)), "place": y.argmax(1)}, fc=nn.Linear(4, 4))
    traced = fx.symbolic_trace(model.eval())
    assert advise(traced, [(torch.randn(64, 4),)], sqnr_db=20).skipped == ()


def test_state_made_in_inference_mode_is_restored_after_measuring():
    with torch.inference_mode():
        module = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).eval()
    inputs = [(torch.randn(5, 3),)]
    weight = module[0].weight.clone()
    advised = advise(fx.symbolic_trace(module), inputs, sqnr_db=5)
    assert advised
    assert torch.equal(module[0].weight, weight)
