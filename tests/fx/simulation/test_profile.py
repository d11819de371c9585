"""Profiles: the time of each node in real runs, beside an estimate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import fx
from fx.errors import AnalysisError
from fx.simulation.node_profiles import profile
from model_zoo import get_model
from tests.fx.simulation.calibrated import calibrated


def ticking(step: float = 1.0) -> Callable[[], float]:
    """A clock that advances by ``step`` at each reading."""
    now = [0.0]

    def read() -> float:
        now[0] += step
        return now[0]

    return read


def test_each_node_takes_the_clock_time_between_its_call_and_its_return() -> None:
    program = fx.symbolic_trace(lambda x: torch.relu(x).neg() * 2)
    report = profile(program, torch.ones(3), rounds=3, clock=ticking())
    assert [(str(node.node), node.seconds, node.least, node.most) for node in report.nodes] == [
        ("relu", 1.0, 1.0, 1.0), ("neg", 1.0, 1.0, 1.0), ("mul", 1.0, 1.0, 1.0),
    ]  # fmt: skip
    # A profiled run reads the clock at its ends, at its start, and twice a node.
    assert (report.seconds, report.profiled, report.overhead) == (1.0, 8.0, 8.0)


def test_warm_up_does_not_count() -> None:
    calls: list[int] = []

    class Slow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(len(calls))
            return x

    graph = fx.Graph()
    graph.output(graph.call_module("slow", (graph.placeholder("x"),)))
    program = fx.GraphModule({"slow": Slow()}, graph)

    def clock() -> float:  # a call takes a hundred times as long in the first two rounds
        return float(sum(100 if number < 4 else 1 for number in calls))

    report = profile(program, torch.ones(1), rounds=3, clock=clock)
    assert len(calls) == 2 * (2 + 3)
    (node_time,) = report.nodes
    assert (node_time.seconds, node_time.module) == (1.0, "slow")
    assert (node_time.least, node_time.most) == (1.0, 1.0)
    assert report.seconds == 1.0


def test_the_estimate_is_beside_the_time() -> None:
    program = fx.symbolic_trace(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    report = profile(program, torch.ones(2, 8), device=calibrated(), rounds=2, clock=ticking(1e-5))
    assert report.estimate is not None
    relu = report.nodes[1]
    assert relu.estimated == next(node.seconds for node in report.estimate.nodes if node.node is relu.node)
    text = str(report)
    assert "estimated" in text.splitlines()[1]
    assert text.splitlines()[3].split() == ["node", "time", "share", "estimated", "ratio"]


def test_the_chrome_trace_has_a_row_of_nodes_and_one_of_the_estimate(tmp_path: Path) -> None:
    program = fx.symbolic_trace(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    report = profile(program, torch.ones(2, 8), device=calibrated(), rounds=2, clock=ticking(1e-3))
    report.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    nodes = [event for event in events if event["ph"] == "X"]
    assert [(event["name"], event["tid"]) for event in nodes] == [("_0", 1), ("_0", 2), ("_1", 1), ("_1", 2)]
    assert [event["ts"] for event in nodes if event["tid"] == 1] == [1000.0, 3000.0]
    assert nodes[0]["args"]["target"] == "0"
    assert "container.py" in nodes[0]["args"]["where"]


def test_the_table_is_sorted_and_fits_a_line() -> None:
    model = get_model("resnet_tiny")
    report = profile(fx.symbolic_trace(model.build()), *model.example_inputs(batch=1), rounds=1)
    rows = [line.split() for line in str(report).splitlines()[3:-1]]
    shares = [float(row[-1].rstrip("%")) for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert str(report).splitlines()[-1].startswith("and ")
    assert max(map(len, str(report).splitlines())) <= 80
    assert all(node.least <= node.seconds <= node.most for node in report.nodes)


def test_no_rounds_are_refused() -> None:
    with pytest.raises(
        AnalysisError, match="profile cannot run 0 rounds\n  try    ask for 1 or more; 10 are the default"
    ):
        profile(fx.symbolic_trace(nn.ReLU()), torch.ones(1), rounds=0)
