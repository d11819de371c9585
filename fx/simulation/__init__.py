"""Estimates of run time and memory on devices, which need not be present (paper, section 6.3).

``simulate`` lists a program's kernels on fake tensors, and estimates the time of each from the figures of a device.
``calibrate`` measures this machine; ``profile`` times each node in real runs::

    simulate(program, "A100", *inputs)
    simulate(program, calibrate("machine.json"), *inputs)

``docs/simulation.md`` is the guide.
"""

from __future__ import annotations

from fx.simulation.calibration import calibrate, calibrated_here, load_device, save_device
from fx.simulation.deployments import Deployment, DeploymentReport, Served, Service, Stage, simulate_deployments
from fx.simulation.devices import Calibration, Curve, Device, Figure, Machine
from fx.simulation.kernel_times import KernelTime, KernelTimes, Roofline
from fx.simulation.known_devices import get_device, list_devices, register_device
from fx.simulation.measured_times import MeasuredTimes
from fx.simulation.node_profiles import NodeProfile, ProfileReport, profile
from fx.simulation.run_times import NodeTime, Simulation, Training, estimate_calls, estimate_run, simulate
from fx.simulation.traces import TracedCall, TraceTimes, read_trace

__all__ = [
    "Calibration",
    "Curve",
    "Deployment",
    "DeploymentReport",
    "Device",
    "Figure",
    "KernelTime",
    "KernelTimes",
    "Machine",
    "MeasuredTimes",
    "NodeProfile",
    "NodeTime",
    "ProfileReport",
    "Roofline",
    "Served",
    "Service",
    "Simulation",
    "Stage",
    "TraceTimes",
    "TracedCall",
    "Training",
    "calibrate",
    "calibrated_here",
    "estimate_calls",
    "estimate_run",
    "get_device",
    "list_devices",
    "load_device",
    "profile",
    "read_trace",
    "register_device",
    "save_device",
    "simulate",
    "simulate_deployments",
]
