"""Programs served by many devices: batches, replicas, stages."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

import fx
from fx.errors import AnalysisError
from fx.simulation.deployments import Deployment, Served, simulate_deployments
from fx.simulation.devices import Curve, Figure
from fx.simulation.known_devices import get_device


def layers(*widths: int) -> Served:
    modules = [nn.utils.skip_init(nn.Linear, *pair) for pair in itertools.pairwise(widths)]
    program = fx.symbolic_trace(nn.Sequential(*modules))
    return Served("layers", program, lambda batch: [torch.empty(batch, widths[0])])


def test_a_range_of_batches_is_a_list_of_deployments() -> None:
    report = simulate_deployments([layers(512, 512)], [Deployment("V100", batch=batch) for batch in (1, 64, 4096)])
    speeds = [service.throughput for service in report.services]
    assert speeds == sorted(speeds)
    assert all(
        service.throughput == pytest.approx(service.deployment.batch / service.latency) for service in report.services
    )


def test_replicas_multiply_the_throughput_and_leave_the_latency() -> None:
    single, many = simulate_deployments(
        [layers(512, 512)], [Deployment("V100"), Deployment("V100", replicas=8)]
    ).services
    assert many.throughput == pytest.approx(8 * single.throughput)
    assert many.latency == single.latency
    assert (single.devices, many.devices) == (1, 8)


def test_stages_share_the_nodes_so_that_the_slowest_takes_least() -> None:
    served = layers(4096, 4096, 4096, 4096, 4096)
    whole, cut = simulate_deployments(
        [served], [Deployment("EPYC 7763", batch=512), Deployment("EPYC 7763", batch=512, stages=2)]
    ).services
    assert [[str(node) for node in stage.nodes] for stage in cut.stages] == [["_0", "_1"], ["_2", "_3"]]
    assert cut.stages[0].seconds == pytest.approx(whole.latency / 2, rel=0.05)
    assert cut.latency > whole.latency
    assert cut.throughput > 1.7 * whole.throughput


def test_a_stage_sends_the_values_of_later_ones_and_holds_its_own_parameters() -> None:
    device = replace(get_device("EPYC 7763"), link=Figure(1e6, "a test", 0.0))
    (cut,) = simulate_deployments([layers(100, 1000, 100)], [Deployment(device, batch=10, stages=2)]).services
    first, second = cut.stages
    assert (first.sent, second.sent) == (10 * 1000 * 4, 0)
    assert first.transfer == pytest.approx(0.04)
    parameters = (100 * 1000 + 1000) * 4
    assert first.memory >= parameters
    assert cut.throughput == pytest.approx(10 / (first.seconds + first.transfer))


def test_values_that_no_later_stage_needs_are_not_sent() -> None:
    program = fx.symbolic_trace(lambda x: (x @ x).relu() @ x)
    device = get_device("EPYC 7763")
    served = Served("products", program, lambda batch: [torch.empty(512, 512)])
    (cut,) = simulate_deployments([served], [Deployment(device, stages=2)]).services
    assert [stage.sent for stage in cut.stages] == [512 * 512 * 4, 0]


def test_an_uneven_program_is_cut_beside_its_slowest_node() -> None:
    (cut,) = simulate_deployments(
        [layers(64, 64, 64, 4096, 64)], [Deployment("EPYC 7763", batch=64, stages=3)]
    ).services
    assert [len(stage.nodes) for stage in cut.stages] == [2, 1, 1]


def test_programs_that_share_devices_take_turns() -> None:
    small, large = layers(64, 64), layers(2048, 2048)
    deployment = Deployment("EPYC 7763", batch=8)
    report = simulate_deployments([small, large], [deployment])
    speeds = [service.throughput for service in report.services]
    assert report.mixed_throughput(deployment) == pytest.approx(2 / sum(1 / speed for speed in speeds))


def test_a_program_that_fits_no_device_fits_once_it_is_cut() -> None:
    device = replace(get_device("V100"), capacity=Figure(20e6, "a test", 0.0), bandwidth=Curve((1.0,), (1e12,)))
    whole, cut = simulate_deployments(
        [layers(1024, 1024, 1024, 1024, 1024, 1024, 1024)], [Deployment(device), Deployment(device, stages=3)]
    ).services
    assert not whole.fits
    assert cut.fits
    text = str(simulate_deployments([layers(8192, 8192)], [Deployment(device)]))
    assert text.splitlines()[-1] == "!: more memory than the device has"


def test_the_table_fits_a_line() -> None:
    deployments = [Deployment("Xeon Gold 6138", batch=64, replicas=16, stages=4)]
    text = str(simulate_deployments([layers(*[512] * 9)], deployments))
    assert "16 x 4" in text
    assert max(map(len, text.splitlines())) <= 80


def test_deployments_that_make_no_sense_are_refused() -> None:
    with pytest.raises(AnalysisError, match=r"a deployment has 0 replicas\n  value .*\n  try    give 1 or more"):
        simulate_deployments([layers(8, 8)], [Deployment("V100", replicas=0)])
    with pytest.raises(AnalysisError) as failure:
        simulate_deployments([layers(8, 8)], [Deployment("V100", stages=3)])
    assert str(failure.value) == (
        "layers cannot be cut into 3 stages\n"
        "  why    only 1 of its nodes take any time\n"
        "  try    ask for fewer stages, or capture it with smaller modules"
    )
