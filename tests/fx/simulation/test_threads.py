"""Kernels on the cores of a processor: threads, clocks, new memory, and copies for convolutions."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import fx
from fx.analysis.kernel_calls import record_calls
from fx.simulation import get_device, simulate
from fx.simulation.devices import Device, Figure, NewMemory
from fx.simulation.kernel_times import NEW_MEMORY, THREADS, Roofline
from fx.simulation.run_times import Simulation

XEON = get_device("Xeon Gold 6138")
MIB = 2**20


RELU = nn.ReLU()


def estimate(module: nn.Module, *inputs: torch.Tensor, device: Device = XEON) -> Simulation:
    return simulate(fx.symbolic_trace(module), device, *inputs)


def seconds(module: nn.Module, *inputs: torch.Tensor, device: Device = XEON) -> float:
    return estimate(module, *inputs, device=device).seconds


def test_a_kernel_with_few_elements_runs_on_one_thread() -> None:
    few, many = torch.empty(1000), torch.empty(4_000_000)
    assert seconds(RELU, few) == pytest.approx(seconds(RELU, few, device=XEON.limited_to(1)))
    assert seconds(RELU, many) < seconds(RELU, many, device=XEON.limited_to(1)) / 4
    assert THREADS not in estimate(RELU, few).parts


def test_threads_take_time_to_start() -> None:
    image = torch.empty(1000, 1000)
    free = replace(XEON, fork=replace(XEON.fork, value=0.0))
    assert seconds(RELU, image) - seconds(RELU, image, device=free) == pytest.approx(20 * XEON.fork.value)


def test_all_cores_map_new_memory_hardly_faster_than_four_do() -> None:
    large = torch.empty(256 * MIB // 4)
    by_cores = {cores: estimate(RELU, large, device=XEON.limited_to(cores)) for cores in (1, 4, 20)}
    assert by_cores[1].seconds > 2 * by_cores[4].seconds
    assert by_cores[4].seconds < 2 * by_cores[20].seconds
    assert next(iter(by_cores[20].parts)) == NEW_MEMORY


def test_memory_of_small_and_of_overwritten_tensors_is_not_new() -> None:
    assert NEW_MEMORY not in estimate(RELU, torch.empty(MIB)).parts
    assert NEW_MEMORY not in estimate(nn.ReLU(inplace=True), torch.empty(256 * MIB // 4)).parts


def test_an_accelerator_keeps_memory_and_starts_no_threads() -> None:
    parts = estimate(RELU, torch.empty(256 * MIB // 4), device=get_device("V100")).parts
    assert not {NEW_MEMORY, THREADS} & set(parts)


def test_convolutions_copy_their_operands_unless_their_channels_are_last() -> None:
    layer, image = nn.Conv2d(64, 64, 1), torch.empty(16, 64, 112, 112)
    plain, direct = seconds(layer, image), seconds(layer, image.to(memory_format=torch.channels_last))
    assert plain - direct > 4 * image.nbytes / XEON.memory.value


def test_one_thread_computes_small_batches_of_pointwise_convolutions_without_copies() -> None:
    core = replace(XEON.limited_to(1), new_memory=None)
    direct, copied = (
        seconds(nn.Conv2d(64, 64, 1), torch.empty(samples, 64, 112, 112), device=core) / samples for samples in (15, 16)
    )
    assert copied - direct > 4 * 64 * 112 * 112 * 4 / XEON.memory.value


def test_fewer_cores_run_at_a_higher_clock_and_reach_no_more_of_the_memory() -> None:
    first, ten, all_cores = (XEON.limited_to(cores) for cores in (1, 10, 20))
    rates = [device.rate(torch.float32) for device in (first, ten, all_cores)]
    clocks = [rate.value / cores for rate, cores in zip(rates, (1, 10, 20), strict=True)]
    assert clocks[2] < clocks[1] < clocks[0] < clocks[2] * XEON.turbo.value
    assert rates[0].spread > rates[1].spread > rates[2].spread
    assert first.bandwidth.values[-1] < ten.bandwidth.values[-1] == all_cores.bandwidth.values[-1]


CALLS = {
    "two results": (nn.Sequential(nn.Sigmoid(), nn.Tanh()), torch.zeros(10 * MIB)),
    "in place": (nn.Sequential(nn.Sigmoid(), nn.ReLU(inplace=True)), torch.zeros(10 * MIB)),
    "product": (nn.Linear(8, 1024), torch.zeros(10 * 1024, 8)),
    "convolution": (nn.Conv2d(64, 64, 3, padding=1), torch.zeros(16, 64, 112, 112)),
}
FAULTED = """
import json, resource, sys, torch
torch.set_num_threads(1)
mapped = {}
with torch.no_grad():
    for name, (program, input_) in torch.load(sys.argv[1], weights_only=False).items():
        counts = []
        for _ in range(4):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            program(input_)
            counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        mapped[name] = min(counts[1:]) * resource.getpagesize()
print(json.dumps(mapped))
"""


@pytest.fixture(scope="module")
def mapped_bytes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Return the bytes of the pages that each call maps, once its allocations have settled, in a new process.

    Other tests set the allocator of their process to keep memory, and then a call maps no pages.
    """
    file = tmp_path_factory.mktemp("calls") / "calls.pt"
    torch.save(CALLS, file)
    command = [sys.executable, "-c", FAULTED, str(file)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _maps_single_pages() -> bool:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return platform.libc_ver()[0] == "glibc" and not (setting.exists() and "[always]" in setting.read_text())


@pytest.mark.skipif(not _maps_single_pages(), reason="this system maps memory by other rules than Linux and glibc")
@pytest.mark.parametrize("name", CALLS)
def test_a_real_call_maps_as_much_memory_as_the_estimate_assumes(name: str, mapped_bytes: dict[str, int]) -> None:
    program, input_ = CALLS[name]
    calls = record_calls(fx.symbolic_trace(program), input_).calls
    slow = NewMemory(Figure(1.0, "one byte per second", 0.0), 32 * MIB, threads=1)
    with_new, without = (
        sum(Roofline(replace(XEON.limited_to(1), new_memory=new)).time_of(call).seconds for call in calls)
        for new in (slow, None)
    )
    assert mapped_bytes[name] == pytest.approx(with_new - without, rel=0.1)
