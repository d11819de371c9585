"""Calls that get a tensor of a subclass with functions of its own keep their spelling."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from packed_weights import pack
from torch import nn

import fx
from fx.canonical import canonical_form
from fx.quantize import convert, prepare, report


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.plain, self.last = nn.Linear(8, 8), nn.Conv1d(8, 8, 1), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.linear(self.first(x).relu(), self.first.weight, bias=self.first.bias)
        return self.last(self.plain(x.unsqueeze(-1)).squeeze(-1))


def by_torchao(model: nn.Module) -> nn.Module:
    torchao = pytest.importorskip("torchao.quantization")
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    return model


@pytest.fixture(params=[pack, by_torchao])
def program(request: pytest.FixtureRequest) -> fx.GraphModule:
    torch.manual_seed(0)
    return fx.symbolic_trace(request.param(Net().eval().requires_grad_(False)))


def test_the_canonical_form_of_packed_weights_equals_the_program(program: fx.GraphModule) -> None:
    canonical = canonical_form(program).graph_module
    x = torch.randn(3, 8)
    assert torch.equal(canonical(x), program(x))
    layers = [node for node in canonical.graph.nodes if node.target is F.linear]
    assert [(len(node.args), sorted(node.kwargs)) for node in layers] == [(3, []), (2, ["bias"]), (3, [])]
    (plain,) = canonical.graph.find_nodes(op="call_function", target=F.conv1d)
    assert plain.kwargs["input"].name == "unsqueeze" and not plain.args
    assert canonical_form(canonical).graph_module.code == canonical.code


def test_a_value_made_of_packed_weights_alone_keeps_the_spelling_of_its_calls_too() -> None:
    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.exp().matmul(self.layer.weight.detach().t())

    program = canonical_form(fx.symbolic_trace(pack(Transposed()))).graph_module
    calls = [node for node in program.graph.nodes if node.op.startswith("call")]
    assert {str(node): node.op for node in calls} == {
        "exp": "call_function", "detach": "call_method", "t": "call_method", "matmul": "call_method"
    }  # fmt: skip


def test_packed_weights_are_unchanged_in_a_quantized_program(program: fx.GraphModule) -> None:
    x = torch.randn(32, 8)
    prepared = prepare(program, None, (x,))
    prepared(x)
    quantized = convert(prepared)
    reasons = [remainder.reason for remainder in report(quantized).remainders]
    assert reasons.count("its weight is a tensor of a subclass with functions of its own") == 3
    assert (quantized(x) - program(x)).abs().max() < 0.05
