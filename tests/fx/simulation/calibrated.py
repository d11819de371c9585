"""A calibrated device of round numbers, as if this machine had been measured."""

from __future__ import annotations

from dataclasses import replace

import torch

from fx.simulation.devices import Calibration, Curve, Device, Figure, this_machine
from fx.simulation.product_sizes import Surface


def calibrated(**changes: object) -> Device:
    """1 TFLOP/s of matrix products, 1 microsecond a kernel, 1 ns a byte of other operators, 2 a module."""
    flat = Surface(((0.0,) * 6, (20.0,) * 6), (-40.0, -40.0), (-40.0,) + (0.0,) * 6, 0.01, 100.0)
    sure = Figure(1e9, "measured on this machine", 0.0)
    slope = Curve((1.0, 1e3, 1e6), (1e-6, 2e-6, 1e-3))
    calibration = Calibration(
        this_machine(), {"matrix": flat}, {"aten.relu": slope, "aten.view": Curve((1.0,), (5e-7,))}, {"matrix": 1e-6},
        slope, 0.9, 1.0, 0.04,
    )  # fmt: skip
    device = Device(
        name="this machine", kind="cpu", arithmetic={torch.float32: replace(sure, value=2.0**40)},
        bandwidth=Curve((1e6, 1e7), (1e11, 1e9)), bandwidth_source="measured on this machine", memory=sure,
        capacity=sure, launch=replace(sure, value=1e-6), efficiency=replace(sure, value=1.0),
        fill=replace(sure, value=0.0), link=sure, overheads={"call_module": 2e-6, "ReLU": 3e-6}, common=0.1,
        calibration=calibration,
    )  # fmt: skip
    return replace(device, **changes)
