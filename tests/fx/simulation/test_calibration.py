"""This machine as a device: measurement, storage and refusal elsewhere; kernels measured one by one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fx
from fx.analysis.kernel_calls import KernelCall, record_calls
from fx.errors import AnalysisError
from fx.simulation import measured_times
from fx.simulation.calibration import _products, calibrate, load_device, save_device
from fx.simulation.devices import Curve
from fx.simulation.kernel_times import Roofline, family_of
from fx.simulation.known_devices import get_device
from fx.simulation.measured_times import MEASURED, MeasuredTimes, Replay, distances_of
from fx.simulation.probes import operator_probes, product_probes
from fx.simulation.product_sizes import product_sizes
from fx.simulation.run_times import name_of_function, simulate
from model_zoo import get_model
from pytest_fx.harness.evaluation import threads
from tests.fx.simulation.calibrated import calibrated


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[KernelCall]:
    """Take no times: each kernel that is run takes a millisecond."""
    run: list[KernelCall] = []

    def seconds(self: Replay, call: KernelCall) -> float:
        run.append(call)
        return 1e-3

    monkeypatch.setattr(Replay, "seconds", seconds)
    return run


@pytest.mark.parametrize("read", [load_device, calibrate])
def test_a_calibration_is_the_same_after_a_file_which_is_read_instead_of_measuring(tmp_path: Path, read: Any) -> None:
    save_device(calibrated(), tmp_path / "here" / "machine.json")
    assert read(tmp_path / "here" / "machine.json") == calibrated()


def test_another_machines_calibration_is_refused(tmp_path: Path) -> None:
    device = calibrated()
    assert device.calibration is not None
    machine = replace(device.calibration.machine, processor="Abacus 9", threads=64)
    other = replace(device, calibration=replace(device.calibration, machine=machine))
    save_device(other, tmp_path / "machine.json")
    with pytest.raises(AnalysisError) as failure:
        calibrate(tmp_path / "machine.json")
    what, where, value, why, remedy = str(failure.value).splitlines()
    assert what == "times that were measured on another machine do not hold here"
    assert where.endswith("machine.json")
    assert value.startswith("  value  measured on Abacus 9, 64 thread(s), torch ")
    assert why == f"  why    this is {device.calibration.machine}"
    assert remedy == "  try    calibrate() here, into another file"
    with pytest.raises(AnalysisError, match="do not hold here"):
        MeasuredTimes(other)


def test_another_number_of_threads_is_another_machine(tmp_path: Path) -> None:
    save_device(calibrated(), tmp_path / "machine.json")
    number = torch.get_num_threads() + 1
    with threads(number), pytest.raises(AnalysisError, match=f"this is .* {number} thread"):
        load_device(tmp_path / "machine.json")


@pytest.mark.parametrize("text", ["", "{}", '{"format": 0}', '{"format": 4, "device": {"calibration": 3}}'])
def test_a_file_that_is_no_calibration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "machine.json").write_text(text)
    message = r"machine.json is not a calibration that can be read\n  why .*\n  try    remove it"
    with pytest.raises(AnalysisError, match=message):
        load_device(tmp_path / "machine.json")


def test_an_uncalibrated_device_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="V100 was not calibrated\n  try    save what calibrate"):
        save_device(get_device("V100"), tmp_path / "v100.json")


def test_a_calibrated_device_takes_measured_rates_launches_and_python() -> None:
    program = fx.symbolic_trace(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()))
    result = simulate(program, calibrated(bandwidth=Curve((1.0,), (1e12,))), torch.empty(1024, 1024))
    linear, relu = result.nodes
    assert linear.seconds == pytest.approx(2 * 1024**3 / 2.0**40 + 1e-6 + 2e-6 + 5e-7, rel=0.01)
    assert relu.seconds == pytest.approx(8.39e-3 + 3e-6, rel=0.02)
    assert result.source == "roofline"


def test_a_function_with_a_measured_overhead_uses_it() -> None:
    overheads = {name_of_function(torch.relu): 1.0, "python function": 2.0, "call_function": 4.0, "call_method": 8.0}
    device = calibrated(overheads=overheads)
    for function, rest, seconds in (
        (torch.relu, (), 1.0), (nn.functional.gelu, (), 4.0), (nn.functional.softmax, (0,), 2.0),
    ):  # fmt: skip
        graph = fx.Graph()
        graph.output(graph.call_function(function, (graph.placeholder("x"), *rest)))
        program = fx.GraphModule({}, graph)
        assert simulate(program, device, torch.empty(3, 3)).seconds == pytest.approx(seconds, rel=1e-3)


def test_an_operator_that_was_not_timed_is_as_uncertain_as_operators_differ() -> None:
    device = calibrated(common=0.0)
    timed = simulate(fx.symbolic_trace(lambda x: torch.relu(x)), device, torch.empty(1 << 18))
    untimed = simulate(fx.symbolic_trace(lambda x: torch.erf(x)), device, torch.empty(1 << 18))
    assert untimed.seconds == pytest.approx(timed.seconds)
    assert untimed.spread > 5 * timed.spread
    assert untimed.dominating == "operators that were not timed"


def test_each_kernel_is_measured_once_for_its_sizes(quick: list[KernelCall]) -> None:
    times = MeasuredTimes(calibrated())
    program = fx.symbolic_trace(lambda x: torch.relu(torch.relu(torch.relu(x))))
    first = simulate(program, calibrated(), torch.empty(1000), times=times)
    assert len(quick) == len(times) == 1
    simulate(program, calibrated(), torch.empty(1000), times=times)
    assert len(quick) == 1
    simulate(program, calibrated(), torch.empty(1001), times=times)
    assert len(quick) == 2
    assert first.seconds == pytest.approx(3e-3, rel=0.01)
    assert first.source == "measured"
    assert next(iter(first.parts)) == MEASURED


def test_measured_times_are_remembered_on_disk(quick: list[KernelCall], tmp_path: Path) -> None:
    program = fx.symbolic_trace(lambda x: torch.relu(x))
    times = MeasuredTimes(calibrated(), tmp_path / "times.json")
    simulate(program, calibrated(), torch.empty(10), times=times)
    times.save()
    again = MeasuredTimes(calibrated(), tmp_path / "times.json")
    simulate(program, calibrated(), torch.empty(10), times=again)
    assert len(quick) == 1
    data = json.loads((tmp_path / "times.json").read_text())
    data["machine"]["torch"] = "0.1"
    (tmp_path / "times.json").write_text(json.dumps(data))
    with pytest.raises(AnalysisError, match=r"measured on another machine do not hold here\n  where .*times.json"):
        MeasuredTimes(calibrated(), tmp_path / "times.json")
    (tmp_path / "times.json").write_text("[]")
    message = r"times.json holds no times that can be read\n  why .*\n  try    remove it"
    with pytest.raises(AnalysisError, match=message):
        MeasuredTimes(calibrated(), tmp_path / "times.json")


def test_times_are_measured_on_this_machine_only() -> None:
    with pytest.raises(AnalysisError, match="kernels cannot be run on V100 from here"):
        MeasuredTimes(get_device("V100"))
    with pytest.raises(AnalysisError, match="there is no file to remember times in"):
        MeasuredTimes(calibrated()).save()


def test_a_kernel_that_cannot_run_alone_takes_the_time_of_the_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Replay, call: KernelCall) -> float:
        raise ValueError("no")

    monkeypatch.setattr(Replay, "_seconds", refuse)
    program = fx.symbolic_trace(lambda x: torch.relu(x))
    times = MeasuredTimes(calibrated())
    (call,) = record_calls(program, torch.empty(10)).calls
    assert times.time_of(call) == times.time_of(call) == Roofline(calibrated()).time_of(call)
    (reason,) = times.refused.values()
    assert reason.splitlines()[0] == "aten.relu.default cannot be timed alone"
    assert "ValueError: no" in reason


@pytest.mark.parametrize("name", ["dlrm_small", "lstm_classifier_small", "vit_small", "llama_small", "unet_small"])
def test_the_kernels_of_models_run_on_operands_that_are_made_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replay, "_overload_cost", lambda self, call: 0.0)
    monkeypatch.setattr(measured_times, "seconds_of", lambda call, **_: float(call() is not None))
    model, replay = get_model(name), Replay()
    calls = record_calls(fx.symbolic_trace(model.build()), *model.example_inputs(batch=2)).calls
    before = torch.get_rng_state()
    assert all(replay.seconds(call) == 1.0 for call in calls)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_extra_time_of_a_call_by_overload_is_subtracted(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([10.0, 3.0, 2.0, 14.0, 5.0])  # the call; relu, and a convolution of nine arguments
    monkeypatch.setattr(measured_times, "seconds_of", lambda call, **_: next(seconds, 10.0))
    replay = Replay()
    relu, add = (
        record_calls(fx.symbolic_trace(function), torch.empty(3)).calls[0]
        for function in (lambda x: torch.relu(x), lambda x: x + x)
    )
    assert replay.seconds(relu) == 9.0
    assert replay.seconds(add) == 8.0


def test_operands_from_far_away_are_spread_over_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    weights: set[int] = set()

    def look(call: object, **_: object) -> float:
        for _ in range(6):
            weights.add(call()[1].data_ptr())  # type: ignore[operator]
        return 1.0

    layers = nn.Sequential(*[nn.Linear(1000, 1000) for _ in range(3)])
    calls = record_calls(fx.symbolic_trace(layers), torch.empty(1, 1000)).calls
    addmm = calls[-1]
    assert max(distances_of(addmm)) == 2
    monkeypatch.setattr(Replay, "_overload_cost", lambda self, call: 0.0)
    monkeypatch.setattr(measured_times, "seconds_of", look)
    look_at = replace(addmm, func=_Both(addmm.func))
    Replay().seconds(look_at)
    assert len(weights) >= 4


class _Both:
    """An operator that also returns its last operand."""

    def __init__(self, func: object) -> None:
        self._func = func
        self._schema = func._schema  # type: ignore[attr-defined]

    def __call__(self, *args: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._func(*args), args[2]  # type: ignore[operator]


def test_products_take_the_measured_time_without_their_launch() -> None:
    calls = [record_calls(fx.symbolic_trace(nn.Linear(n, n)), torch.empty(n, n)).calls[-1] for n in (16, 32, 64, 128)]
    timed = [(call, 1e-6 + call.work.flops * 2.0**-30) for call in calls]
    surfaces = _products(timed, {"matrix": 1e-6})
    for sizes in map(product_sizes, calls):
        assert sizes is not None
        assert surfaces["matrix"].at(sizes.features)[0] == pytest.approx(-30, abs=0.1)
    assert surfaces["matrix"].spread < 0.1


@pytest.mark.thorough
def test_products_that_are_timed_cover_the_sizes_of_the_models() -> None:
    probes = [*map(product_sizes, product_probes())]
    for name in ("unet_small", "vit_small", "lstm_classifier_small", "gpt2_small"):
        model = get_model(name)
        for call in record_calls(fx.symbolic_trace(model.build()), *model.example_inputs(batch=1)).calls:
            sizes = product_sizes(call)
            if sizes is not None:
                alike = [probe for probe in probes if probe is not None and probe.kind == sizes.kind]
                assert min(probe.rows for probe in alike) <= sizes.rows <= max(probe.rows for probe in alike)


@pytest.mark.thorough
def test_timed_operators_do_not_include_products() -> None:
    probes = list(operator_probes())
    assert all(product_sizes(call) is None for call in probes)
    assert {"aten.relu", "aten.native_layer_norm", "aten._softmax", "aten.clone, strided"} <= {*map(family_of, probes)}


@pytest.mark.thorough
def test_this_machine_is_measured_in_seconds(tmp_path: Path) -> None:
    device = calibrate(tmp_path / "machine.json")
    assert load_device(tmp_path / "machine.json") == device
    model = get_model("resnet_tiny")
    program, inputs = fx.symbolic_trace(model.build()), model.example_inputs(batch=8)
    with torch.no_grad():
        seconds = measured_times.seconds_of(lambda: program(*inputs))
    times = MeasuredTimes(device)
    assert seconds / 3 < simulate(program, device, *inputs).seconds < 3 * seconds
    assert seconds / 2 < simulate(program, device, *inputs, times=times).seconds < 2 * seconds
