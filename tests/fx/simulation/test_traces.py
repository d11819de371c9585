"""Times from Chrome traces of torch.profiler: exact sizes, sizes between, devices with a host, files that are none."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fx
from fx.errors import AnalysisError
from fx.simulation.known_devices import get_device
from fx.simulation.run_times import simulate
from fx.simulation.traces import BETWEEN, IN_TRACE, TraceTimes, read_trace
from model_zoo import get_model


def op(
    name: str, dims: list[Any], start: float, dur: float, number: int = 0, concrete: list[str] | None = None
) -> dict[str, Any]:
    args = {"Input Dims": dims, "External id": number, "Concrete Inputs": concrete or [""] * len(dims)}
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": start, "dur": dur, "args": args}


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(*events: dict[str, Any]) -> Path:
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": list(events)}))
        return path

    return write


def test_calls_of_the_same_sizes_have_the_median_time(written: Callable[..., Path]) -> None:
    path = written(*[op("aten::relu", [[4, 8]], 100.0 * place, dur) for place, dur in enumerate((5.0, 900.0, 7.0))])
    (call,) = read_trace(path)
    assert (call.name, call.dims, call.count) == ("aten::relu", ((4, 8),), 3)
    assert call.seconds == pytest.approx(7e-6)


def test_a_program_takes_the_time_of_its_kernels_in_the_trace(written: Callable[..., Path]) -> None:
    path = written(op("aten::relu", [[4, 8]], 0, 40.0), op("aten::neg", [[4, 8]], 50, 60.0))
    program = fx.symbolic_trace(lambda x: torch.neg(torch.relu(x)))
    times = TraceTimes(path, get_device("EPYC 7763"))
    result = simulate(program, "EPYC 7763", torch.empty(4, 8), times=times)
    assert result.parts[IN_TRACE] == pytest.approx(100e-6)
    assert result.source == "trace"
    assert not times.missing


def test_other_sizes_lie_on_a_line_between_those_in_the_trace(written: Callable[..., Path]) -> None:
    path = written(op("aten::relu", [[100]], 0, 10.0), op("aten::relu", [[10000]], 50, 1000.0))
    times = TraceTimes(path, get_device("EPYC 7763"))
    program = fx.symbolic_trace(lambda x: torch.relu(x))
    between = simulate(program, "EPYC 7763", torch.empty(1000), times=times)
    assert between.parts[BETWEEN] == pytest.approx(100e-6)
    beyond = simulate(program, "EPYC 7763", torch.empty(40000), times=times)
    assert beyond.parts[BETWEEN] == pytest.approx(4000e-6)
    assert beyond.spread > between.spread


def test_products_between_sizes_go_by_their_multiply_adds(written: Callable[..., Path]) -> None:
    path = written(op("aten::mm", [[10, 10], [10, 10]], 0, 10.0), op("aten::mm", [[10, 1000], [1000, 10]], 50, 1000.0))
    program = fx.symbolic_trace(lambda x, y: torch.mm(x, y))
    times = TraceTimes(path, get_device("V100"))
    result = simulate(program, "EPYC 7763", torch.empty(100, 10), torch.empty(10, 10), times=times)
    assert result.parts[BETWEEN] == pytest.approx(100e-6)


def test_kernels_missing_in_the_trace_take_the_time_of_the_roofline(written: Callable[..., Path]) -> None:
    times = TraceTimes(written(op("aten::relu", [[4]], 0, 40.0)), get_device("EPYC 7763"))
    program = fx.symbolic_trace(lambda x: torch.tanh(x))
    result = simulate(program, "EPYC 7763", torch.empty(1 << 20), times=times)
    plain = simulate(program, "EPYC 7763", torch.empty(1 << 20))
    assert result.seconds == plain.seconds
    assert times.missing == {"aten::tanh"}


def test_on_an_accelerator_kernels_count_and_the_host_launches(written: Callable[..., Path]) -> None:
    dims: list[Any] = [[2, 3, 8, 8], [4, 3, 1, 1], [], [], [], [], [], [], []]
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 900, "dur": 70.0, "args": {"External id": 2}}
    path = written(
        op("aten::convolution", dims, 0, 30.0, 1), op("aten::cudnn_convolution", dims[:3], 5, 20.0, 2), kernel
    )
    convolution = next(call for call in read_trace(path) if call.name == "aten::convolution")
    assert convolution.seconds == pytest.approx(70e-6)
    assert convolution.launch == pytest.approx(30e-6)
    times = TraceTimes(path, get_device("V100"))
    program = fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 4, 1, bias=False)))
    result = simulate(program, "V100", torch.empty(2, 3, 8, 8), times=times)
    assert result.seconds == pytest.approx(70e-6)


def test_convolutions_of_other_steps_are_distinguished(written: Callable[..., Path]) -> None:
    dims: list[Any] = [[1, 3, 8, 8], [4, 3, 3, 3], [4], [], [], [], [], [], []]
    concrete = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
    wide = [*concrete[:3], "[2, 2]", *concrete[4:]]
    path = written(
        op("aten::convolution", dims, 0, 80.0, 0, concrete), op("aten::convolution", dims, 90, 20.0, 0, wide)
    )
    times = TraceTimes(path, get_device("EPYC 7763"))
    for step, seconds in ((1, 80e-6), (2, 20e-6)):
        program = fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 4, 3, step)))
        result = simulate(program, "EPYC 7763", torch.empty(1, 3, 8, 8), times=times)
        assert result.parts[IN_TRACE] == pytest.approx(seconds)


def test_a_trace_of_the_profiler_has_every_kernel_of_a_model(tmp_path: Path) -> None:
    model = get_model("resnet_tiny")
    program, inputs = fx.symbolic_trace(model.build()), model.example_inputs(batch=2)
    with torch.no_grad(), torch.profiler.profile(record_shapes=True) as profiler:
        program(*inputs)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress((tmp_path / "trace.json").read_bytes()))
    times = TraceTimes(tmp_path / "trace.json.gz", get_device("EPYC 7763"))
    result = simulate(program, "EPYC 7763", *inputs, times=times)
    assert not times.missing
    assert BETWEEN not in result.parts
    assert result.parts[IN_TRACE] > 0


@pytest.mark.parametrize("text", ["", "[1", '{"events": []}', '{"traceEvents": [{"ph": "X", "cat": "cpu_op"}]}'])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.json").write_text(text)
    message = r"t.json is not a trace that can be read\n  why .*\n  try    write one with torch"
    with pytest.raises(AnalysisError, match=message):
        read_trace(tmp_path / "t.json")


def test_a_trace_without_sizes_says_how_to_record_them(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::relu", "ts": 0, "dur": 1}
    (tmp_path / "t.json").write_text(json.dumps([event]))
    with pytest.raises(AnalysisError) as failure:
        read_trace(tmp_path / "t.json")
    assert str(failure.value).split("\n", 1)[1] == (
        "  why    there are 1 events, and none of category cpu_op with Input Dims\n"
        "  try    record it with torch.profiler.profile(record_shapes=True)"
    )
