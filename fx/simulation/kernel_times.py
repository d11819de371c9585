"""The time of one kernel call: estimated by a roofline of a device, measured, or read from a profile.

The three sources have one interface, :class:`KernelTimes`; :func:`~fx.simulation.run_times.simulate` takes any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from fx.analysis.kernel_calls import KernelCall
from fx.simulation.devices import Calibration, Device
from fx.simulation.product_sizes import ProductSizes, product_sizes

LAUNCH, MEMORY, PYTHON = "launch of kernels", "bandwidth of memory", "Python between kernels"
NEW_MEMORY, THREADS = "mapping of new memory", "start of threads"
"""The assumptions that the parts of a time depend on."""
_IN_WORDS = {
    "matrix": "matrix products",
    "convolution": "convolutions",
    "small convolution": "small convolutions",
    "depthwise": "depthwise convolutions",
    "attention": "attention",
    "recurrent": "recurrent layers",
}
_GRADIENT_SPREAD = 0.15
"""Additional relative standard deviation of the gradient of a product, which is two products."""
_TIMED_SPREAD = 0.15
"""Relative standard deviation of timed operators at sizes other than those timed."""
_STRIDED = frozenset({"aten.clone", "aten.copy_", "aten._to_copy"})


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The time of one kernel call."""

    seconds: float
    """Seconds on the device."""
    assumption: str
    """The assumption that the time depends on most."""
    spread: float
    """The relative standard deviation of the time."""
    launch: float = 0.0
    """Seconds on the host to launch it, if ``seconds`` does not include them."""


class KernelTimes(Protocol):
    """A source of the times of kernels."""

    @property
    def name(self) -> str:
        """The name in reports."""
        ...

    @property
    def spread(self) -> float:
        """Relative standard deviation of whole programs that remains if all assumptions hold."""
        ...

    def time_of(self, call: KernelCall) -> KernelTime:
        """Return the time of a call."""
        ...


