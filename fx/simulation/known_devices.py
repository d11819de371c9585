"""Devices from public documents: accelerators of NVIDIA, server processors of Intel and AMD.

Rates are the peak rates that the vendors publish, without sparsity. The share of them that programs reach, and the cost
of a call, are assumptions and marked as such; :func:`~fx.simulation.calibration.calibrate` measures this machine's.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fx.errors import AnalysisError
from fx.registry import Registry
from fx.simulation.devices import Device, Figure, NewMemory, steps

_GIB, _GB, _TERA = 1024**3, 1e9, 1e12

_V100 = "NVIDIA V100 Tensor Core GPU datasheet, January 2020"
_A100 = "NVIDIA A100 Tensor Core GPU datasheet, June 2021"
_H100 = "NVIDIA H100 Tensor Core GPU datasheet, 2023, SXM; half of the rates with sparsity"
_H200 = "NVIDIA H200 Tensor Core GPU datasheet, 2024, SXM; half of the rates with sparsity"
_L4 = "NVIDIA L4 Tensor Core GPU datasheet, 2023; half of the rates with sparsity"
_XEON = "Intel ARK, Xeon Gold 6138: 20 cores, six channels of DDR4-2666"
_XEON_CLOCK = "two AVX-512 units a core; their clock with all cores busy, 1.9 GHz, is an assumption"
_CACHE = "doi 10.1016/j.ultsonch.2023.106546, table 3"
_CACHE_L4 = "assumption: five times that of its memory"
_CACHE_CPU = "assumption: 64, 32 and 12 bytes a cycle and core from the caches of the first, second and third level"
_MILAN = "AMD EPYC 7763 product page: 64 cores, 2.45 GHz, 204.8 GB/s; two 256-bit units a core"
_GENOA = "AMD EPYC 9654 product page: 96 cores, 2.4 GHz, 460.8 GB/s; two 256-bit units a core (AVX-512 in two steps)"

_LAUNCH_GPU = Figure(15e-6, "assumption: what eager PyTorch takes on the host for a kernel, 8 to 30 microseconds", 0.4)
_LAUNCH_CPU = Figure(
    2e-6, "assumption: what eager PyTorch takes for a kernel on a server's core, 1 to 4 microseconds", 0.4
)
_REACHED_GPU = Figure(0.75, "assumption: cuBLAS and cuDNN reach 60 to 90 % in large products", 0.15)
_REACHED_TENSOR = Figure(0.6, "assumption: cuBLAS and cuDNN reach 45 to 75 % of tensor cores in large products", 0.2)
_REACHED_CPU = Figure(0.65, "assumption: oneDNN and MKL reach 50 to 85 % in large products", 0.2)
_CUDNN = 0.5
_TF32 = "TF32, PyTorch's default for convolutions, of which cuDNN reached half of what products do (H200, measured)"
_FILL_GPU = Figure(3e-6, "assumption: a kernel on a GPU takes 2 to 5 microseconds however small", 0.3)
_NEW_MEMORY = NewMemory(
    Figure(
        4e9,
        "assumption: Linux maps and clears a page of 4 KiB in 0.5 to 1.5 microseconds; 1.4 measured in a virtual "
        "machine (AMD EPYC, family 26)",
        0.4,
    ),
    least=32 * 2**20,  # the greatest threshold of mmap in glibc
    threads=4,  # an assumption: they share a lock of the address space (doi 10.1145/2189750.2150998)
)
_FORK = Figure(0.4e-6, "assumption: OpenMP starts and joins 20 threads in 4 to 16 microseconds", 0.5)
_NO_FILL = Figure(0.0, "in the launch", 0.0)
_HOST = {"call_module": 3e-6, "call_function": 0.5e-6, "call_method": 0.3e-6, "get_attr": 0.3e-6}
"""Seconds of Python in the generated code, by opcode; also an assumption."""


def _rates(source: str, **rates: float) -> dict[torch.dtype, Figure]:
    return {getattr(torch, name): Figure(rate * _TERA, source, 0.1) for name, rate in rates.items()}


def _gpu(
    name: str, source: str, *, rates: dict[torch.dtype, Figure], memory: float, capacity: float, cache: float,
    cache_bandwidth: float, link: float, cache_source: str = _CACHE, tf32: float | None = None,
    reached: Figure = _REACHED_GPU,
) -> Device:  # fmt: skip
    return Device(
        name=name,
        kind="cuda",
        arithmetic=rates,
        convolutions={torch.float32: Figure(tf32 * _CUDNN * _TERA, f"{source}; {_TF32}", 0.4)} if tf32 else {},
        bandwidth=steps([(cache, cache_bandwidth)], memory * 0.85),
        bandwidth_source=f"{cache_source}; of the memory, 85 % of its greatest bandwidth",
        memory=Figure(memory, source, 0.15),
        capacity=Figure(capacity, source, 0.0),
        launch=_LAUNCH_GPU,
        efficiency=reached,
        fill=_FILL_GPU,
        link=Figure(link, source, 0.2),
        overheads=_HOST,
        common=0.2,
    )


_ACCELERATORS = (
    _gpu(
        "V100", _V100, rates=_rates(_V100, float32=15.7, float16=125.0, float64=7.8), memory=900 * _GB,
        capacity=16 * _GIB, cache=6 * 2**20, cache_bandwidth=3133 * _GB, link=150 * _GB,
    ),
    _gpu(
        "A100", _A100, rates=_rates(_A100, float32=19.5, float16=312.0, bfloat16=312.0, float64=19.5, int8=624.0),
        memory=2039 * _GB, capacity=80 * _GIB, cache=40 * 2**20, cache_bandwidth=7219 * _GB, link=300 * _GB, tf32=156.0,
    ),
    _gpu(
        "H100", _H100, rates=_rates(_H100, float32=67.0, float16=989.5, bfloat16=989.5, float64=67.0, int8=1979.0),
        memory=3350 * _GB, capacity=80 * _GIB, cache=50 * 2**20, cache_bandwidth=8986 * _GB, link=450 * _GB, tf32=494.5,
        reached=_REACHED_TENSOR,
    ),
    _gpu(
        "H200", _H200, rates=_rates(_H200, float32=67.0, float16=989.5, bfloat16=989.5, float64=67.0, int8=1979.0),
        memory=4800 * _GB, capacity=141 * _GB, cache=50 * 2**20, cache_bandwidth=8986 * _GB, link=450 * _GB, tf32=494.5,
        reached=_REACHED_TENSOR,
    ),
    _gpu(
        "L4", _L4, rates=_rates(_L4, float32=30.3, float16=121.0, bfloat16=121.0, float64=0.473, int8=242.5),
        memory=300 * _GB, capacity=24 * _GIB, cache=48 * 2**20, cache_bandwidth=1500 * _GB, link=32 * _GB,
        cache_source=_CACHE_L4,
        tf32=60.0, reached=_REACHED_TENSOR,
    ),
)  # fmt: skip


def _processor(
    name: str, source: str, clock: str, *, cores: int, gigahertz: float, turbo: Figure, flops: int, memory: float,
    capacity: float, last_cache: float,
) -> Device:  # fmt: skip
    """Describe a server processor with caches of 64, 32 and 12 bytes per cycle and core.

    ``flops`` are the operations per cycle and core in float32, two per multiply-add.
    """
    peak = cores * gigahertz * 1e9 * flops
    cycles = cores * gigahertz * 1e9
    levels = [(cores * 32 * 1024, 64 * cycles), (cores * 2**20 / 2, 32 * cycles), (last_cache, 12 * cycles)]
    return Device(
        name=name,
        kind="cpu",
        arithmetic={
            torch.float32: Figure(peak, clock, 0.15),
            torch.float64: Figure(peak / 2, clock, 0.15),
            torch.bfloat16: Figure(peak / 2, f"{clock}; converted to float32, an assumption", 0.5),
        },
        bandwidth=steps(levels, memory * 0.8),
        bandwidth_source=f"{_CACHE_CPU}; of the memory, 80 % of its greatest bandwidth",
        memory=Figure(memory, source, 0.15),
        capacity=Figure(capacity, "assumption: 2 GiB a core", 0.0),
        launch=_LAUNCH_CPU,
        efficiency=_REACHED_CPU,
        fill=_NO_FILL,
        link=Figure(12.5 * _GB, "assumption: 100 Gbit/s Ethernet", 0.2),
        overheads=_HOST,
        cores=cores,
        core_bandwidth=13 * _GB,
        turbo=replace(turbo, value=turbo.value / gigahertz),
        new_memory=_NEW_MEMORY,
        fork=_FORK,
        common=0.25,
    )


_PROCESSORS = (
    _processor(
        "Xeon Gold 6138", _XEON, f"{_XEON}; {_XEON_CLOCK}", cores=20, gigahertz=1.9,
        turbo=Figure(3.5, "Intel ARK: at most 3.7 GHz; 0.2 GHz less with AVX-512 is an assumption", 0.0), flops=64,
        memory=128 * _GB, capacity=40 * _GIB, last_cache=27.5 * 2**20,
    ),
    _processor(
        "EPYC 7763", _MILAN, _MILAN, cores=64, gigahertz=2.45,
        turbo=Figure(3.5, "AMD EPYC 7763 product page", 0.0), flops=32, memory=204.8 * _GB, capacity=128 * _GIB,
        last_cache=256 * 2**20,
    ),
    _processor(
        "EPYC 9654", _GENOA, _GENOA, cores=96, gigahertz=2.4,
        turbo=Figure(3.7, "AMD EPYC 9654 product page", 0.0), flops=32, memory=460.8 * _GB, capacity=192 * _GIB,
        last_cache=384 * 2**20,
    ),
)  # fmt: skip

_known: Registry[Device] = Registry("device", "devices", AnalysisError)
for _device in (*_ACCELERATORS, *_PROCESSORS):
    _known.register(_device.name, _device)


def register_device(device: Device) -> Device:
    """Register a device under its name, for :func:`get_device` and the command line.

    Raises:
        AnalysisError: another device has this name.
    """
    _known.register(device.name, device)
    return device


def get_device(name: str) -> Device:
    """Return the registered device called ``name``.

    Raises:
        AnalysisError: no device has this name; the message lists the nearest names.

    >>> get_device("A100").memory.value / 1e9
    2039.0
    """
    return _known.get(name)


def list_devices() -> list[str]:
    """Return the names of all registered devices."""
    return _known.names()
