"""pytest_fx.records.baseline: speed-ups of two runs are compared by their intervals."""

import json
import math
from dataclasses import replace

import pytest

from pytest_fx.records.baseline import Baseline, Change, MatchCount, Measurement, describe, read_baseline

THEN = Measurement("resnet50", "fuse-conv-bn", 1, "float32", "cpu", 1, 1.20, 1.18, 1.22, "a machine")
FUSED = MatchCount("resnet50", "fuse-conv-bn", 53, 177, 124, True)
INFO = {
    "model": "resnet50",
    "pass": "fuse-conv-bn",
    "batch": 1,
    "dtype": "float32",
    "device": "cpu",
    "threads": 1,
    "speedup": 1.2,
    "speedup_interval": [1.18, 1.22],
}
MACHINE = {"machine": "a processor", "versions": {"torch": "2.13.0"}, "commit": "abc1234"}


def change_to(speedup: float, share: float) -> Change:
    return Change(THEN, replace(THEN, speedup=speedup, low=speedup * (1 - share), high=speedup * (1 + share)))


def test_a_smaller_speedup_is_a_slowdown_of_the_program():
    change = change_to(1.0, 0.01)
    assert change.slowdown == pytest.approx(0.2)
    low, high = change.interval
    assert low < 0.2 < high
    assert change.verdict == "slower"
    assert change.exceeds(0.15)
    assert not change.exceeds(0.2)


def test_a_larger_speedup_is_faster_and_exceeds_nothing():
    change = change_to(1.4, 0.01)
    assert change.verdict == "faster"
    assert not change.exceeds(0.0)


def test_a_difference_within_the_noise_is_no_change():
    change = change_to(1.15, 0.08)
    assert change.slowdown > 0.04
    assert change.verdict == "no change shown"
    assert not change.exceeds(0.0)


def test_the_interval_is_as_wide_as_that_of_a_difference_of_independent_normals():
    then = replace(THEN, speedup=1.0, low=math.exp(-0.03), high=math.exp(0.03))
    now = replace(THEN, speedup=1.0, low=math.exp(-0.04), high=math.exp(0.04))
    low, high = Change(then, now).interval
    assert (math.log1p(low), math.log1p(high)) == pytest.approx((-0.05, 0.05))


def test_each_side_of_an_interval_counts_for_itself():
    then = replace(THEN, speedup=1.0, low=1.0, high=1.0)
    now = replace(THEN, speedup=1.0, low=0.5, high=1.0)  # it may well have been slower, but not faster
    assert Change(then, now).interval == pytest.approx((0.0, 1.0))


@pytest.mark.parametrize(
    "other",
    [{"model": "mlp"}, {"program": "split"}, {"batch": 8}, {"dtype": "bfloat16"}, {"device": "cuda"}, {"threads": 2}],
    ids=lambda other: next(iter(other)),
)
def test_only_measurements_of_the_same_thing_are_compared(other):
    baseline = Baseline.of("main.json", [THEN])
    assert baseline.change(replace(THEN, machine="another")) is not None
    assert baseline.change(replace(THEN, **other)) is None


def test_timings_of_another_host_are_not_compared_and_those_of_a_host_that_is_not_named_are():
    baseline = Baseline.of("main.json", [replace(THEN, host="one")])
    assert baseline.change(replace(THEN, host="two")) is None
    assert baseline.measured_elsewhere(replace(THEN, host="two")) == "one"
    for host in ("one", None):
        assert baseline.change(replace(THEN, host=host)) is not None
        assert baseline.measured_elsewhere(replace(THEN, host=host)) is None
    assert baseline.measured_elsewhere(replace(THEN, host="two", batch=8)) is None


def test_a_baseline_arrives_whole_in_another_process():
    baseline = Baseline.of("main.json", [THEN, replace(THEN, batch=None)], [FUSED])
    assert Baseline.from_data(json.loads(json.dumps(baseline.as_data()))) == baseline


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"records": [{"row": {}, "timing": None}, {"timing": {"info": INFO}, "machine": MACHINE}]}),
        json.dumps({"timing": {"info": INFO}, "machine": MACHINE}) + '\n{"timing": {"in',
        json.dumps({"timing": None}) + "\n" + json.dumps({"timing": {"info": INFO}, "machine": MACHINE}) + "\n",
        json.dumps(
            {
                "machine_info": {"fx": MACHINE},
                "benchmarks": [
                    {"extra_info": {}},
                    {"extra_info": {**INFO, "role": "eager"}},
                    {"extra_info": {**INFO, "role": "transformed"}},
                ],
            }
        ),
    ],
    ids=["record", "journal of a killed run", "journal", "pytest-benchmark"],
)
def test_records_journals_and_benchmark_files_are_read(tmp_path, text):
    path = tmp_path / "file"
    path.write_text(text)
    (measurement,) = read_baseline(path, "file").measurements.values()
    assert measurement == replace(THEN, machine="a processor, torch 2.13.0, commit abc1234")


