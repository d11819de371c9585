"""Models whose weights are of a subclass without memory, as torchao's quantized ones are."""

from __future__ import annotations

import pytest
import torch
from packed_weights import pack
from torch import nn

import fx
from fx.passes import Canonicalize, approximate, close, exact
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import affordable, broken_laws, choose_laws


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval().requires_grad_(False)


def by_torchao(model):
    torchao = pytest.importorskip("torchao.quantization")
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
    return model


def inputs(number):
    return Arguments((torch.randn(3, 16, generator=torch.Generator().manual_seed(number)),))


@pytest.fixture(params=[pack, by_torchao])
def subject(request):
    return Subject("packed", request.param(network()), inputs)


def laws_broken(pass_, subject, contract=close):
    pass_run = PassRun(subject, pass_, contract=contract)
    return [violation.law for violation in broken_laws(affordable(choose_laws((), (), ()), pass_run), pass_run)]


def relu_as_a_function(program):
    for node in program.graph.find_nodes(op="call_module", target="1"):
        with program.graph.inserting_after(node):
            node.replace_all_uses_with(program.graph.call_function(torch.relu, node.args))
        program.graph.erase_node(node)
    program.recompile()


def tanh_for_relu(program):
    relu_as_a_function(program)
    (node,) = program.graph.find_nodes(op="call_function")
    node.target = torch.tanh
    program.recompile()


def writes_to_a_weight(program):
    relu_as_a_function(program)
    weight = program.get_parameter("0.weight")
    getattr(weight, weight.__tensor_flatten__()[0][0]).zero_()


@pytest.mark.parametrize("pass_", [relu_as_a_function, Canonicalize()])
@pytest.mark.parametrize("contract", [exact, close])
def test_a_right_pass_is_right(pass_, subject, contract):
    assert laws_broken(pass_, subject, contract) == []


@pytest.mark.parametrize("contract", [exact, close, approximate(sqnr_db=60)])
def test_a_wrong_pass_is_wrong(subject, contract):
    assert "contract" in laws_broken(tanh_for_relu, subject, contract)


def test_a_pass_that_writes_to_the_inner_tensors_of_a_weight_is_caught(subject):
    assert "original untouched" in laws_broken(writes_to_a_weight, subject)


def test_a_capture_without_leaf_modules_equals_the_model(subject):
    x = torch.randn(2, 16)
    program = subject.capture(subject.fresh(), leaves=False)
    assert isinstance(program, fx.GraphModule)
    assert torch.equal(program(x), subject.fresh()(x))
