"""pytest_fx.harness.float64_casts: the reference in float64 of models that make tensors of their dtype themselves."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from pytest_fx.failures.explanation import locate_in
from pytest_fx.harness.capture import Tracing
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.laws.differentiation import gradients_of

THIRDS = np.arange(3, dtype=np.float32) / 3
MADE = {
    "float": lambda x: (torch.arange(3) / 3).float(),
    "to": lambda x: (torch.arange(3) / 3).to(torch.float32),
    "to by name": lambda x: (torch.arange(3) / 3).to(dtype=torch.float32),
    "type": lambda x: (torch.arange(3) / 3).type(torch.float32),
    "type by name": lambda x: (torch.arange(3) / 3).type("torch.FloatTensor"),
    "a factory": lambda x: torch.arange(3, dtype=torch.float32) / 3,
    "an array": lambda x: torch.tensor(THIRDS),
    "a comparison": lambda x: (x > 0).to(torch.float32),
    "a function of the class": lambda x: torch.Tensor.float(x > 0),
    "an operator of aten": lambda x: torch.ops.aten._to_copy(x > 0, dtype=torch.float32),
}
"""Ways to make a tensor of float32."""


class Making(nn.Module):
    """Multiplies a value made in float32 by a weight."""

    def __init__(self, make) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.rand(3, 3))
        self.make = make

    def forward(self, x):
        return x + self.make(x) @ self.weight


class CastingDown(nn.Module):
    """Runs in float64 as it is."""

    def forward(self, x):
        return x.float() + x


def subject_of(module: nn.Module, how: str = "auto", **options) -> Subject:
    torch.manual_seed(1)
    x = torch.randn(4, 3)
    tracing = dataclasses.replace(Tracing(), how=how)
    return Subject("model", module, lambda input_set: Arguments((x * (input_set + 1),)), tracing=tracing, **options)


@pytest.mark.parametrize("how", ["symbolic", "guided", "export"])
@pytest.mark.parametrize("name", MADE)
def test_a_model_that_makes_float32_tensors_has_a_reference_in_float64_and_so_has_its_capture(name, how):
    subject = subject_of(Making(MADE[name]), how)
    expected = subject.eager(float64=True)
    assert expected.error is None
    assert expected.output.dtype == torch.float64
    program = subject.capture(subject.shared_copy(float64=True), float64=True)
    run_result = subject.runner(program, float64=True)(subject.arguments(float64=True), torch.float64)
    assert torch.equal(run_result.output, expected.output)


@pytest.mark.parametrize("name", [name for name in MADE if name != "an array"])
def test_nothing_is_rounded_to_float32_in_that_reference(name):
    subject = subject_of(Making(MADE[name]))
    (x,) = subject.arguments(float64=True).args
    factor = torch.arange(3).double() / 3 if MADE[name](x).dim() == 1 else (x > 0).double()
    weight = subject.fresh(torch.float64).weight
    assert torch.equal(subject.eager(float64=True).output, x + factor @ weight)


def test_a_model_of_bfloat16_that_computes_in_float32_inside_has_a_reference_in_float64():
    class Inside(nn.Linear):
        def forward(self, x):
            return super().forward(x.float().softmax(-1).to(torch.bfloat16))

    subject = subject_of(Inside(3, 3).to(torch.bfloat16))
    (x,) = subject.arguments(float64=True).args
    module = subject.fresh(torch.float64)
    expected = nn.functional.linear(x.softmax(-1), module.weight, module.bias)
    assert torch.equal(subject.eager(float64=True).output, expected)


def test_a_model_that_runs_in_float64_as_it_is_keeps_its_casts_there():
    subject = subject_of(CastingDown())
    (x,) = subject.arguments(float64=True).args
    assert torch.equal(subject.eager(float64=True).output, x.float() + x)
    assert "x.float()" in subject.capture(float64=True).code


def test_a_model_that_raises_in_float64_for_another_reason_has_no_reference_there():
    class Refusing(nn.Module):
        def forward(self, x):
            if x.dtype == torch.float64:
                raise ValueError("single precision only")
            return x.float()

    assert isinstance(subject_of(Refusing(), "guided").eager(float64=True).error, ValueError)


def test_reinterpreting_memory_as_float32_is_not_a_cast():
    class Bits(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(3, 3))

        def forward(self, x):
            bits = torch.full((3,), 1 << 23, dtype=torch.int32).view(torch.float32)
            return x + bits.to(torch.float32) @ self.weight

    subject = subject_of(Bits(), "guided")
    (x,) = subject.arguments(float64=True).args
    assert torch.allclose(subject.eager(float64=True).output, x, rtol=0, atol=1e-30)


def shifting(gm):
    """Add a hundred thousandth to the operand of the product."""
    for node in list(gm.graph.find_nodes(op="call_function")) + list(gm.graph.find_nodes(op="call_method")):
        if node.name.startswith("matmul"):
            users = list(node.users)
            with gm.graph.inserting_after(node):
                shifted = gm.graph.call_function(torch.add, (node, 1e-5))
            for user in users:
                user.replace_input_with(node, shifted)
    gm.recompile()
    return gm


def test_a_pass_is_judged_in_float64_on_such_a_model_and_its_wrong_node_is_named():
    subject = subject_of(Making(MADE["float"]))
    run = PassRun(subject, shifting)
    assert run.has_float64
    error = (run.actual(float64=True).output - run.eager(float64=True).output).abs()
    assert torch.allclose(error, torch.full_like(error, 1e-5))
    given_run = PassRun.given(subject, run.after)
    assert "add" in str(locate_in(given_run, "contract")[0])


def test_such_a_model_is_differentiated_in_float64():
    subject = subject_of(Making(MADE["float"]))
    subject.eager(float64=True)
    gradients = gradients_of(subject.eager_runner(float64=True), subject.arguments(float64=True), torch.float64)
    assert gradients["weight"].dtype == torch.float64


def test_variants_of_the_inputs_share_the_known_casts():
    subject = subject_of(Making(MADE["float"]))
    other = subject.at(1)
    assert other.eager(float64=True).error is None
    assert subject.eager(float64=True).error is None
