"""The table of simulation: how far estimates are off, each model judged by the others; and rows that are worked out."""

import math
import random
from dataclasses import replace

import pytest
import torch

import fx
from pytest_fx.tables import Entry, NotRun, Scale, get_table
from pytest_fx.tables.estimates import (
    accuracy,
    compare,
    pairs_in_order,
    rank_correlation,
    reachable_rank,
    seconds_in_turns,
)
from pytest_fx.tables.paper_runs import PAPER_RUNS, XEON, PaperRun
from pytest_fx.tables.rows import simulation
from tests.fx.simulation.calibrated import calibrated


def model_of(row):
    return row.partition(",")[0]


def entry(name, ratio, spread=0.1, measured=10.0):
    numbers = {"measured": measured}
    for source in ("roofline", "kernels"):
        low, high = measured * ratio / math.exp(1.645 * spread), measured * ratio * math.exp(1.645 * spread)
        numbers |= {
            source: measured * ratio, f"{source}_low": low, f"{source}_high": high, f"{source}_ratio": ratio,
            f"{source}_error": abs(ratio - 1), f"{source}_spread": spread,
        }  # fmt: skip
    return Entry(name, numbers, {}, None)


def test_numbers_are_milliseconds_and_relative_errors():
    numbers = compare([0.010, 0.011, 0.012], {"roofline": 0.022, "roofline_spread": 0.3, "kernels": 0.0121})
    assert numbers["measured"] == 11.0
    assert (numbers["roofline"], numbers["roofline_ratio"], numbers["roofline_error"]) == (22.0, 2.0, 1.0)
    assert numbers["kernels_error"] == 0.1
    assert numbers["roofline_spread"] == 0.3
    assert numbers["measured_low"] <= 11.0 <= numbers["measured_high"]


def test_the_median_error_is_over_all_rows_and_ranks_are_those_of_the_measured_times():
    rows = [
        entry(f"model{place}, batch 1", ratio, measured=float(place + 1)) for place, ratio in enumerate([1.1, 1.2, 0.7])
    ]
    roofline, kernels = accuracy([*rows, Entry("not run", {}, {}, "no")], model_of)
    assert roofline.numbers["rows"] == 3
    assert roofline.numbers["error"] == pytest.approx(0.2)
    assert roofline.numbers["rank"] == 0.5
    assert "coverage" not in kernels.numbers
    assert accuracy([], model_of) == []


def test_the_interval_of_a_model_is_judged_by_the_other_models_alone():
    # Eleven models are off by up to 10 % either way. The first and the last are off by more than all others.
    rows = [entry(f"model{place}, batch 1", math.exp(0.02 * place - 0.1)) for place in range(11)]
    (roofline, _) = accuracy(rows, model_of)
    assert roofline.numbers["coverage"] == pytest.approx(9 / 11)
    outlier = [*rows[:-1], entry("model10, batch 1", 5.0)]
    (roofline, _) = accuracy(outlier, model_of)
    assert roofline.numbers["coverage"] == pytest.approx(10 / 11)
    # Its own rows do not widen the interval that it is judged by.
    both = [*outlier, entry("model10, batch 8", 5.0)]
    (roofline, _) = accuracy(both, model_of)
    assert roofline.numbers["coverage"] == pytest.approx(10 / 12)


def test_ranks_of_equal_values_are_shared():
    assert rank_correlation([1.0, 1.0, 2.0], [1.0, 1.0, 2.0]) == 1.0
    assert rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == -1.0
    assert math.isnan(rank_correlation([1.0], [1.0]))
    assert math.isnan(rank_correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]))


def pairs(before, after, kernels, roofline=1.0):
    return {"eager": [before] * 9, "transformed": [after] * 9, "kernels": kernels, "roofline": roofline}


def test_an_estimate_is_right_where_it_is_on_the_side_of_a_clear_speed_up():
    passes = {"a": pairs(1.0, 0.8, 1.1), "b": pairs(1.0, 1.3, 1.1, 0.9), "c": pairs(1.0, 1.005, 2.0)}
    numbers = get_table("simulation").numbers({"passes": passes})
    assert (numbers["decided"], numbers["right"], numbers["right_roofline"]) == (2, 1, 1)
    assert numbers["a_speedup"] == 1.25
    rows = [Entry("mlp, passes", numbers, {}, None), Entry("vit, passes", numbers, {}, None)]
    (total,) = get_table("simulation").totals(rows)
    assert (total.name, total.numbers["decided"], total.numbers["right"]) == ("all passes", 4, 2)
    assert "rank" in total.numbers
    assert (total.numbers["pairs"], total.numbers["pairs_right"]) == (12, 4)
    assert total.numbers["halves"] == total.numbers["reachable"] == 1.0


