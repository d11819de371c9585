"""pytest_fx.records.benchmark_records: timings are pytest-benchmark's benchmarks too."""

import json
import statistics

import pytest

TIMING = """
def test_timing(fx_traced, fx_timing):
    fx_timing(fx_traced, label="capture")

def test_other():
    pass
"""


@pytest.fixture
def timing(pytester):
    return pytester.makepyfile(TIMING)


def test_eager_and_transformed_are_in_the_json_with_all_samples(pytester, timing):
    options = ("--fx-model", "mlp", "--fx-rounds", "5", "--fx-batch", "2", "--benchmark-json=out.json")
    result = pytester.runpytest(*options, timing)
    assert result.ret == 0
    record = json.loads((pytester.path / "out.json").read_text())
    eager, transformed = record["benchmarks"]
    assert (eager["name"], transformed["name"]) == ("mlp eager, beside capture", "mlp capture")
    assert eager["fullname"] != transformed["fullname"]
    assert eager["group"] == transformed["group"] == "fx mlp"
    for benchmark, role in ((eager, "eager"), (transformed, "transformed")):
        assert benchmark["stats"]["rounds"] == len(benchmark["stats"]["data"]) == 5
        assert 1e-6 < benchmark["stats"]["median"] < 60  # seconds, on a machine that does much else
        info = benchmark["extra_info"]
        assert (info["role"], info["batch"], info["threads"]) == (role, 2, 1)
        assert (info["model"], info["pass"], info["dtype"], info["device"]) == ("mlp", "capture", "float32", "cpu")
    low, high = transformed["extra_info"]["speedup_interval"]
    assert low <= transformed["extra_info"]["speedup"] <= high
    pairs = zip(eager["stats"]["data"], transformed["stats"]["data"], strict=True)
    ratio = statistics.median(before / after for before, after in pairs)
    assert ratio == pytest.approx(transformed["extra_info"]["speedup"])
    assert record["machine_info"]["fx"]["versions"]["torch"]
    assert "commit" not in record["machine_info"]["fx"]  # it would make every machine another after each commit


@pytest.mark.thorough
def test_saved_timings_can_be_compared_with(pytester, timing):
    options = ("--fx-model", "mlp", "--fx-rounds", "3", timing)
    pytester.runpytest(*options, "--benchmark-save=first")
    result = pytester.runpytest(*options, "--benchmark-compare=0001")
    assert result.ret == 0
    for run in ("NOW", "0001_first"):
        result.stdout.fnmatch_lines(f"mlp capture ({run}) *")


@pytest.mark.parametrize(
    "options, outcomes, line",
    [
        ("--fx-rounds 2 --benchmark-only -v", {"passed": 1, "skipped": 1}, "*mlp capture *"),
        ("--benchmark-skip", {"passed": 1, "skipped": 1}, "*1 passed, 1 skipped*"),
        ("--benchmark-disable -rs", {"passed": 1, "skipped": 1}, "SKIPPED*benchmarks are switched off*"),
        ("--fx-rounds 2 -v -p no:benchmark", {"passed": 2}, "mlp *capture * ms *"),
    ],
    ids=["only benchmarks", "no benchmarks", "disabled, for a reason that is shown", "timed without pytest-benchmark"],
)
def test_options_of_pytest_benchmark_are_those_of_timings(pytester, timing, options, outcomes, line):
    result = pytester.runpytest("--fx-model", "mlp", *options.split(), timing)
    result.assert_outcomes(**outcomes)
    result.stdout.fnmatch_lines(line)


OWN_BENCHMARK = """
def test_own(benchmark):
    benchmark(lambda: None)

def test_timing(fx_traced, fx_timing):
    fx_timing(fx_traced, label="capture")
"""


def benchmarks_shown(pytester, *options):
    """Return whether the user's own benchmark and the plugin's timing are in pytest-benchmark's table."""
    path = pytester.makepyfile(OWN_BENCHMARK)
    result = pytester.runpytest("--fx-model", "mlp", "--fx-rounds", "2", *options, path)
    result.assert_outcomes(passed=2)
    names = [line.partition("  ")[0].split(" (")[0] for line in result.outlines]
    return "test_own" in names, "mlp eager, beside capture" in names


def test_the_table_of_pytest_benchmark_has_the_users_own_benchmarks_alone(pytester):
    assert benchmarks_shown(pytester) == (True, False)


@pytest.mark.parametrize("option", ["-v", "--benchmark-sort=name", "--benchmark-columns=min,median"])
def test_it_has_timings_too_if_it_is_requested(pytester, option):
    assert benchmarks_shown(pytester, option) == (True, True)


def test_it_is_requested_in_the_ini_file_or_the_environment_too(pytester, monkeypatch):
    pytester.makeini("[pytest]\naddopts = --benchmark-sort=name")
    assert benchmarks_shown(pytester)[1]
    pytester.makeini("[pytest]")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--benchmark-sort=name")
    assert benchmarks_shown(pytester)[1]
