"""Simulation: run time and memory of programs on devices that are not here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import fx
from fx.errors import AnalysisError
from fx.simulation.devices import Curve, Device, Figure
from fx.simulation.known_devices import get_device, list_devices, register_device
from fx.simulation.run_times import Simulation, Training, simulate
from model_zoo import get_model


def simple(kind: str = "cpu") -> Device:
    """A device of round numbers: 1 TFLOP/s, 1 GB/s from memory, ten times that from a cache of 1 MB."""
    sure = lambda value: Figure(value, "a test", 0.0)  # noqa: E731
    return Device(
        name="simple", kind=kind, arithmetic={torch.float32: sure(1e12)},
        bandwidth=Curve((1e6, 1.001e6), (1e10, 1e9)), bandwidth_source="a test", memory=sure(1e9), capacity=sure(1e9),
        launch=sure(1e-6), efficiency=sure(1.0), fill=sure(0.0), link=sure(1e9), common=0.0,
    )  # fmt: skip


def product(size: int) -> tuple[fx.GraphModule, torch.Tensor, torch.Tensor]:
    return fx.symbolic_trace(lambda x, y: torch.mm(x, y)), torch.empty(size, size), torch.empty(size, size)


def test_a_large_product_takes_its_operations_over_the_rate() -> None:
    result = simulate(product(4096)[0], replace(simple(), bandwidth=Curve((1.0,), (1e15,))), *product(4096)[1:])
    assert result.seconds == pytest.approx(2 * 4096**3 / 1e12 + 1e-6, rel=1e-3)


def test_an_operation_on_each_element_takes_its_bytes_over_the_bandwidth_of_memory() -> None:
    program = fx.symbolic_trace(lambda x: torch.relu(x))
    result = simulate(program, simple(), torch.empty(10_000_000))
    assert result.seconds == pytest.approx(80e6 / 1e9, rel=1e-3)


def test_recently_computed_values_come_from_the_cache() -> None:
    program = fx.symbolic_trace(lambda x: torch.relu(torch.neg(x)))
    result = simulate(program, simple(), torch.empty(50_000))
    assert result.nodes[1].seconds == pytest.approx(1e-6 + 400e3 / 1e10, rel=1e-3)


def test_parameters_that_are_needed_once_a_run_come_from_memory_where_the_whole_program_fits_no_cache() -> None:
    layers = nn.Sequential(nn.Linear(400, 400), nn.Linear(400, 400))
    far = simulate(fx.symbolic_trace(layers), simple(), torch.empty(1, 400))
    near = simulate(fx.symbolic_trace(layers[0]), simple(), torch.empty(1, 400))
    assert near.seconds < 640e3 / 1e9 < far.seconds / 2 * 1.01


def test_views_take_no_bandwidth() -> None:
    program = fx.symbolic_trace(lambda x: x.view(-1).unsqueeze(0))
    result = simulate(program, simple(), torch.empty(1000, 1000))
    assert result.seconds < 2e-6


def test_an_in_place_operation_touches_its_storage_once_each_way() -> None:
    in_place = simulate(fx.symbolic_trace(lambda x: x.relu_()), simple(), torch.empty(10_000_000))
    apart = simulate(fx.symbolic_trace(lambda x: x.relu()), simple(), torch.empty(10_000_000))
    assert in_place.seconds == pytest.approx(apart.seconds, rel=1e-3)
    assert in_place.memory < apart.memory


def test_an_accelerator_launches_while_it_computes() -> None:
    program = fx.symbolic_trace(lambda x: torch.relu(torch.neg(x)))
    small, large = (simulate(program, simple("cuda"), torch.empty(count)) for count in (10, 10_000_000))
    assert small.seconds == pytest.approx(2e-6)
    assert small.waiting == pytest.approx(2e-6, rel=0.01)
    assert large.seconds == pytest.approx(160e6 / 1e9, rel=1e-3)
    assert large.waiting == 0


def test_the_interval_is_wide_for_uncertain_figures_and_names_them() -> None:
    unsure = replace(simple(), memory=Figure(1e9, "a guess", 0.5))
    program = fx.symbolic_trace(lambda x: torch.relu(x))
    result = simulate(program, unsure, torch.empty(10_000_000))
    low, high = result.interval
    assert low < result.seconds / 2
    assert high > 2 * result.seconds
    assert result.dominating == "bandwidth of memory"
    sure = simulate(program, simple(), torch.empty(10_000_000))
    assert sure.interval == (sure.seconds, sure.seconds)


@pytest.mark.thorough
def test_resnet50_on_a_v100_takes_the_time_of_the_paper() -> None:
    program = fx.symbolic_trace(get_model("resnet50").build())
    result = simulate(program, "V100", torch.empty(256, 3, 224, 224))
    low, high = result.interval
    assert low < 0.2443 < high
    assert result.fits


def trained(**options: object) -> Simulation:
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)])
    return simulate(fx.symbolic_trace(layers), simple(), torch.empty(512, 64), training=Training(**options))


def test_training_takes_the_gradients_and_the_states_of_the_optimizer() -> None:
    parameters = 4 * (64 * 64 + 64) * 4
    plain, momentum, adam = (trained(optimizer=name) for name in ("sgd", "momentum", "adam"))
    assert momentum.memory - plain.memory == parameters
    assert adam.memory - plain.memory == 2 * parameters
    assert plain.seconds < momentum.seconds < adam.seconds
    assert sum(node.backward for node in plain.nodes) > sum(node.forward for node in plain.nodes)


def test_computing_values_again_saves_memory_and_takes_time() -> None:
    stored, again = trained(), trained(recompute=True)
    assert again.memory < stored.memory
    assert again.seconds > stored.seconds
    assert stored.memory - again.memory == stored.activations.peak - stored.activations.peak_recompute


def test_inputs_are_those_that_shape_propagation_noted() -> None:
    program = fx.symbolic_trace(nn.Linear(8, 4))
    fx.passes.shape_prop.ShapeProp(program).propagate(torch.ones(2, 8))
    assert simulate(program, "A100").seconds == simulate(program, "A100", torch.ones(2, 8)).seconds


def test_without_inputs_the_error_names_the_missing_argument() -> None:
    with pytest.raises(AnalysisError) as failure:
        simulate(fx.symbolic_trace(nn.Linear(8, 4)), "A100")
    assert str(failure.value) == (
        "nothing is known of the input input_1\n"
        "  why    simulate was given no inputs, and its placeholder has no meta['tensor_meta']\n"
        "  try    simulate(gm, device, *inputs), with real or fake tensors"
    )


def test_a_device_that_is_not_known_is_answered_with_the_nearest() -> None:
    with pytest.raises(AnalysisError, match="there is no device named 'H10'\n  try    did you mean 'H100'"):
        get_device("H10")


def test_two_devices_of_one_name_are_refused() -> None:
    with pytest.raises(AnalysisError, match="two devices are named 'V100'"):
        register_device(replace(simple(), name="V100"))


@pytest.mark.parametrize("name", list_devices())
def test_each_figure_of_a_known_device_names_its_source(name: str) -> None:
    device = get_device(name)
    figures = [device.memory, device.capacity, device.launch, device.efficiency, device.link]
    figures += [*device.arithmetic.values(), *device.convolutions.values()]
    assert all(len(figure.source) > 10 and figure.value > 0 for figure in figures)
    assert device.bandwidth_source
    assert list(device.bandwidth.sizes) == sorted(device.bandwidth.sizes)
    assert list(device.bandwidth.values) == sorted(device.bandwidth.values, reverse=True)


def test_fewer_processors_compute_less_and_get_less_of_the_memory() -> None:
    whole = get_device("Xeon Gold 6138")
    limited = whole.limited_to(1)
    assert (
        whole.rate(torch.float32).value / 20 < limited.rate(torch.float32).value < whole.rate(torch.float32).value / 10
    )
    assert whole.memory.value / 20 < limited.memory.value < whole.memory.value
    with pytest.raises(AnalysisError, match="Xeon Gold 6138 has 20 processor\\(s\\), not 21\n  try    ask for at most"):
        whole.limited_to(21)


def test_a_dtype_that_is_not_listed_takes_the_rate_of_the_next_wider_one_with_doubt() -> None:
    rate = simple().rate(torch.float16)
    assert rate.value == 1e12
    assert rate.spread >= 0.5


def test_the_report_fits_a_line_and_names_uncertain_figures() -> None:
    program = fx.symbolic_trace(get_model("resnet_tiny").build())
    text = str(simulate(program, "L4", *get_model("resnet_tiny").example_inputs(batch=1)))
    assert "uncertain most of all: launch of kernels" in text
    assert "the device waits" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_program_that_does_not_fit_is_reported() -> None:
    program = fx.symbolic_trace(lambda x: torch.relu(x))
    result = simulate(program, simple(), torch.empty(200_000_000))
    assert not result.fits
    assert "more than the 953.7 MiB that it has" in str(result)


def test_the_steps_of_a_recurrent_layer_wait_for_each_other_on_an_accelerator():
    program = fx.symbolic_trace(nn.Sequential(nn.LSTM(8, 8)))
    short, long = (simulate(program, "H200", torch.empty(steps, 1, 8)).seconds for steps in (10, 1010))
    assert 1000 * 5e-6 < long - short < 1000 * 10e-6


def test_names_are_found_under_the_paths_that_they_had_in_the_analyses() -> None:
    from fx.analysis.known_devices import get_device as earlier_get_device
    from fx.analysis.simulation import simulate as earlier_simulate

    assert earlier_simulate is simulate
    assert earlier_get_device is get_device
    with pytest.raises(ImportError, match="cannot import name 'stimulate'"):
        from fx.analysis.simulation import stimulate  # noqa: F401
