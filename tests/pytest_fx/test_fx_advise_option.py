"""--fx-advise PRECISION: the layers that stay in higher precision, as an argument to paste."""

import shlex

import pytest

MODEL = """
import torch
from torch import nn
from pytest_fx import measured

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        with torch.no_grad():
            self.second.bias += 100.0  # a large value, from which the model subtracts as much

    def forward(self, x):
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x))) - 100))

def net():
    return Net().eval(), torch.linspace(-1, 1, 12).reshape(3, 4)

def closeness(output, labels):
    return -(output - labels).abs().mean(1)

torch.manual_seed(1)
x = torch.randn(64, 4)
by_metric = measured(closeness, [(x, Net()(x).detach())], max_drop=0.01)
"""
NEEDED = "approximate(sqnr_db=35)"


@pytest.fixture
def advise(pytester):
    pytester.makepyfile(mine=MODEL)

    def run(precision, *options):
        result = pytester.runpytest("--fx-model", "mine:net", "--fx-advise", precision, *options)
        return result, " ".join(result.stdout.str().split())

    return run


def test_the_layer_that_loses_digits_is_kept_and_the_argument_keeps_the_contract(advise, pytester):
    result, output = advise("bfloat16", "--fx-contract", NEEDED)
    result.assert_outcomes(passed=1)
    assert "keep 1 of 3 layers: --fx-pass" in output
    assert "alone in bfloat16: second " in output
    argument = output.partition("layers: ")[2].partition(" alone in")[0]
    options = ("--fx-model", "mine:net", "--fx-contract", NEEDED, "--fx-no-timing", "-k", "pass_keeps_its_contract")
    pytester.runpytest(*shlex.split(argument), *options).assert_outcomes(passed=1)
    without = shlex.split(argument.replace(",keep=second", ""))
    pytester.runpytest(*without, *options).assert_outcomes(failed=1)


def test_a_metric_decides_where_the_contract_has_one(advise):
    result, output = advise("bfloat16", "--fx-contract", "mine:by_metric")
    result.assert_outcomes(passed=1)
    assert "keep=second" in output
    assert "alone in bfloat16: second drop 0." in output


def test_layers_are_kept_in_floating_point_for_int8(advise, pytester):
    result, output = advise("int8", "--fx-contract", "approximate(sqnr_db=60)")
    assert result.parseoutcomes() == {"passed": 1}
    assert "--fx-pass 'quantize{keep=" in output
    result, output = advise("int8", "--fx-contract", "approximate(sqnr_db=5)")
    assert "keep 0 of 3 layers: --fx-pass quantize" in output


def test_a_contract_that_no_list_keeps_fails_in_a_sentence(advise, pytester):
    pytester.makepyfile(
        plain="import torch\nfrom torch import nn\n\ndef relu():\n    return nn.ReLU(), torch.ones(2)\n"
    )
    result = pytester.runpytest("--fx-model", "plain:relu", "--fx-advise", "float16")
    result.stdout.fnmatch_lines(["*PassError: plain:relu has no layers for float16*"])


def test_an_unknown_precision_is_refused(advise):
    result, _ = advise("float8")
    result.stderr.fnmatch_lines(["*--fx-advise: must be float16 or bfloat16 or int8, not 'float8'*"])
