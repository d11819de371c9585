"""A data-parallel training step: gradients reduced over gloo, before and after ``overlap``, and by DDP (6.2.3).

``DistributedDataParallel`` reduces them in buckets while autograd runs. All processes run on one machine, where
reductions and computation compete for the processors, so the gain is smaller than on separate machines.
"""

from __future__ import annotations

import copy
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn

import fx
from fx.passes import OverlapCommunication, ShapeProp

from .paired import Contender, Table, measure, parse
from .ranks import run_ranks


class Step(nn.Module):
    """One step of gradient descent on a network of square layers that reduces each gradient once it is computed."""

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
            self.weights[number] - 1e-3 * total
            for number, total in zip(reversed(range(self.layers)), sums, strict=True)
        ]


class Network(nn.Module):
    """The same network for autograd and ``DistributedDataParallel``, which reduces gradients in buckets."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.weights = nn.ParameterList([weight.detach().clone() for weight in step.weights])

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        """Map a batch to the sum of squared errors."""
        for weight in self.weights:
            x = torch.relu(x @ weight)
        return (x - wanted).square().sum() / 2


def autograd_step(
    network: nn.parallel.DistributedDataParallel, count: int, inputs: tuple[Tensor, Tensor]
) -> list[Tensor]:
    """Run the same step with autograd; return weights in the order of ``Step``, with gradients of ranks added."""
    with torch.enable_grad():
        network(*inputs).backward()
    updated = [weight.detach() - 1e-3 * count * weight.grad for weight in reversed(network.module.weights)]
    network.zero_grad()
    return updated


def work(rank: int, count: int, rounds: int, quick: bool) -> None:
    """Run the benchmark in one process; the first one prints."""
    table = Table("before", "after", "ddp") if rank == 0 else None
    shapes = ((64, 4, 16),) if quick else ((256, 8, 256), (512, 8, 256), (512, 8, 1024), (1024, 4, 256))
    for width, layers, batch in shapes:
        torch.manual_seed(rank)
        inputs = torch.randn(batch, width), torch.randn(batch, width)
        step = Step(width, layers, dist.group.WORLD.group_name)
        network = nn.parallel.DistributedDataParallel(Network(step))
        with torch.no_grad():
            before = fx.symbolic_trace(step)
            ShapeProp(before).propagate(*inputs)
            after = OverlapCommunication(in_flight=layers)(copy.deepcopy(before))
            programs = {
                "before": lambda inputs: before(*inputs),  # noqa: B023 - called in this round of the loop
                "after": lambda inputs: after(*inputs),  # noqa: B023
                "ddp": lambda inputs: autograd_step(network, count, inputs),  # noqa: B023
            }
            results = {name: program(inputs) for name, program in programs.items()}
            if not all(map(torch.equal, results["before"], results["after"])):
                raise AssertionError("the pass changes what the step computes")
            torch.testing.assert_close(results["ddp"], results["before"])  # ddp adds in another order
            # prepared, so that all processes make the same number of calls
            contenders = {name: Contender(program, lambda: inputs) for name, program in programs.items()}  # noqa: B023
            name = f"{layers} layers of {width}, batch {batch}, {count} processes"
            measured = measure(name, contenders, rounds=rounds, goal="no slower")
        if table is not None:
            table.add(measured)


def main() -> int:
    """Measure with two processes, and with four."""
    options = parse(__doc__, rounds=30)
    arguments = (options.rounds, options.quick)
    return sum(run_ranks(work, count, *arguments, threads=options.threads) for count in (2, 4))


if __name__ == "__main__":
    sys.exit(main())