@pytest.mark.parametrize(
    "damage",
    [{"speedup": None}, {"speedup": "fast"}, {"speedup_interval": None}, {"speedup": 0.0}, {"model": None}],
    ids=lambda damage: next(iter(damage)),
)
def test_a_row_without_all_that_is_compared_is_no_row(tmp_path, damage):
    path = tmp_path / "file"
    path.write_text(json.dumps({"timing": {"info": {**INFO, **damage}}}))
    with pytest.raises(pytest.UsageError, match="holds no timings"):
        read_baseline(path, "file")


@pytest.mark.parametrize("info, machine", [({"host": "one"}, {"host": "controller"}), ({}, {"host": "one"})])
def test_the_host_is_that_of_the_worker_that_measured(tmp_path, info, machine):
    path = tmp_path / "file"
    path.write_text(json.dumps({"timing": {"info": {**INFO, **info}}, "machine": {**MACHINE, **machine}}))
    (measurement,) = read_baseline(path, "file").measurements.values()
    assert measurement.host == "one"


def test_a_machine_is_described_by_its_known_properties():
    assert describe({"host": "one", **MACHINE}) == "host one, a processor, torch 2.13.0, commit abc1234"
    assert describe({"device": "NVIDIA H100", **MACHINE}) == "NVIDIA H100, a processor, torch 2.13.0, commit abc1234"
    assert describe({}) == "torch ?"


@pytest.mark.parametrize(
    "interval, limit, noisy",
    [
        ((0.99, 1.01), 0.05, False),
        ((0.90, 1.10), 0.05, True),  # holds no change and the limit
        ((0.90, 1.10), 0.20, False),
        ((0.90, 1.10), None, True),
        ((0.97, 1.03), None, False),
    ],
)
def test_an_interval_that_holds_no_change_and_the_limit_is_too_noisy_to_decide(interval, limit, noisy):
    exactly = replace(THEN, speedup=1.0, low=1.0, high=1.0)
    now = replace(exactly, low=interval[0], high=interval[1])
    assert Change(exactly, now).too_noisy(limit) is noisy


def test_a_program_shown_to_be_slower_is_not_too_noisy_to_decide():
    assert not change_to(1.0, 0.15).too_noisy(0.05)


@pytest.mark.parametrize(
    "now, less",
    [
        ({}, False),
        ({"edits": 52}, True),
        ({"edits": 54}, False),
        ({"nodes_after": 125}, True),
        ({"nodes_after": 120}, False),
        ({"edits": None}, False),
        ({"edits": 0, "nodes_after": 177, "changed": False}, True),
    ],
    ids=str,
)
def test_fewer_edits_fewer_nodes_taken_away_and_nothing_are_less(now, less):
    assert replace(FUSED, **now).less_than(FUSED) is less


def test_a_pass_that_adds_nodes_or_names_no_edits_does_less_only_if_it_does_nothing():
    before = MatchCount("mlp", "split", None, 5, 9, True)
    assert not replace(before, nodes_after=12).less_than(before)
    assert not replace(before, nodes_after=7).less_than(before)
    assert replace(before, nodes_after=5, changed=False).less_than(before)


def test_rows_without_timings_are_read_for_the_changes_of_passes(tmp_path):
    row = {"model": "resnet50, batch 8", "program": "fuse-conv-bn", "nodes_before": 177, "nodes_after": 124}
    records = [{"row": {**row, "edits": 53, "changed": True}, "timing": None}, {"row": row, "timing": None}]
    path = tmp_path / "file"
    path.write_text(json.dumps({"records": records}))
    baseline = read_baseline(path, "file")
    assert not baseline.measurements
    assert baseline.match_counts == {("resnet50", "fuse-conv-bn"): FUSED}
