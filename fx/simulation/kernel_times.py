"""What one call of a kernel takes: by a roofline of a device, as measured, or as read from a profile.

The three sources have one interface, :class:`KernelTimes`, and :func:`~fx.simulation.run_times.simulate` takes any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from fx.analysis.kernel_calls import KernelCall
from fx.simulation.devices import Calibration, Device
from fx.simulation.product_sizes import ProductSizes, product_sizes

LAUNCH, MEMORY, PYTHON = "launch of kernels", "bandwidth of memory", "Python between kernels"
"""Assumptions that parts of a time rest on."""
_IN_WORDS = {
    "matrix": "matrix products",
    "convolution": "convolutions",
    "small convolution": "small convolutions",
    "depthwise": "depthwise convolutions",
    "attention": "attention",
    "recurrent": "recurrent layers",
}
_GRADIENT_SPREAD = 0.15
"""How much less is known of the gradient of a product, which is two, than of the product."""
_TIMED_SPREAD = 0.15
"""Relative standard deviation of operators that were timed, between and outside of the sizes at which they were."""
_STRIDED = frozenset({"aten.clone", "aten.copy_", "aten._to_copy"})


@dataclass(frozen=True, slots=True)
class KernelTime:
    """What one call of a kernel takes."""

    seconds: float
    """Seconds of the device."""
    assumption: str
    """What that rests on most, in words."""
    spread: float
    """Its relative standard deviation."""
    launch: float = 0.0
    """Seconds of the host to launch it, where they are not in ``seconds``."""


class KernelTimes(Protocol):
    """A source of the times of kernels."""

    @property
    def name(self) -> str:
        """Return what reports call it."""
        ...

    @property
    def spread(self) -> float:
        """Relative standard deviation of whole programs that is left when all else is right."""
        ...

    def time_of(self, call: KernelCall) -> KernelTime:
        """Return what a call takes."""
        ...


_KERNELS_OF_A_STEP = 2
"""Kernels of each step of a recurrent layer on an accelerator: a product, and the gates."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Times by the rates of a device: operations over their rate or bytes over the bandwidth, whichever takes longer.

    Bandwidth is that of the cache in which the operands are by then. Of a device that was calibrated, rates are those
    of products of about the same sizes, and of operators that touch about as many bytes.
    """

    device: Device
    """The device."""

    name = "roofline"

    @property
    def spread(self) -> float:
        """Relative standard deviation of whole programs that is left when all else is right."""
        return self.device.common

    def time_of(self, call: KernelCall) -> KernelTime:
        """Return what a call takes."""
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
        dtype = next((one.dtype for one in call.given if one.dtype.is_floating_point), None)
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
            least *= _KERNELS_OF_A_STEP * sizes.groups  # which wait for each other
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
        """Return how much longer operations take than in float32, which was measured."""
        dtype = next((one.dtype for one in call.given if one.dtype.is_floating_point), None)
        known = self.device.arithmetic
        return next(iter(known.values())).value / self.device.rate(dtype).value

    def _operator(self, call: KernelCall, calibration: Calibration) -> KernelTime:
        family = family_of(call)
        curve = calibration.operators.get(family, calibration.operators.get(family.removesuffix("_")))
        size = sum(one.size for one in call.touched)
        far = max(self.transfer(call) - self.transfer(call, near=True), 0.0)
        spread = _TIMED_SPREAD if curve is not None else calibration.unknown
        seconds = (curve or calibration.typical).beyond(size)
        launch = (curve or calibration.typical).values[0]
        if far > seconds:
            return KernelTime(seconds + far, MEMORY, self.device.memory.spread)
        words = "operators that were not timed" if curve is None else "operators on each element"
        return KernelTime(seconds + far, LAUNCH if seconds < 2 * launch else words, spread)

    def transfer(self, call: KernelCall, *, near: bool = False) -> float:
        """Seconds to move what a call touches from where it is; with ``near`` as if nothing else had been touched."""
        at = self.device.bandwidth.at
        total = max(sum(one.size for one in call.touched), 1)
        return sum(one.size / at(total if near else max(one.distance, total)) for one in call.touched)


def family_of(call: KernelCall) -> str:
    """Return what the times of an operator are known by: apart where it changes strides."""
    name = call.name
    changes_strides = name in _STRIDED and call.given and call.made and call.given[0].stride != call.made[0].stride
    return f"{name}, strided" if changes_strides else name