def test_small_siblings_are_the_same_model():
    assert simulation._model_of("vit_small, batch 8") == simulation._model_of("vit, batch 1") == "vit"


def test_programs_are_called_in_turns_and_long_ones_less_often(monkeypatch):
    order, clock = [], iter(range(10_000))
    monkeypatch.setattr("pytest_fx.tables.estimates.time.thread_time", lambda: float(next(clock)))
    times = seconds_in_turns([lambda: order.append("a"), lambda: order.append("b")], 30)
    assert [len(of_program) for of_program in times] == [5, 5]
    turns = order[4:]  # after the warm-up
    assert turns[:4] in (["a", "b", "b", "a"], ["b", "a", "a", "b"])


def test_a_turn_of_a_short_program_is_long_enough_to_tell_passes_apart(monkeypatch):
    calls, now = [], [0.0]
    monkeypatch.setattr("pytest_fx.tables.estimates.time.thread_time", lambda: now[0])

    def program():
        calls.append(now[0])
        now[0] += 1e-3

    (times,) = seconds_in_turns([program], 30)
    assert times == pytest.approx([1e-3] * 30)
    assert len(calls) == 2 + 30 * 50
    calls.clear()
    seconds_in_turns([program, lambda: calls.append(-1.0)], 3)
    assert [call < 0 for call in calls[4:8]] == [True, False, False, True], (
        "a millisecond each, in another order each time"
    )


@pytest.mark.parametrize("noise, least, most", [(0.0, 1.0, 1.0), (1.0, 0.93, 0.98), (3.0, 0.7, 0.9)])
def test_the_reachable_correlation_is_that_of_a_perfect_estimate(noise, least, most):
    drawn = random.Random(0)
    truth = [drawn.gauss(0, 2) for _ in range(400)]
    first, second = ([value + drawn.gauss(0, noise) for value in truth] for _ in range(2))
    halves, reachable = reachable_rank(first, second)
    measured = [(first + other) / 2 for first, other in zip(first, second, strict=True)]
    assert least <= reachable <= most
    assert reachable == pytest.approx(rank_correlation(truth, measured), abs=0.03)
    assert halves <= reachable
    assert all(map(math.isnan, reachable_rank([1.0], [1.0])))
    assert reachable_rank([1.0, 2.0, 3.0], [3.0, 1.0, 2.0])[1] == 0.0


def test_halves_have_as_many_rounds_of_either_order():
    assert simulation._halves([1.0, 2.0, 10.0, 20.0, 1.0, 2.0, 10.0, 20.0]) == (1.5, 15.0)
    assert simulation._halves([3.0]) == (3.0, 3.0)


def test_pairs_whose_intervals_overlap_are_in_no_order():
    intervals = [(1.0, 1.1), (1.05, 1.2), (1.3, 1.4)]
    assert pairs_in_order(intervals, [3.0, 2.0, 2.5]) == (1, 2)
    assert pairs_in_order(intervals, [1.0, 1.0, 1.0]) == (0, 2)


@pytest.fixture
def estimator(monkeypatch, tmp_path):
    """Estimates on a machine of round numbers."""
    monkeypatch.setattr("pytest_fx.tables.estimates.calibrated_here", lambda folder: calibrated())
    monkeypatch.setattr("fx.simulation.measured_times.Replay.seconds", lambda self, call: 1e-3)
    monkeypatch.chdir(tmp_path)
    simulation._estimator.cache_clear()
    yield
    simulation._estimator.cache_clear()


def test_a_row_has_measured_and_estimated_times(estimator):
    table = get_table("simulation")
    row = next(row for row in table.rows(Scale(rounds=3)) if row.name == "mlp, batch 8")
    assert row.timed
    numbers = table.numbers(row.measure())
    assert numbers["kernels"] == pytest.approx(8.0, rel=0.01)
    assert numbers["measured"] > 0
    assert numbers["roofline_low"] < numbers["roofline"] < numbers["roofline_high"]


