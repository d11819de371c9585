"""The table of quantization: its rows, at the size of small models."""

import pytest
import torch

from pytest_fx.tables import NotRun, Scale, get_table
from pytest_fx.tables.pairs import time_rounds
from pytest_fx.tables.peers import ao_convert, ao_prepare
from pytest_fx.tables.rows import quantization
from pytest_fx.tables.table import Entry

SMALL = Scale(size="small", rounds=2)


def rows(scale=SMALL):
    return {row.name: row for row in get_table("quantization").rows(scale)}


@pytest.fixture(autouse=True)
def programs_are_let_go_of():
    yield
    quantization._programs.cache_clear()
    quantization._phases.cache_clear()


def cells_of(name, values):
    table = get_table("quantization")
    entry = Entry(name, table.numbers(values), {}, None)
    return {column.heading: text for column in table.columns if (text := entry.format(column.template)) is not None}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name, peer",
    [
        ("deep_recommender_small, 1 thread, batch 4", "torch.ao, oneDNN"),
        ("resnet_tiny, 1 thread, batch 4", "torch.ao, oneDNN"),
        ("transformer_encoder_small, 1 thread, batch 4", "torch.ao, dynamic"),
        ("vit_small, 1 thread, batch 4", "torch.ao, dynamic"),
    ],
)
def test_float_ours_and_torch_ao_run_in_the_same_rounds(name, peer):
    values = rows()[name].measure()
    assert len(values["float"]) == len(values["static"]) == len(values["dynamic"]) == len(values["ao"]) == 2
    cells = cells_of(name, values)
    assert {"float, s", "static", "dynamic", "torch.ao", peer} <= cells.keys()
    assert values["static_sqnr"] > 8 and values["dynamic_sqnr"] > 8


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_ao_finds_scales_in_each_call_where_that_is_requested(dynamic):
    prepared = ao_prepare(torch.nn.Sequential(torch.nn.Linear(4, 4)), (torch.ones(2, 4),), "x86", dynamic=dynamic)
    prepared(torch.ones(2, 4))
    layer = ao_convert(prepared, "x86").get_submodule("0")
    assert ("dynamic" in type(layer).__module__) == dynamic


def test_a_model_that_torch_fx_does_not_capture_is_measured_without_torch_ao():
    name = "bert_small, 1 thread, batch 4"
    values = rows()[name].measure()
    cells = cells_of(name, values)
    assert values["static_sqnr"] > 30 and {"static", "dynamic"} <= cells.keys()
    assert not any("torch.ao" in column for column in cells)


def test_phases_are_timed_beside_those_of_torch_ao():
    for phase in ("prepare", "calibrate", "convert", "convert and first call"):
        values = rows()[f"deep_recommender_small, {phase}"].measure()
        assert all(len(seconds) == 3 and min(seconds) > 0 for seconds in values.values())
        assert cells_of(phase, values).keys() == {"phase, s: fx, torch.ao"}


def test_on_a_gpu_nothing_is_measured_and_the_reason_is_reported(monkeypatch):
    row = rows()["deep_recommender_small, GPU, batch 256"]
    for available, reason in ((False, "no GPU"), (True, "the kernels on integers are the CPU's")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda answer=available: answer)
        with pytest.raises(NotRun, match=f"not run: {reason}"):
            row.measure()


def test_programs_take_turns_in_orders_that_differ():
    def called():
        calls = []
        programs = {name: lambda name=name: calls.append(name) for name in "abc"}
        timings = time_rounds(programs, baseline="a", rounds=10, threads=1)
        assert list(timings) == ["b", "c"] and timings["b"].eager == timings["c"].eager
        assert len(timings["c"].transformed) == 10
        return ["".join(calls[start : start + 3]) for start in range(0, len(calls), 3)]

    orders = called()
    assert len(orders) == 12 and all(sorted(order) == list("abc") for order in orders)
    assert len(set(orders)) > 3 and called() == orders


def test_weights_alone_in_8_bits_are_measured_for_few_inputs(monkeypatch):
    monkeypatch.setattr(quantization, "_FEW", 1)
    cells = cells_of("batch 4", rows()["deep_recommender_small, 1 thread, batch 4"].measure())
    assert {"static", "dynamic"} <= cells.keys() and "weight-only" not in cells