_KERNELS_OF_A_STEP = 2
"""Kernels per step of a recurrent layer on an accelerator: a product, and the gates."""
_GRAIN = 32768
"""Elements, or multiply-adds of a product, per thread of a kernel (at::internal::GRAIN_SIZE)."""
_PLAIN_CHANNELS = 3
"""Channels up to which oneDNN reads the operand of a convolution in its plain layout."""
_SAMPLES_OF_ONEDNN = 16
"""Samples from which PyTorch calls oneDNN for each convolution, also on one thread (Convolution.cpp)."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Times from the rates of a device: operations over their rate or bytes over the bandwidth, whichever is longer.

    The bandwidth is that of the cache that holds the operands at the time of the call. On a calibrated device, rates
    come from products of similar sizes, and from operators that touch a similar number of bytes.
    """

    device: Device
    """The device."""

    name = "roofline"

    @property
    def spread(self) -> float:
        """Relative standard deviation of whole programs that remains if all assumptions hold."""
        return self.device.common

    def time_of(self, call: KernelCall) -> KernelTime:
        """Return the time of a call."""
        calibration, launch = self.device.calibration, self.device.launch
        sizes = product_sizes(call)
        if calibration is None:
            if call.cost is None:
                return KernelTime(0.0, LAUNCH, launch.spread, launch.value / 4)
            return self._by_rates(call, sizes)
        if call.cost is None:
            view = calibration.operators.get(call.name) or calibration.operators["aten.view"]
            return KernelTime(view.values[0], LAUNCH, launch.spread)
        return self._operator(call, calibration) if sizes is None else self._product(call, sizes, calibration)

    def _by_rates(self, call: KernelCall, sizes: ProductSizes | None) -> KernelTime:
        """Sum up the parts of a kernel that follow each other, and weigh their spreads by their times."""
        device = self.device.limited_to(min(_threads_for(call), self.device.cores))
        bandwidth, memory = device.bandwidth.at, device.memory.spread
        copies = _copied_to_blocks(call, sizes, self.device)
        parts = [self._main_part(call, sizes, device)]
        parts += [(2 * size / bandwidth(2 * size), MEMORY, memory) for size in copies]
        if device.cores > 1:
            parts.append(((1 + len(copies)) * device.fork.value * device.cores, THREADS, device.fork.spread))
        if (new_memory := device.new_memory) is not None:
            new = [touched.size for touched in call.touched if touched.is_new]
            seconds = new_memory.seconds([*new, *copies], device.cores)
            parts.append((seconds, NEW_MEMORY, new_memory.rate.spread))
        total = sum(seconds for seconds, _, _ in parts)
        spread = math.hypot(*(seconds * spread for seconds, _, spread in parts)) / total if total else 0.0
        return KernelTime(total, max(parts)[1], spread, device.launch.value)

    def _main_part(self, call: KernelCall, sizes: ProductSizes | None, device: Device) -> tuple[float, str, float]:
        """Return the seconds of the kernel itself with their assumption and its spread."""
        dtype = next((operand.dtype for operand in call.given if operand.dtype.is_floating_point), None)
        kind = "convolutions" if sizes is not None and sizes.kind.endswith("convolution") else "matrix products"
        rate = device.rate(dtype, convolution=kind == "convolutions")
        moving = Roofline(device).transfer(call)
        computing = 0.0
        if sizes is not None:
            computing = call.work.flops / (rate.value * device.efficiency.value)
        work = max(moving, computing)
        assumption, spread = MEMORY, device.memory.spread
        if computing > moving:
            assumption, spread = f"rate of {kind}", math.hypot(rate.spread, device.efficiency.spread)
        least = device.fill.value
        if sizes is not None and sizes.kind == "recurrent":
            least *= _KERNELS_OF_A_STEP * sizes.groups  # the steps run one after the other
        if least > work:
            assumption, spread = "least time of a kernel", device.fill.spread
        return least + work, assumption, spread

    def _product(self, call: KernelCall, sizes: ProductSizes, calibration: Calibration) -> KernelTime:
        surface = calibration.products.get(sizes.kind) or calibration.products["matrix"]
        mean, spread = surface.at(sizes.features)
        kind = sizes.kind if sizes.kind in calibration.products else "matrix"
        computing = call.work.flops * 2.0 ** max(mean, min(surface.values)) * self._width(call)
        moving = self.transfer(call)
        launch = calibration.launches[kind]
        if moving > computing:
            return KernelTime(moving + launch, MEMORY, self.device.memory.spread)
        spread *= math.log(2.0)
        if call.name.endswith("_backward"):
            spread = math.hypot(spread, _GRADIENT_SPREAD)
        return KernelTime(computing + launch, f"rate of {_IN_WORDS[kind]}", spread)

    def _width(self, call: KernelCall) -> float:
        """Return the time of operations in the call's dtype relative to float32, which was measured."""
        dtype = next((operand.dtype for operand in call.given if operand.dtype.is_floating_point), None)
        rates = self.device.arithmetic
        return next(iter(rates.values())).value / self.device.rate(dtype).value

    def _operator(self, call: KernelCall, calibration: Calibration) -> KernelTime:
        family = family_of(call)
        curve = calibration.operators.get(family, calibration.operators.get(family.removesuffix("_")))
        size = sum(touched.size for touched in call.touched)
        far = max(self.transfer(call) - self.transfer(call, near=True), 0.0)
        spread = _TIMED_SPREAD if curve is not None else calibration.unknown
        seconds = (curve or calibration.typical).beyond(size)
        launch = (curve or calibration.typical).values[0]
        if far > seconds:
            return KernelTime(seconds + far, MEMORY, self.device.memory.spread)
        words = "operators that were not timed" if curve is None else "operators on each element"
        return KernelTime(seconds + far, LAUNCH if seconds < 2 * launch else words, spread)

    def transfer(self, call: KernelCall, *, near: bool = False) -> float:
        """Return the seconds to move the bytes that a call touches from the cache or memory that holds them.

        With ``near``, assume that nothing else was touched in between.
        """
        at = self.device.bandwidth.at
        total = max(sum(touched.size for touched in call.touched), 1)
        return sum(touched.size / at(total if near else max(touched.distance, total)) for touched in call.touched)


def family_of(call: KernelCall) -> str:
    """Return the key of an operator in ``Calibration.operators``: copies that change strides have a separate one."""
    name = call.name
    changes_strides = name in _STRIDED and call.given and call.made and call.given[0].stride != call.made[0].stride
    return f"{name}, strided" if changes_strides else name


def _threads_for(call: KernelCall) -> int:
    """Return the number of threads that a kernel has work for."""
    elements = max((touched.size for touched in call.touched), default=0) // 4
    return max(math.ceil(max(elements, call.work.multiply_adds) / _GRAIN), 1)


def _copied_to_blocks(call: KernelCall, sizes: ProductSizes | None, device: Device) -> list[int]:
    """Return the bytes of each operand and result of a convolution that is copied to or from oneDNN's blocked layout.

    On processors PyTorch computes convolutions with oneDNN, whose kernels take blocks of channels. Tensors in the
    layout ``channels_last`` are not copied. On one thread, PyTorch has another kernel for small batches of 1x1
    convolutions.
    """
    if device.kind != "cpu" or sizes is None or sizes.kind not in ("convolution", "depthwise"):
        return []
    images = [operand for operand in (*call.given, *call.made) if len(operand.shape) > 2]
    if any(image.stride[1] == 1 < image.shape[1] and math.prod(image.shape[2:]) > 1 for image in images):
        return []
    is_pointwise = sizes.window == sizes.step == sizes.groups == 1
    if is_pointwise and device.cores == 1 and call.made[0].shape[0] < _SAMPLES_OF_ONEDNN:
        return []
    return [image.size for image in images if image.shape[1] > _PLAIN_CHANNELS]
