"""Captured programs in several processes: pipelines, data parallelism, and errors of dead ranks."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import fx
from fx.interop import split_into_stages
from fx.passes import OverlapCommunication, get_pass
from model_zoo import get_model
from tests.fx import ranks
from tests.fx.ranks import end_ranks, run_ranks

pytestmark = pytest.mark.skipif(ranks.unavailable() is not None, reason=str(ranks.unavailable()))

BATCH, MICROBATCHES = 8, 4


class Network(nn.Module):
    """Has values that pass over stages, a parameter that two layers share, and a buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("shift", torch.linspace(0, 1, 8))

    def forward(self, x):
        y = torch.tanh(self.first(x))
        z = torch.tanh(self.second(y)) + self.shift
        z = torch.tanh(self.third(z)) + y
        return z @ self.first.weight


def batch_of(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, 6, generator=generator), torch.randn(BATCH, 6, generator=generator)


def network():
    torch.manual_seed(0)
    return get_pass("canonicalize")(fx.symbolic_trace(Network()))


def loss_of(output, wanted):
    return (output - wanted).square().mean()


def run_stage(rank, count, program, inputs, schedule="ScheduleGPipe", wanted=None, **options):
    """Run one step of a pipeline on a rank; return the result and the loss in the last one, and its gradients.

    Without a ``wanted`` result there is no loss, and no gradients.
    """
    from torch.distributed import pipelining

    stage = split_into_stages(program, count, tuple(value[: BATCH // MICROBATCHES] for value in inputs), **options)[
        rank
    ]
    runner = pipelining.PipelineStage(stage.module, rank, count, torch.device("cpu"))
    steps = getattr(pipelining, schedule)(runner, MICROBATCHES, loss_fn=None if wanted is None else loss_of)
    losses = []
    extra = {"target": wanted, "losses": losses} if wanted is not None and rank == count - 1 else {}
    result = steps.step(*(inputs if rank == 0 else ()), **extra)
    gradients = {name: parameter.grad for name, parameter in stage.module.named_parameters()}
    return result, torch.stack(losses).mean() if losses else None, gradients


def pipeline(rank, count, schedule, build, batch):
    x, wanted = batch
    return run_stage(rank, count, build(), (x,), schedule, wanted, backward=True)


def whole(program, batch):
    """Return the same results of one process, in microbatches too."""
    x, wanted = batch
    results = []
    for first, other in zip(x.chunk(MICROBATCHES), wanted.chunk(MICROBATCHES), strict=True):
        results.append(program(first))
        (loss_of(results[-1], other) / MICROBATCHES).backward()
    return torch.cat(results), {name: parameter.grad for name, parameter in program.named_parameters()}


def assert_pipeline_is_the_whole(results, program, batch):
    expected, gradients = whole(program, batch)
    result, loss, _ = results[-1]
    assert torch.allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert torch.allclose(loss, loss_of(expected, batch[1]))
    gradients_so_far = {}
    for _, _, own in results:
        assert not gradients_so_far.keys() & own.keys()  # each parameter is in one stage
        gradients_so_far |= own
    assert gradients_so_far.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert torch.allclose(gradients_so_far[name], gradient, rtol=1e-4, atol=1e-6), name


@pytest.mark.thorough
def test_a_pipeline_of_two_processes_equals_one_process_with_gradients(tmp_path):
    results = run_ranks(pipeline, 2, tmp_path, "Schedule1F1B", network, batch_of())
    assert_pipeline_is_the_whole(results, network(), batch_of())


@pytest.mark.thorough
@pytest.mark.parametrize("schedule, count", [("ScheduleGPipe", 2), ("Schedule1F1B", 4), ("ScheduleGPipe", 4)])
def test_so_do_other_schedules_and_more_processes(schedule, count, tmp_path):
    results = run_ranks(pipeline, count, tmp_path, schedule, network, batch_of())
    assert_pipeline_is_the_whole(results, network(), batch_of())


def zoo_program(name):
    return get_pass("canonicalize")(fx.symbolic_trace(get_model(name).build()))


def inputs_of(name):
    """The only input."""
    inputs = get_model(name).example_inputs(BATCH)
    return inputs[0] if isinstance(inputs, tuple) else inputs


def zoo_pipeline(rank, count, name):
    with torch.no_grad():
        return run_stage(rank, count, zoo_program(name), (inputs_of(name),))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["gpt2_small", "vit_small", "resnet_tiny"])
def test_a_pipeline_of_a_zoo_model_equals_the_model(name, tmp_path):
    results, _, _ = run_ranks(zoo_pipeline, 2, tmp_path, name)[-1]
    x = inputs_of(name)
    with torch.no_grad():
        expected = torch.cat([zoo_program(name)(part) for part in x.chunk(MICROBATCHES)])
    assert torch.allclose(results, expected, rtol=1e-4, atol=1e-5)


class Masked(nn.Module):
    """Has inputs without gradients that its last operations use."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(10, 6), nn.Linear(6, 6)

    def forward(self, ids, mask):
        x = torch.relu(self.layer(self.table(ids)))
        return torch.where(mask, x.sum(-1), 0.0) + ids


def masked_pipeline(rank, count):
    torch.manual_seed(0)
    inputs = torch.arange(BATCH), torch.arange(BATCH) % 3 > 0
    return run_stage(rank, count, fx.symbolic_trace(Masked()), inputs, "Schedule1F1B", torch.zeros(BATCH))


@pytest.mark.thorough
def test_values_without_gradients_pass_over_stages_too(tmp_path):
    by_rank = run_ranks(masked_pipeline, 2, tmp_path)
    torch.manual_seed(0)
    model = Masked()
    ids, mask = torch.arange(BATCH), torch.arange(BATCH) % 3 > 0
    results = [model(*pair) for pair in zip(ids.chunk(MICROBATCHES), mask.chunk(MICROBATCHES), strict=True)]
    sum(loss_of(result, torch.zeros(2)) / MICROBATCHES for result in results).backward()
    assert torch.allclose(by_rank[-1][0], torch.cat(results))
    gradients = {name: gradient for _, _, own in by_rank for name, gradient in own.items()}
    for name, parameter in model.named_parameters():
        assert torch.allclose(gradients[name], parameter.grad, rtol=1e-5, atol=1e-6), name


# Data parallelism.


def data_parallel(rank, count, how):
    """The gradients of a captured module and of the module itself on this rank's part of the batch, and the loss."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    results = []
    for captured in (True, False):
        torch.manual_seed(0)
        model = Network()
        if captured:
            model = fx.symbolic_trace(model)
        if how == "ddp":
            model = nn.parallel.DistributedDataParallel(model)
        else:
            for layer in (model.second, model.third):
                fully_shard(layer)
            fully_shard(model)
        x, wanted = (part.chunk(count)[rank] for part in batch_of())
        loss = loss_of(model(x), wanted)
        loss.backward()
        gradients = {name.removeprefix("module."): parameter.grad for name, parameter in model.named_parameters()}
        full = {
            name: gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            for name, gradient in gradients.items()
        }
        results.append((loss.detach(), full))
    return results


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
@pytest.mark.parametrize("count", [2, 4])
def test_gradients_of_a_captured_module_in_data_parallel_are_those_of_the_module(how, count, tmp_path):
    results = run_ranks(data_parallel, count, tmp_path, how)
    torch.manual_seed(0)
    model = Network()
    loss_of(model(batch_of()[0]), batch_of()[1]).backward()
    for (loss, gradients), (eager_loss, eager) in results:
        assert torch.equal(loss, eager_loss)
        for name, parameter in model.named_parameters():
            assert torch.equal(gradients[name], eager[name]), name
            assert torch.allclose(gradients[name], parameter.grad, rtol=1e-5, atol=1e-6), name


# Collectives of a program.


class Reducing(nn.Module):
    """Reduces two values over all ranks, with work beside."""

    def forward(self, x):
        operators = torch.ops._c10d_functional
        first = operators.wait_tensor(operators.all_reduce(x, "sum", "0"))
        y = torch.tanh(x @ x.t())
        second = operators.wait_tensor(operators.all_reduce(y, "sum", "0"))
        return torch.tanh(y @ y.t()) + first.sum() + second


def reduce_twice(rank, count, fate):
    """Return the results before and after the pass; one rank may die before the second reduction."""
    program = fx.symbolic_trace(Reducing())
    after = OverlapCommunication()(copy.deepcopy(program))
    names = [node.name for node in after.graph.nodes]
    assert names.index("wait_tensor") > names.index("tanh")
    x = torch.full((4, 4), float(rank + 1))
    if fate is None:
        return program(x), after(x)
    if rank == count - 1:
        node = next(node for node in after.graph.nodes if node.name == "tanh")
        with after.graph.inserting_before(node):
            after.graph.call_function({"dies": os._exit, "hangs": time.sleep}[fate], (60,))
        after.recompile()
    started = time.monotonic()
    try:
        after(x)
    except RuntimeError as error:
        return time.monotonic() - started, "\n".join([str(error), *error.__notes__])
    return None


@pytest.mark.thorough
@pytest.mark.parametrize("count", [2, 4])
def test_reductions_that_are_overlapped_give_the_same_bits_on_all_ranks(count, tmp_path):
    for before, after in run_ranks(reduce_twice, count, tmp_path, None):
        assert torch.equal(before, after)


@pytest.mark.thorough
def test_a_rank_that_dies_in_a_collective_is_an_error_of_the_others_in_bounded_time(tmp_path):
    *others, dead = end_ranks(reduce_twice, 2, tmp_path, "dies", collective=10.0)
    assert (dead.status, dead.result) == (60, None)
    for other in others:
        assert other.status == 0, other.result
        seconds, message = other.result
        assert seconds < 10
        assert "onnection" in message and "test_distributed.py" in message and "in Reducing.forward" in message, message


@pytest.mark.thorough
def test_a_rank_that_hangs_in_a_collective_is_an_error_of_the_others_after_its_limit(tmp_path):
    *others, stuck = end_ranks(reduce_twice, 2, tmp_path, "hangs", seconds=15.0, collective=2.0)
    assert stuck.status is None
    for other in others:
        assert other.status == 0, other.result
        seconds, message = other.result
        assert 1 < seconds < 10
        assert "imed out" in message and "in Reducing.forward" in message, message


@pytest.mark.thorough
@pytest.mark.parametrize("count", [2, 4])
def test_the_example_trains_a_network_under_torchrun(count, tmp_path):
    example = Path(__file__).parents[2] / "examples" / "pipeline.py"
    store = f"--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nnodes=1 --nproc-per-node={count}".split()
    command = [sys.executable, "-m", "torch.distributed.run", *store, str(example)]
    ended = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("stage ") == count
    losses = [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", ended.stdout)]
    assert len(losses) == 4 and losses[-1] < losses[0]
