"""pytest_fx.laws.noise, and other comparisons of ``approximate``: outputs without decibels, stored and random ones."""

import copy
import tempfile
from pathlib import Path

import hypothesis
import pytest
import torch
import torch.nn.functional as F
from building import Calling
from hypothesis import Phase
from torch import nn

from fx.passes import approximate, close
from pytest_fx import check_pass
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import broken_laws, law_called
from pytest_fx.laws.judging import compared


def subject(forward, dtype=torch.float32, **layers):
    torch.manual_seed(0)
    for layer in layers.values():
        layer.reset_parameters()
    inputs = Arguments((torch.randn(64, 16),))
    return Subject("model", Calling(forward, **layers), inputs.for_input_set, working_dtype=dtype)


def with_layer(name, change):
    """A pass that changes the parameters of a copy of a layer."""

    def changing(program):
        layer = copy.deepcopy(program.get_submodule(name))
        with torch.no_grad():
            layer.weight.copy_(change(layer.weight))
        program.add_submodule(name, layer)
        program.recompile()

    return changing


def coarse(weight):
    """Weights of five bits."""
    step = weight.abs().max() / 16
    return (weight / step).round() * step


def judged(model, pass_, contract):
    pass_run = PassRun(model, pass_, contract=contract)
    return broken_laws([law_called("contract")], pass_run), pass_run


WITHOUT_DECIBELS = {
    "histogram": lambda m, x: m.fc(x).histc(100),
    "index": lambda m, x: m.fc(x).argmax(-1).float(),
    "what an index reads": lambda m, x: x.sum(0)[m.fc(x).argmax(-1)],
    "underflow": lambda m, x: torch.exp(m.fc(x) * 30 - 100),
}


@pytest.mark.parametrize("forward", WITHOUT_DECIBELS.values(), ids=WITHOUT_DECIBELS)
def test_an_output_that_noise_moves_by_more_than_the_noise_there_is_has_no_decibels(forward):
    violations, _ = judged(subject(forward, fc=nn.Linear(16, 4)), with_layer("fc", coarse), approximate(sqnr_db=20))
    assert not violations


@pytest.mark.parametrize("forward", WITHOUT_DECIBELS.values(), ids=WITHOUT_DECIBELS)
def test_another_output_beside_it_has_them(forward):
    beside = lambda m, x: (forward(m, x), torch.tanh(m.fc(x)))  # noqa: E731
    model = subject(beside, fc=nn.Linear(16, 4))
    assert not judged(model, with_layer("fc", coarse), approximate(sqnr_db=20))[0]
    assert judged(model, with_layer("fc", torch.neg), approximate(sqnr_db=20))[0]


def autoencoder(dtype=torch.float32):
    layers = {
        "encoder": nn.Linear(16, 32),
        "mean": nn.Linear(32, 8),
        "spread": nn.Linear(32, 8),
        "decoder": nn.Linear(8, 32),
        "last": nn.Linear(32, 16),
    }

    def forward(m, x):
        hidden = torch.relu(m.encoder(x))
        mean, spread = m.mean(hidden), m.spread(hidden)
        drawn = mean + torch.randn_like(mean) * torch.exp(spread / 2)
        return m.last(torch.relu(m.decoder(drawn)))

    return subject(forward, dtype, **layers)


@pytest.mark.parametrize("sqnr_db", [20, 40])
@pytest.mark.parametrize("name", ["encoder", "mean", "decoder", "last"])
def test_a_layer_with_the_sign_flipped_behind_random_numbers_breaks_the_contract(name, sqnr_db):
    violations, pass_run = judged(autoencoder(), with_layer(name, torch.neg), approximate(sqnr_db=sqnr_db))
    assert violations, pass_run.waivers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_output_that_equals_eagers_keeps_any_ratio(dtype):
    forward = lambda m, x: (x + torch.randn_like(x), m.fc(x), F.dropout(x, 0.5, True), torch.bernoulli(x.sigmoid()))  # noqa: E731
    model = subject(forward, dtype, fc=nn.Linear(16, 4))
    violations, pass_run = judged(model, with_layer("fc", coarse), approximate(sqnr_db=20))
    assert not violations and not pass_run.waivers
    ratios = compared(pass_run, [0], lambda run: run.output).sqnr_db()
    assert [place for place, ratio in ratios.items() if ratio == float("inf")] == ["[0]", "[2]", "[3]"]


DRAWS = {
    "randn": lambda m, x: torch.randn(3, 4),
    "rand": lambda m, x: torch.rand(3, 4),
    "randn_like": lambda m, x: torch.randn_like(x),
    "rand_like": lambda m, x: torch.rand_like(x),
    "normal": lambda m, x: torch.normal(x, 0.5),
    "normal_": lambda m, x: torch.empty_like(x).normal_(1.0, 2.0),
    "uniform_": lambda m, x: torch.empty(4).uniform_(-1.0, 1.0),
    "exponential_": lambda m, x: torch.empty_like(x).exponential_(),
    "bernoulli": lambda m, x: torch.bernoulli(x.sigmoid()),
    "poisson": lambda m, x: torch.poisson(x.exp()),
    "multinomial": lambda m, x: torch.multinomial(x.sigmoid(), 3),
    "gamma": lambda m, x: torch.distributions.Gamma(x.exp(), x.exp()).sample(),
    "dropout": lambda m, x: F.dropout(x, 0.5, True),
    "alpha_dropout": lambda m, x: F.alpha_dropout(x, 0.5, True),
}


@pytest.mark.parametrize("forward", DRAWS.values(), ids=DRAWS)
def test_random_numbers_are_the_same_in_float64(forward):
    model = subject(forward)
    single, double = model.eager().output, model.eager(float64=True).output
    assert double.dtype == (torch.float64 if single.is_floating_point() else single.dtype)
    torch.testing.assert_close(double, single.to(double.dtype), rtol=1e-5, atol=1e-6)


def test_a_pass_beside_random_numbers_is_judged_by_the_bound_of_rounding():
    slightly = with_layer("last", lambda weight: weight * (1 + 1e-4))
    assert judged(autoencoder(), slightly, close)[0]
    assert not judged(autoencoder(), lambda program: program.recompile(), close)[0]


QUICK = hypothesis.settings(database=None, phases=[Phase.generate])


@pytest.mark.parametrize("rows, decibels, is_right", [(64, 8, False), (1, 8, True), (1, 3, False)])
def test_noise_in_few_elements_may_look_larger_than_promised(rows, decibels, is_right):
    model = subject(lambda m, x: m.fc(x[:rows]), fc=nn.Linear(16, 4, bias=False))
    noisier = with_layer("fc", lambda weight: weight * (1 + 10 ** (-decibels / 20)))
    violations, pass_run = judged(model, noisier, approximate(sqnr_db=10))
    assert (not violations) is is_right
    assert not is_right or any("in so few elements" in waiver for waiver in pass_run.waivers)


@pytest.mark.parametrize(
    "seed, examples", [(0, 4), *(pytest.param(seed, 20, marks=pytest.mark.thorough) for seed in range(5, 20))]
)
def test_our_own_quantization_keeps_the_laws_on_random_programs(seed, examples):
    with tempfile.TemporaryDirectory() as folder:  # histograms among them, as it mentions those of observers
        check_pass("quantize", seed=seed, max_examples=examples, settings=QUICK, folder=Path(folder))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
def test_our_own_quantization_keeps_the_laws_on_many_random_programs(seed):
    with tempfile.TemporaryDirectory() as folder:
        check_pass("quantize", seed=seed, max_examples=100, settings=QUICK, folder=Path(folder))
