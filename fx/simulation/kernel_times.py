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
        device = self.device
        dtype = next((operand.dtype for operand in call.given if operand.dtype.is_floating_point), None)
        kind = "convolutions" if sizes is not None and sizes.kind.endswith("convolution") else "matrix products"
        rate = device.rate(dtype, convolution=kind == "convolutions")
        moving = self.transfer(call)
        computing = 0.0
        if sizes is not None:
            computing = call.work.flops / (rate.value * device.efficiency.value)
        work = max(moving, computing)
        assumption, spread = MEMORY, device.memory.spread
        if computing > moving:
            assumption, spread = f"rate of {kind}", (rate.spread**2 + device.efficiency.spread**2) ** 0.5
        least = device.fill.value
        if sizes is not None and sizes.kind == "recurrent":
            least *= _KERNELS_OF_A_STEP * sizes.groups  # the steps run one after the other
        if least > work:
            assumption, spread = "least time of a kernel", device.fill.spread
        return KernelTime(least + work, assumption, spread, device.launch.value)

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
