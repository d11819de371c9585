"""Calls of kernels: their operands, and the reuse distance of memory."""

from __future__ import annotations

import torch
from torch import nn

import fx
from fx.analysis.kernel_calls import KernelRun, record_calls


def test_a_view_of_a_parameter_is_the_parameter() -> None:
    calls = record_calls(fx.symbolic_trace(nn.Linear(4, 8)), torch.empty(2, 4)).calls
    assert [memory.is_state for memory in calls[-1].given] == [True, False, True]


class Names(KernelRun):
    """A run that keeps the names of its kernels."""

    def __init__(self, program: fx.GraphModule) -> None:
        super().__init__(program)
        self.names: list[str] = []

    def record(self, func: object, *_: object) -> None:
        self.names.append(str(func))


def test_copies_that_are_made_of_a_module_are_not_calls_of_the_program() -> None:
    class Scaling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = [torch.ones(4)]  # which is copied as a list is, element by element

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scales[0]

    class Leaves(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return True

    model = nn.Sequential(Scaling())
    program = fx.GraphModule(model, Leaves().trace(model))
    run = Names(program)
    run.run(torch.ones(2, 4))
    assert run.names == ["aten.mul.Tensor"]


def test_calls_of_the_same_sizes_have_one_key_and_others_do_not() -> None:
    program = fx.symbolic_trace(lambda x: (torch.relu(torch.relu(x)), torch.relu(x[:2])))
    first, second, _, third = record_calls(program, torch.empty(4, 3)).calls
    assert first.key == second.key != third.key


def test_keys_tell_strides_dtypes_and_other_arguments_apart() -> None:
    program = fx.symbolic_trace(lambda x: (x.sum(0), x.t().sum(0), x.sum(1), x.double().sum(0)))
    keys = [call.key for call in record_calls(program, torch.empty(3, 3)).calls if call.name == "aten.sum"]
    assert len(set(keys)) == 4


def test_distance_is_the_number_of_bytes_touched_since_the_last_use() -> None:
    program = fx.symbolic_trace(lambda x: (torch.neg(x), torch.relu(x)))
    neg, relu = record_calls(program, torch.empty(250)).calls
    assert [(memory.size, memory.distance) for memory in neg.touched] == [(1000, 4000), (1000, 1000)]
    assert [(memory.size, memory.distance) for memory in relu.touched] == [(1000, 2000), (1000, 1000)]


def test_an_expanded_tensor_counts_once() -> None:
    program = fx.symbolic_trace(lambda x: x.expand(100, 10) + 1)
    assert record_calls(program, torch.empty(1, 10)).calls[-1].given[0].size == 40


def test_the_gradients_calls_belong_to_the_nodes_of_the_forward_run() -> None:
    program = fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    calls = record_calls(program, torch.empty(2, 4), backward=True)
    backward = [(str(call.node), call.name) for call in calls.calls if call.is_backward and call.cost is not None]
    assert ("_1", "aten.threshold_backward") in backward
    assert ("_0", "aten.mm") in backward
