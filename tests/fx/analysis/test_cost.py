"""The cost of programs, compared with PyTorch's counter and with sums made by hand."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from building import Calling
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

import fx
from fx.analysis.cost import CostReport, estimate_cost
from fx.interop import from_export
from fx.operators.families import operators
from model_zoo import get_model


def cost_of(function: Any, *args: Any, **options: Any) -> CostReport:
    return estimate_cost(fx.symbolic_trace(function), *args, **options)


@pytest.mark.parametrize("name", ["dlrm_small", "mlp", "resnet_tiny", "transformer_encoder_small", "unet_small"])
def test_products_are_those_that_the_counter_of_torch_finds_forward_and_backward(name: str) -> None:
    model = get_model(name)
    program, inputs = fx.symbolic_trace(model.build()), model.example_inputs(batch=2)
    report = estimate_cost(program, *inputs, backward=True)
    with FlopCounterMode(display=False) as counter:
        outputs = pytree.tree_leaves(program(*inputs))
        forward = counter.get_total_flops()
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
    assert 2 * report.forward.multiply_adds == forward
    assert 2 * report.total.multiply_adds == counter.get_total_flops()
    assert not report.unknown
    assert report.total.flops == report.total.most_flops > counter.get_total_flops()


def test_the_parts_add_up_and_bytes_count_the_reads_and_writes_of_each_kernel() -> None:
    report = cost_of(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), torch.ones(2, 8))
    linear, relu = report.nodes
    assert (linear.forward.flops, linear.forward.multiply_adds, linear.parameters) == (128, 64, 36)
    assert (linear.forward.read, linear.forward.written) == (4 * (16 + 32 + 4), 4 * 8)
    assert (relu.forward.flops, relu.forward.read, relu.forward.written) == (8, 32, 32)
    assert report.total.flops == 136
    assert report.total.intensity == 136 / (208 + 32 + 64)
    assert (report.parameters, report.parameter_bytes) == (36, 144)


@pytest.mark.parametrize("mask", [False, True])
def test_attention_counts_on_the_cpu_forward_and_backward(mask: bool) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(6, 6) if mask else None)

    inputs = [torch.randn(2, 3, 6, 8, requires_grad=True) for _ in range(3)]
    report = cost_of(attend, *inputs, backward=True)
    assert report.forward.multiply_adds == 2 * 2 * 3 * 6 * 6 * 8
    assert report.backward.multiply_adds >= 2 * report.forward.multiply_adds
    assert not report.unknown


def test_modules_that_run_as_one_kernel_count_as_their_parts() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    attend = Calling(lambda self, x: self.attention(x, x, x)[0], attention=attention)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    projections, scores, feed_forward = 2 * 4 * (4 * 64), 2 * (2 * 4 * 4 * 8), 2 * 4 * (2 * 8 * 16)
    for module, expected in ((attend, projections + scores), (layer, projections + scores + feed_forward)):
        assert cost_of(nn.Sequential(module), torch.ones(2, 4, 8)).total.multiply_adds == expected


def test_products_that_the_counter_of_torch_lacked_are_registered_with_it() -> None:
    layer, x = nn.LSTM(8, 4), torch.ones(5, 2, 8)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        torch.mv(torch.ones(4, 6), torch.ones(6))
        layer(x)
    assert counter.get_total_flops() == 2 * 4 * 6 + 2 * cost_of(nn.Sequential(layer), x).total.multiply_adds


def test_a_recurrent_layer_counts_its_gates_forward_and_backward() -> None:
    report = cost_of(nn.Sequential(nn.LSTM(8, 4)), torch.ones(5, 2, 8))
    assert report.total.multiply_adds == 5 * 2 * (16 * 8 + 16 * 4)


def test_methods_functions_modules_and_exported_programs_cost_the_same() -> None:
    module = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval()
    x = torch.ones(2, 8)
    exported = from_export(torch.export.export(module, (x,)))
    ways = [
        module,
        lambda x: F.linear(x, torch.ones(4, 8), torch.ones(4)).relu(),
        lambda x: torch.relu(torch.addmm(torch.ones(4), x, torch.ones(8, 4))),
    ]
    costs = [cost_of(way, x).total.flops for way in ways] + [estimate_cost(exported, x).total.flops]
    assert costs == [136] * 4


def test_an_operator_without_a_formula_is_named_and_widens_the_interval() -> None:
    name = f"costs::op_{uuid.uuid4().hex}"
    twice = torch.library.custom_op(name, lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    twice.register_fake(torch.empty_like)
    operator = getattr(torch.ops.costs, name.partition("::")[2])
    report = cost_of(lambda x: torch.relu(operator(x)), torch.ones(4))
    assert report.unknown == {f"{name.replace('::', '.')}.default": 1}
    assert (report.total.flops, report.total.most_flops) == (4, 4 + 2 * 4 * 4)
    assert f"unknown: {name.replace('::', '.')}.default, 1 time" in str(report)
    assert "4 FLOP to 36 FLOP" in str(report)

    register_flop_formula(operator)(lambda shape, **_: shape.numel())
    try:
        report = cost_of(lambda x: torch.relu(operator(x)), torch.ones(4))
        assert not report.unknown
        assert report.total.flops == 8
    finally:
        del flop_registry[operator]


def test_no_kernel_of_the_layers_and_activations_is_unknown_forward_or_backward() -> None:
    families = ("linear", "convolution", "normalization", "activation", "softmax", "dropout", "max pooling")
    visited: set[str] = set()
    for row in operators(*families):
        for module, x in map(sample, row.modules):
            if module is not None:
                visited |= cost_of(nn.Sequential(module), x, backward=True).unknown.keys()
    assert visited == set()


def sample(kind: type[nn.Module]) -> tuple[nn.Module | None, torch.Tensor]:
    """A module of one class, and an input that it takes, if one of a few fits."""
    for arguments in [(), (8,), (8, 8), (3,), (8, 8, 3)]:
        for shape in [(2, 8), (2, 8, 6), (2, 8, 6, 6), (2, 8, 6, 6, 6)]:
            try:
                module, x = kind(*arguments), torch.randn(shape, requires_grad=True)
                module(x)
            except Exception:
                continue
            return module, x
    return None, torch.ones(1)


def test_views_cost_nothing_and_copies_cost_bytes_only() -> None:
    assert cost_of(lambda x: x.view(2, 2).t()[0], torch.ones(4)).total.kernels == 0
    moved = cost_of(lambda x: torch.cat([x, x]), torch.ones(4)).total
    assert (moved.flops, moved.read, moved.written) == (0, 32, 32)


def test_an_embedding_reads_the_rows_that_it_takes() -> None:
    report = cost_of(nn.Sequential(nn.Embedding(1000, 4)), torch.tensor([1, 2]))
    assert (report.total.read, report.total.written) == (32 + 16, 32)
    assert report.parameters == 4000


def test_a_parameter_that_is_used_twice_is_counted_once() -> None:
    layer = nn.Linear(4, 4)
    report = cost_of(nn.Sequential(layer, layer), torch.ones(2, 4))
    assert report.parameters == 20
    assert [node.parameters for node in report.nodes] == [20, 20]


def test_work_is_added_up_by_module() -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    report = cost_of(nn.Sequential(inner, nn.Linear(4, 2)), torch.ones(2, 4))
    flops = {path: work.flops for path, work in report.by_module().items()}
    assert flops == {"": 104, "0": 72, "0.0": 64, "0.1": 8, "1": 32}
    assert report.by_module(depth=1).keys() == {"", "0", "1"}


def test_gradients_are_counted_at_their_node() -> None:
    report = cost_of(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)), torch.ones(2, 8), backward=True)
    first, relu, last = report.nodes
    assert (first.backward.multiply_adds, last.backward.multiply_adds) == (2 * 8 * 4, 2 * 2 * 4 * 2)
    assert relu.backward.flops == 8


def test_products_are_counted_up_to_where_a_program_depends_on_elements() -> None:
    program = fx.symbolic_trace(lambda x: (x @ x)[x > 0] @ x[0])
    report = estimate_cost(program, torch.ones(4, 4), partial=True)
    assert {str(node): count for node, count in report.multiply_adds_of().items()} == {"matmul": 64, "gt": 0}
    assert report.failure is not None
    with pytest.raises(type(report.failure)):
        estimate_cost(program, torch.ones(4, 4))


def test_the_cost_report_fits_80_columns() -> None:
    model = get_model("resnet_tiny")
    text = str(estimate_cost(fx.symbolic_trace(model.build()), *model.example_inputs(batch=1), backward=True))
    assert max(map(len, text.splitlines())) <= 80
    assert "and 5" in text