def test_passes_that_change_nothing_are_left_out(estimator):
    rows = get_table("simulation").rows(Scale(rounds=2))
    passes_measured = next(row for row in rows if row.name == "two_heads, passes").measure()["passes"]
    assert "fuse-conv-bn" in passes_measured
    assert passes_measured["fuse-conv-bn"]["kernels"] > 1
    passes_measured = next(row for row in rows if row.name == "mlp, passes").measure()["passes"]
    assert list(passes_measured) == ["canonicalize"]


def test_runs_of_the_paper_are_estimated_beside_its_figures():
    table = get_table("simulation")
    runs = [PaperRun("resnet_tiny", "V100", 1, 4, seconds) for seconds in (1e-9, 1e9)]
    numbers = table.numbers(runs[0].estimate())
    assert numbers["roofline_low"] < numbers["roofline"] < numbers["roofline_high"]
    assert not numbers["inside"]
    inside = replace(runs[0], seconds=numbers["roofline"] * 1e-3)
    assert table.numbers(inside.estimate())["inside"]
    assert table.numbers(inside.estimate())["roofline_error"] == pytest.approx(0, abs=1e-6)
    assert table.paper["resnet50 on V100, batch 256"] == {"measured": 244.3}


def test_runs_of_the_paper_differ_in_name_and_in_what_is_estimated():
    assert len({run.name for run in PAPER_RUNS}) == len(PAPER_RUNS)
    run = PaperRun("resnet_tiny", XEON, 1, 16, 1.0)
    others = [replace(run, threads=20), replace(run, batch=64), replace(run, fused=True)]
    assert len({each.estimate()["roofline"] for each in (run, *others)}) == 4


@pytest.mark.parametrize(
    "name, device", [("NVIDIA H100 80GB HBM3", "H100"), ("Tesla V100-SXM2-16GB", "V100"), ("NVIDIA H200", "H200")]
)
def test_the_gpu_in_the_machine_is_known_by_its_name(monkeypatch, name, device):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: name)
    assert simulation.gpu_in_machine() == device


def test_a_gpu_that_is_not_known_or_not_there_is_not_estimated(monkeypatch):
    row = next(row for row in get_table("simulation").rows(Scale()) if row.name == "resnet50, GPU, batch 256")
    for available, reason in ((False, "no GPU"), (True, "the figures of Voodoo 2 are not known, those of A100, ")):
        monkeypatch.setattr("torch.cuda.is_available", lambda answer=available: answer)
        monkeypatch.setattr("torch.cuda.get_device_name", lambda: "Voodoo 2")
        with pytest.raises(NotRun, match=f"^not run: {reason}"):
            row.measure()
    assert row.on_gpu and row.timed


def test_rows_of_a_gpu_have_no_estimate_by_kernels():
    estimate = {"roofline": 0.02, "roofline_low": 0.015, "roofline_high": 0.025, "roofline_spread": 0.1}
    values = {"seconds": [0.01], "host_seconds": [0.001], **estimate, "device": "H200"}
    numbers = get_table("simulation").numbers(values)
    assert (numbers["measured"], numbers["roofline_ratio"]) == (10.0, 2.0)
    (only,) = accuracy([Entry("resnet50, GPU, batch 1", numbers, {}, None)], model_of)
    assert only.name == "all, by roofline" and only.numbers["error"] == 1.0


without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


@without_gpu
def test_torchs_estimators_that_need_an_accelerator_say_so():
    with pytest.raises(NotRun, match="CUDA"):
        simulation._by_torch("mlp", 1, "operator-level-cost-model")


@without_gpu
@pytest.mark.thorough
def test_inductors_estimate_is_nothing_on_a_cpu():
    with pytest.raises(NotRun, match=r"its estimate is 0 s|Error"):
        simulation._by_inductor("mlp", 1)


def test_passes_are_timed_on_copies_that_lie_elsewhere_in_memory(monkeypatch):
    timed = []

    def seconds(programs, rounds):
        timed.append(programs)
        return [[1.0 * rounds], [2.0 * rounds]]

    monkeypatch.setattr(simulation, "seconds_in_turns", seconds)
    before, after = fx.symbolic_trace(torch.nn.Linear(2, 2)), fx.symbolic_trace(torch.nn.Linear(2, 2))
    measured = simulation._seconds_of_copies(before, after, [torch.ones(1, 2)], 30)
    assert measured == ([6.0] * 5, [12.0] * 5)
    weights = {program.func.weight.data_ptr() for programs in timed for program in programs}
    assert len(weights | {before.weight.data_ptr(), after.weight.data_ptr()}) == 12
