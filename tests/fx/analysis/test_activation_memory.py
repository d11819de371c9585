"""The memory of a program's values, compared with that of a real run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fx
from fx.analysis.memory import MemoryReport, activation_memory
from fx.errors import PassError
from model_zoo import get_model
from pytest_fx.harness.structure import leaves
from pytest_fx.timing.memory import _LiveTensors, peak_memory

KIB = torch.ones(256)


def peak_of_training(program: Callable[[], Any]) -> int:
    """Return the peak of bytes that one call and the gradients of its outputs hold."""
    with _LiveTensors() as live:
        outputs = [value for _, value in leaves(program()) if isinstance(value, torch.Tensor) and value.requires_grad]
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
    return live.peak


def report_of(function: Any, *args: Any, **options: Any) -> MemoryReport:
    return activation_memory(fx.symbolic_trace(function), *args, **options)


@pytest.mark.parametrize(
    "name",
    "dlrm_small lstm_classifier_small mlp resnet_tiny transformer_encoder_small two_heads unet_small".split(),
)
def test_the_peak_equals_that_of_a_run(name: str) -> None:
    model = get_model(name)
    program, inputs = fx.symbolic_trace(model.build()), model.example_inputs(batch=2)
    assert activation_memory(program, *inputs).peak == pytest.approx(peak_memory(lambda: program(*inputs)), rel=0.05)


@pytest.mark.parametrize("name", ["mlp", "resnet_tiny", "transformer_encoder_small", "unet_small"])
def test_the_peak_of_training_equals_that_of_a_run_with_gradients(name: str) -> None:
    model = get_model(name)
    program, inputs = fx.symbolic_trace(model.build()).train(), model.example_inputs(batch=2)
    memory = activation_memory(program, *inputs, backward=True)
    assert memory.peak == pytest.approx(peak_of_training(lambda: program(*inputs)), rel=0.05)
    assert memory.peak_is_backward


def test_values_are_freed_after_their_last_use_and_the_peak_is_named_with_the_users_line() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        joined = torch.cat([doubled, doubled])
        return joined.sum()

    report = report_of(function, KIB)
    assert (report.peak, report.without_freeing, report.left) == (3072, 3076, 4)
    assert str(report.peak_node) == "cat"
    assert "joined = torch.cat" in str(report)
    assert "  forward without freeing 3.004 KiB; left at the end 4 B" in str(report)
    assert [str(entry.node) for entry in report.at_peak] == ["cat", "mul"]


def test_views_in_place_results_and_aliases_share_one_storage() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        return doubled.view(16, 16).t().relu_()

    (storage,) = report_of(function, KIB).storages
    assert [node.name for node in storage.nodes] == ["mul", "view", "t", "relu_"]


def test_a_view_keeps_its_storage_alive() -> None:
    report = report_of(lambda x: (x * 2)[:1] + torch.cat([x, x]).sum(), KIB)
    doubled = report.storages[0]
    assert doubled.freed is not None
    assert doubled.freed > report.storages[1].made


def test_inputs_parameters_and_shared_parameters_are_counted_apart_and_once() -> None:
    layer = nn.Linear(4, 4)
    report = report_of(nn.Sequential(layer, layer), torch.ones(2, 4))
    assert (report.inputs, report.state) == (32, 80)
    assert report.peak == 64


def test_candidates_for_in_place_writes_are_listed_with_the_resulting_peak() -> None:
    report = report_of(lambda x: (x + 1).relu().sigmoid(), KIB)
    assert [(str(entry.node), entry.size) for entry in report.in_place] == [("relu", 1024), ("sigmoid", 1024)]
    assert (report.peak, report.peak_in_place) == (2048, 1024)


def test_values_of_the_caller_or_with_later_uses_are_not_overwritten() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        first = torch.relu(x)
        second = torch.neg(first)
        return first + second

    assert [str(entry.node) for entry in report_of(function, KIB).in_place] == ["add"]


def test_a_value_that_waits_at_the_peak_is_offered_to_be_computed_again() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        early = x * 2
        wide = torch.cat([x] * 8).sum()
        return early + wide

    report = report_of(function, KIB)
    assert [(str(entry.node), entry.peak) for entry in report.recompute] == [("mul", 9 * 1024 - 1024 + 4)]
    assert "computed again" in str(report)


def test_a_product_is_not_offered_to_be_computed_again() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        early = x @ x
        return early + torch.cat([x] * 8).sum()

    assert report_of(function, torch.ones(16, 16)).recompute == ()


def test_modules_functions_methods_and_kernels_take_the_same() -> None:
    ways = (
        nn.Sequential(nn.ReLU()),
        lambda x: torch.relu(x),
        lambda x: x.relu(),
        lambda x: torch.ops.aten.relu.default(x),
    )
    peaks = {report_of(way, KIB).peak for way in ways}
    assert peaks == {1024}


def test_nothing_is_run_and_no_state_changes() -> None:
    norm = nn.BatchNorm1d(2)
    program = fx.symbolic_trace(nn.Sequential(norm))
    before = program.code
    activation_memory(program, torch.ones(3, 2), backward=True)
    assert norm.num_batches_tracked == 0
    assert norm.weight.grad is None
    assert program.code == before


def test_a_program_without_operations_takes_nothing() -> None:
    report = report_of(lambda x: x, KIB)
    assert (report.peak, report.at_peak) == (0, ())
    assert str(report).startswith("peak of activations 0 B")


def test_backward_without_anything_that_requires_a_gradient_is_refused() -> None:
    with pytest.raises(PassError, match="leave out backward=True"):
        report_of(lambda x: x + 1, KIB, backward=True)


def test_the_report_fits_80_columns() -> None:
    model = get_model("resnet_tiny")
    report = activation_memory(fx.symbolic_trace(model.build()), *model.example_inputs(batch=1))
    assert max(len(line) for line in str(report).splitlines() if "where" not in line) <= 80


def test_attention_takes_too_long_to_be_made_again() -> None:
    model = get_model("bert_small")
    program = fx.symbolic_trace(model.build())
    report = activation_memory(program, *model.example_inputs(batch=2), backward=True)
    again = {str(saving.node) for saving in report.recompute}
    assert "gelu" in again
    assert not any(name.startswith("scaled_dot_product_attention") for name in again)
