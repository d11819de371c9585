"""A training step of a pipeline over processes: stages balanced by cost, by layers, and by parameters as in PiPPy.

All processes run on one machine. With more processes than processors, stages take turns, and the division of the work
matters less. So the processor time of the busiest process is printed as well.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining

import fx
from fx import Node
from fx.interop import Stage, split_into_stages

from .paired import Contender, Measurement, Table, measure, parse
from .ranks import run_ranks

MICROBATCHES = 4


def convolutions(width: int) -> nn.Module:
    """Return costly convolutions with few parameters, and cheap linear layers with many."""
    layers: list[nn.Module] = []
    channels = 3
    for factor in (1, 2, 4, 4):
        for _ in range(2):
            layers += [nn.Conv2d(channels, factor * width, 3, padding=1), nn.ReLU()]
            channels = factor * width
        layers.append(nn.MaxPool2d(2))
    linear = [nn.Flatten(), nn.Linear(channels * 4, 64 * width), nn.ReLU(), nn.Linear(64 * width, 10)]
    return nn.Sequential(*layers, *linear)


def square_layers(width: int) -> nn.Module:
    """Return equal layers, for which all ways give the same cuts."""
    return nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(8 * width, 8 * width), nn.ReLU())))


def ways_to_cut(program: fx.GraphModule) -> dict[str, Mapping[Node, float] | None]:
    """Return the assumed costs of operations by way of cutting; None for estimated costs."""
    layers = {node: program.get_submodule(str(node.target)) for node in program.graph.find_nodes(op="call_module")}
    sizes = {node: float(sum(parameter.numel() for parameter in layer.parameters())) for node, layer in layers.items()}
    return {"layers": {node: 1.0 for node, size in sizes.items() if size}, "parameters": sizes, "cost": None}


def stage_of(program: fx.GraphModule, way: Mapping[Node, float] | None, rank: int, count: int, x: Tensor) -> Stage:
    part = x[: len(x) // MICROBATCHES]
    return split_into_stages(program, count, (part,), seconds=way, backward=True)[rank]


def contender(program: fx.GraphModule, way: str, x: Tensor, rank: int, count: int) -> Contender:
    """Return a training step of this process's stage, which ends when all processes are done."""
    stage = stage_of(program, ways_to_cut(program)[way], rank, count, x)
    pipeline = pipelining.PipelineStage(stage.module, rank, count, torch.device("cpu"))
    schedule = pipelining.Schedule1F1B(pipeline, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    arguments = (x,) if rank == 0 else ()
    target = {"target": torch.zeros_like(program(x)).detach()} if rank == count - 1 else {}

    def step(_: object) -> None:
        schedule.step(*arguments, **target)
        dist.barrier()

    return Contender(step, lambda: None)  # prepared, so that all processes make the same number of calls


def busiest(measured: Measurement) -> Measurement:
    """Return the times of the slowest process in each round."""
    per_rank: list[dict[str, list[float]]] = [{}] * dist.get_world_size()
    dist.all_gather_object(per_rank, measured.seconds)
    seconds = {
        way: [max(times) for times in zip(*(of_rank[way] for of_rank in per_rank), strict=True)] for way in per_rank[0]
    }
    return replace(measured, seconds=seconds)


def work(rank: int, count: int, rounds: int, quick: bool) -> None:
    """Run the benchmark in one process; the first one prints."""
    table = Table("layers", "parameters", "cost") if rank == 0 else None
    width, batch = (4, 8) if quick else (16, 32)
    for name, module, x in (
        ("convolutions, then linear layers", convolutions(width), torch.randn(batch, 3, 32, 32)),
        ("layers that are the same", square_layers(width), torch.randn(8 * batch, 8 * width)),
    ):
        program = fx.symbolic_trace(module)
        ways = {way: contender(copy.deepcopy(program), way, x, rank, count) for way in ("layers", "parameters", "cost")}
        for what, clock in (("a step", time.perf_counter), ("processor of the busiest", time.process_time)):
            title = f"{name}, {count} processes: {what}"
            measured = measure(title, ways, rounds=rounds, goal="cost is least", clock=clock)
            slowest = busiest(measured)
            if table is not None:
                table.add(slowest)


def main() -> int:
    """Measure with two processes, and with four."""
    options = parse(__doc__, rounds=20)
    arguments = (options.rounds, options.quick)
    return sum(run_ranks(work, count, *arguments, threads=options.threads) for count in (2, 4))


if __name__ == "__main__":
    sys.exit(main())
