"""Train a network as a pipeline of processes, one stage each.

    torchrun --nproc-per-node 2 examples/pipeline.py

Each process captures the network from the same seed, divides it into one stage for each process, and keeps its own
stage. ``torch.distributed.pipelining`` sends values forward and gradients back. Every process has an optimizer for the
parameters of its stage.
"""

import itertools
import os

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import fx
from fx.interop import split_into_stages

BATCH, MICROBATCHES, STEPS = 32, 4, 20


class Network(torch.nn.Module):
    """Layers of different widths: stages with equal numbers of layers would take different times."""

    def __init__(self) -> None:
        super().__init__()
        widths = [16, 64, 256, 256, 64, 64, 16]
        pairs = itertools.pairwise(widths)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*pair) for pair in pairs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def main() -> None:
    dist.init_process_group("gloo")
    rank, count = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    program = fx.symbolic_trace(Network())
    x = torch.randn(BATCH, 16)
    wanted = torch.sin(x)

    stages = split_into_stages(program, count, (x[: BATCH // MICROBATCHES],), backward=True)
    if rank == 0:
        for part in stages:
            names = " ".join(node.name for node in part.operations)
            print(f"stage {part.number}: {part.state:,} bytes of parameters, sends {part.sent:,} bytes: {names}")
    stage = stages[rank]
    pipeline = PipelineStage(stage.module, rank, count, torch.device("cpu"))
    schedule = Schedule1F1B(pipeline, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(stage.module.parameters(), lr=0.5)

    for step in range(STEPS):
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        inputs = (x,) if rank == 0 else ()
        schedule.step(*inputs, target=wanted, losses=losses)
        optimizer.step()
        if rank == count - 1 and step % 5 == 4:
            print(f"step {step + 1}: loss {torch.stack(losses).mean().item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all processes are on this machine
    torch.set_num_threads(1)
    main()
