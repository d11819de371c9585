"""pytest_fx.parallel.distribution: which tests are timings, and their place among workers."""

from types import SimpleNamespace

import pytest

from pytest_fx.options import OPTIONS
from pytest_fx.parallel.distribution import LOCK, is_timing, plain_name, reason_not_to_time, take_turns


def worker(pytestconfig: pytest.Config, **options: bool) -> SimpleNamespace:
    """The configuration of a worker whose options are those of this run."""
    options_given = {"benchmark_disable": False, "benchmark_enable": False, **options}
    return SimpleNamespace(
        stash={OPTIONS: pytestconfig.stash[OPTIONS]},
        workerinput={"testrunuid": "a run of test_distribution"},
        getoption=lambda name, default=None: options_given.get(name, default),
    )


@pytest.mark.parametrize(
    "marker, timing",
    [
        (pytest.mark.xdist_group("fx-timing"), True),
        (pytest.mark.xdist_group(name="fx-timing"), True),
        (pytest.mark.xdist_group("fx"), False),
    ],
)
def test_a_test_in_the_group_of_timings_is_one(marker, timing):
    def of_group(name):
        return [marker.mark] if name == marker.name else []

    assert is_timing(SimpleNamespace(iter_markers=of_group)) is timing


def test_a_test_that_asks_for_a_timing_is_one():
    item = SimpleNamespace(fixturenames=["fx_model", "fx_timing"], iter_markers=lambda name: [])
    assert is_timing(item)


def test_a_name_is_the_same_with_and_without_its_group():
    assert plain_name("a.py::test[x]@fx-timing") == plain_name("a.py::test[x]") == "a.py::test[x]"


def test_where_no_file_can_be_locked_a_worker_times_nothing_and_says_so(pytestconfig, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    config = worker(pytestconfig)
    take_turns(config)
    assert LOCK not in config.stash
    assert reason_not_to_time(config) == (
        "times taken beside other workers mean nothing, and no file can be locked here: run without -n"
    )


def test_a_worker_that_can_lock_times_unless_benchmarks_are_switched_off(pytestconfig):
    config = worker(pytestconfig)
    take_turns(config)
    config.stash[LOCK].release()
    assert reason_not_to_time(config) is None
    disabled = worker(pytestconfig, benchmark_disable=True)
    assert reason_not_to_time(disabled) == "benchmarks are switched off (--benchmark-disable)"


class SentTests:
    """A worker that notes which tests it gets."""

    def __init__(self) -> None:
        self.tests: list[int] = []

    def send_runtest_some(self, tests: list[int]) -> None:
        """Note the tests."""
        self.tests += tests


@pytest.mark.parametrize("checks, sent", [(1, [0, 1, 2]), (3, [0, 1])], ids=["one check", "several checks"])
def test_a_worker_with_one_check_gets_the_timings_at_once_as_it_would_wait_for_another_test(checks, sent):
    scheduling = pytest.importorskip("pytest_fx.parallel.scheduling")
    scheduler, node = object.__new__(scheduling.TimingsLast), SentTests()
    scheduler.collection = [f"check {number}" for number in range(checks)] + ["a@fx-timing", "b@fx-timing"]
    scheduler.pending = list(range(len(scheduler.collection)))
    scheduler.node2pending = {node: []}
    scheduler._send_tests(node, 2)
    assert node.tests == sent
    assert scheduler.pending == [index for index in range(checks + 2) if index not in sent]
