"""--fx-estimate: estimated times beside the measured ones."""

import json

import pytest

from fx.simulation.measured_times import Replay
from tests.fx.simulation.calibrated import calibrated

TIME = """
import torch
def test_capture(fx_traced, fx_timing):
    fx_timing(fx_traced, label="capture")
def test_module(fx_model, fx_timing):
    fx_timing(fx_model.fresh(), label="module")
"""


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine on which each kernel takes a millisecond."""
    monkeypatch.setattr("pytest_fx.timing.estimates.calibrated_here", lambda folder: calibrated())
    monkeypatch.setattr(Replay, "seconds", lambda self, call: 1e-3)


def rows_of(pytester, *options):
    path = pytester.makepyfile(TIME)
    result = pytester.runpytest("--fx-model", "mlp", "--fx-rounds=2", "-v", "--benchmark-json=out.json", *options, path)
    result.assert_outcomes(passed=2)
    return result, json.loads((pytester.path / "out.json").read_text())["benchmarks"]


def test_estimated_times_are_beside_the_measured_ones(pytester):
    result, benchmarks = rows_of(pytester, "--fx-estimate")
    result.stdout.fnmatch_lines("*eager*transformed*estimated eager*estimated transformed*speed-up*estimated speed-up*")
    result.stdout.fnmatch_lines("mlp*capture* 8.0* ms * 8.0* ms *1.000*")
    estimated = [benchmark["extra_info"]["estimated"] for benchmark in benchmarks if "capture" in benchmark["name"]]
    assert estimated and all(8e-3 < seconds < 8.1e-3 for seconds in estimated)
    assert list((pytester.path / ".pytest_fx").glob("times-*.json"))


def test_a_program_without_a_graph_has_no_estimate(pytester):
    _, benchmarks = rows_of(pytester, "--fx-estimate")
    infos = [benchmark["extra_info"] for benchmark in benchmarks if "module" in benchmark["name"]]
    assert all(entry["estimated"] is None and entry["eager_estimated"] > 0 for entry in infos)


def test_nothing_is_estimated_unless_it_is_requested(pytester):
    result, benchmarks = rows_of(pytester)
    result.stdout.no_fnmatch_line("*estimated eager*")
    assert all(benchmark["extra_info"]["estimated"] is None for benchmark in benchmarks)
    assert not list((pytester.path / ".pytest_fx").glob("times*"))


def test_a_marker_asks_for_it(pytester):
    path = pytester.makepyfile(
        "import pytest\n@pytest.mark.fx(model='mlp', rounds=2, estimate=True)\n"
        "def test_capture(fx_traced, fx_timing): fx_timing(fx_traced, label='capture')"
    )
    pytester.runpytest("-v", path).stdout.fnmatch_lines("*estimated eager*")
