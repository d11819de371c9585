"""The commands ``simulate`` and ``profile`` of ``python -m fx``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fx.errors import AnalysisError
from fx.graph_module import GraphModule
from fx.naming.tables import in_bytes, in_seconds, table_lines
from fx.simulation.calibration import calibrated_here, file_of_machine
from fx.simulation.devices import Device
from fx.simulation.kernel_times import KernelTimes
from fx.simulation.known_devices import get_device, list_devices
from fx.simulation.measured_times import MeasuredTimes
from fx.simulation.node_profiles import profile
from fx.simulation.run_times import Simulation, Training, simulate
from fx.simulation.traces import TraceTimes

HERE = "here"
"""The name of this machine among devices."""
_DEVICES = f"{HERE}, which is measured once ({', '.join(list_devices())})"
Add = Callable[..., argparse.ArgumentParser]


def add_time_commands(add: Add) -> None:
    """Add both commands to a parser.

    Args:
        add: a function that adds a command; it takes a name, a runner, a description and example arguments.
    """
    command = add("simulate", run_simulate, "run time and memory on a device", "resnet50 --device V100 --batch 1,256")
    command.add_argument(
        "--device", action="append", default=[], metavar="NAME", help=f"a device; repeatable; default {_DEVICES}"
    )
    command.add_argument("--batch", default="", metavar="N,N", help="samples in a batch, one estimate for each number")
    command.add_argument("--training", choices=("sgd", "momentum", "adam"), help="a step of training with an optimizer")
    command.add_argument("--recompute", action="store_true", help="with --training: compute again what costs little")
    command.add_argument(
        "--times", default="roofline", metavar="roofline|measured|FILE",
        help="source of the times of kernels: the rates of the device, each kernel run here once, "
        "or a Chrome trace of torch.profiler (default roofline)",
    )  # fmt: skip
    command = add("profile", run_profile, "the time of each node in real runs", "resnet50 --device here --save t.json")
    command.add_argument("--device", metavar="NAME", help=f"show estimated times, too: {_DEVICES}")
    command.add_argument("--rounds", type=int, default=10, help="pairs of runs (default 10)")
    command.add_argument("--save", metavar="FILE", help="write a Chrome trace")
    command.epilog = f"{command.epilog}; threads are those that PyTorch has (OMP_NUM_THREADS=1 for one)"


def run_simulate(program: GraphModule, inputs: Sequence[Any], options: argparse.Namespace) -> str:
    """Estimate a program on each device and batch, and return the report."""
    if options.recompute and options.training is None:
        raise AnalysisError(
            "--recompute is about steps of training", remedy="give --training sgd, momentum or adam, too"
        )
    training = None if options.training is None else Training(options.training, options.recompute)
    program.train(training is not None)
    simulations: list[tuple[str, Simulation]] = []
    for name in options.device or [HERE]:
        device = _device(name)
        times = _times(options.times, device)
        for batch, batch_inputs in _batches(inputs, options.batch):
            simulations.append((batch, simulate(program, device, *batch_inputs, training=training, times=times)))
        # Save now: an error on the next device must not lose the measurements for this one.
        if isinstance(times, MeasuredTimes):
            times.save()
    if options.json:
        return json.dumps([{"batch": batch, **as_data(simulation)} for batch, simulation in simulations])
    if len(simulations) == 1:
        return str(simulations[0][1])
    rows = [
        [simulation.device.name, batch, in_seconds(simulation.seconds),
         " to ".join(map(in_seconds, simulation.interval)),
         in_bytes(simulation.memory) + ("" if simulation.fits else " !"), simulation.dominating]
        for batch, simulation in simulations
    ]  # fmt: skip
    lines = table_lines(["device", "batch", "time", "90 % interval", "memory", "uncertain"], rows)
    if not all(simulation.fits for _, simulation in simulations):
        lines.append("!: more memory than the device has")
    return "\n".join(lines)


def as_data(one: Simulation) -> dict[str, Any]:
    """Convert a simulation to numbers and texts, in seconds and bytes."""
    low, high = one.interval
    nodes = [
        {"node": None if of.node is None else of.node.name, "forward": of.forward, "backward": of.backward,
         "kernels": of.kernels, "rests_on": of.assumption}
        for of in one.nodes
    ]  # fmt: skip
    plain = {name: getattr(one, name) for name in ("seconds", "memory", "fits", "waiting", "dominating", "source")}
    return {
        "device": one.device.name, **plain, "interval": [low, high], "parts": dict(one.parts),
        "uncertainty": dict(one.uncertainty), "nodes": nodes,
    }  # fmt: skip


def run_profile(program: GraphModule, inputs: Sequence[Any], options: argparse.Namespace) -> str:
    """Time each node of a program, and return the report."""
    device = None if options.device is None else _device(options.device)
    report = profile(program, *inputs, device=device, rounds=options.rounds)
    if options.save is not None:
        report.save_trace(options.save)
    if not options.json:
        return str(report)
    nodes = [
        {"node": timing.node.name, "module": timing.module, "seconds": timing.seconds, "estimated": timing.estimated}
        for timing in report.nodes
    ]
    return json.dumps(
        {"seconds": report.seconds, "profiled": report.profiled, "overhead": report.overhead, "nodes": nodes}
    )


def _device(name: str) -> Device:
    return calibrated_here(_folder()) if name == HERE else get_device(name)


def _folder() -> Path:
    return Path.home() / ".cache" / "fx"


def _times(text: str, device: Device) -> KernelTimes | None:
    if text == "roofline":
        return None
    if text == "measured":
        return MeasuredTimes(device, file_of_machine(_folder(), "times"))
    return TraceTimes(text, device)


def _batches(inputs: Sequence[Any], text: str) -> list[tuple[str, Sequence[Any]]]:
    """Return the inputs with each number of samples in ``text``; unchanged if it is empty."""
    sizes = [tensor.shape[0] for tensor in inputs if isinstance(tensor, torch.Tensor) and tensor.dim()]
    if not text:
        return [(str(sizes[0]) if sizes else "-", inputs)]
    if not all(part.strip().isdigit() and int(part) for part in text.split(",")):
        raise AnalysisError(f"cannot read the batches {text!r}", remedy="write numbers from 1 on, as 1,8,32")
    if len(set(sizes)) != 1:
        raise AnalysisError(
            "the batch dimension of the inputs is ambiguous",
            value=f"first dimensions: {', '.join(map(str, sizes)) or 'none'}",
            remedy="give inputs of each batch with --input",
        )
    return [(part.strip(), [_resized(tensor, int(part)) for tensor in inputs]) for part in text.split(",")]


def _resized(value: Any, count: int) -> Any:
    if not isinstance(value, torch.Tensor) or not value.dim():
        return value
    return value.new_empty((count, *value.shape[1:]))
