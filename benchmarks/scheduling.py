"""A data-parallel training step: gradients reduced over gloo by two processes, before and after ``overlap`` (6.2.3).

Both processes run on one machine, so the reductions take processors that the step computes with: what is gained here is
less than on machines of their own.
"""

from __future__ import annotations

import copy
import datetime
import multiprocessing
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import fx
from fx.passes import OverlapCommunication, ShapeProp

from .paired import Contender, Table, measure, parse

RANKS = 2
LIMIT = 240
"""Seconds in which the processes have to end."""


class Step(nn.Module):
    """One step of gradient descent on a network of square layers: each gradient is reduced as soon as it is there."""

    def __init__(self, width: int, layers: int, group: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.ParameterList([torch.randn(width, width) / width**0.5 for _ in range(layers)])
        self.layers, self.group = layers, group

    def forward(self, x: Tensor, wanted: Tensor) -> list[Tensor]:
        """Map a batch to the next weights."""
        operators = torch.ops._c10d_functional
        values = [x]
        for number in range(self.layers):
            values.append(torch.relu(values[-1] @ self.weights[number]))
        error, sums = values[-1] - wanted, []
        for number in reversed(range(self.layers)):
            error = error * (values[number + 1] > 0)
            gradient = values[number].t() @ error
            sums.append(operators.wait_tensor(operators.all_reduce(gradient, "sum", self.group)))
            error = error @ self.weights[number].t()
        return [
            self.weights[number] - 1e-3 * one for number, one in zip(reversed(range(self.layers)), sums, strict=True)
        ]


def work(rank: int, meeting: str, rounds: int, threads: int, quick: bool) -> None:
    """What each process does; the first one prints."""
    torch.set_num_threads(threads)
    limit = datetime.timedelta(seconds=LIMIT / 4)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS, timeout=limit)
    table = Table(("before", "after")) if rank == 0 else None
    shapes = ((64, 4, 16),) if quick else ((256, 8, 256), (512, 8, 256), (512, 8, 1024), (1024, 4, 256))
    for width, layers, batch in shapes:
        torch.manual_seed(rank)
        inputs = torch.randn(batch, width), torch.randn(batch, width)
        with torch.no_grad():
            before = fx.symbolic_trace(Step(width, layers, dist.group.WORLD.group_name))
            ShapeProp(before).propagate(*inputs)
            after = OverlapCommunication(in_flight=layers)(copy.deepcopy(before))
            if not all(map(torch.equal, before(*inputs), after(*inputs))):
                raise AssertionError("the pass changes what the step computes")
            contenders = {
                # prepared, so that both processes make the same number of calls
                name: Contender(lambda inputs, program=program: program(*inputs), lambda inputs=inputs: inputs)
                for name, program in (("before", before), ("after", after))
            }
            name = f"{layers} layers of {width}, batch {batch}, {RANKS} processes"
            measured = measure(name, contenders, baseline="before", rounds=rounds, goal="no slower")
        if table is not None:
            table.add(measured)
    dist.destroy_process_group()


def main() -> int:
    """Start the processes, and wait for them, or end them."""
    options = parse(__doc__, rounds=30)
    if not dist.is_available() or not dist.is_gloo_available():
        print("not measured: this build of torch has no gloo")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder, "meeting").as_uri()
        context = multiprocessing.get_context("spawn")
        arguments = (meeting, options.rounds, options.threads, options.quick)
        processes = [context.Process(target=work, args=(rank, *arguments), daemon=True) for rank in range(RANKS)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(LIMIT)
        for process in processes:
            process.kill()
            process.join()
    return sum(process.exitcode != 0 for process in processes)


if __name__ == "__main__":
    sys.exit(main())
