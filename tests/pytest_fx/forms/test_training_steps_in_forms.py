"""Passes on the graph of a whole training step: forward, loss, backward and optimizer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from pytest_fx import training_step
from pytest_fx.errors import InputError
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import affordable, broken_laws, choose_laws
from pytest_fx.loading import load_pass

aten = torch.ops.aten
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(6, 4, generator=generator), torch.randint(3, (6,), generator=generator)


def judged(pass_, optimizer="SGD", form="aten", laws=()) -> tuple[PassRun, list]:
    step = training_step(network(), nn.functional.cross_entropy, OPTIMIZERS[optimizer])
    subject = Subject("step", step, lambda number: Arguments(batch(number)), input_set_count=1, mode="train")
    subject.tracing = replace(subject.tracing, how="auto")  # as for --fx-model
    run = PassRun(subject, load_pass(pass_, form))
    assert run.not_judged is None
    assert run.changed
    chosen = [law for law in choose_laws() if not laws or law.name in laws]
    return run, broken_laws(affordable(chosen, run), run)


def calls(graph_module: torch.fx.GraphModule, target) -> list[torch.fx.Node]:
    return graph_module.graph.find_nodes(op="call_function", target=target)


def square_in_backward(graph_module: torch.fx.GraphModule) -> None:
    """The derivative of the hyperbolic tangent is 1 - y²."""
    for node in calls(graph_module, aten.tanh_backward.default):
        gradient, y = node.args
        with graph_module.graph.inserting_before(node):
            square = graph_module.graph.call_function(aten.mul.Tensor, (y, y))
            factor = graph_module.graph.call_function(aten.rsub.Scalar, (square, 1))
            product = graph_module.graph.call_function(aten.mul.Tensor, (gradient, factor))
        square.meta, factor.meta, product.meta = (dict(node.meta) for _ in range(3))
        node.replace_all_uses_with(product)
        graph_module.graph.erase_node(node)


def without_derivative(graph_module: torch.fx.GraphModule) -> None:
    """Wrong: the hyperbolic tangent in the forward pass has a derivative."""
    for node in calls(graph_module, aten.tanh_backward.default):
        node.replace_all_uses_with(node.args[0])
        graph_module.graph.erase_node(node)


def without_decay(graph_module: torch.fx.GraphModule) -> None:
    """Wrong: the momentum is added up, and never decays."""
    for node in calls(graph_module, aten.mul_.Tensor):
        node.replace_all_uses_with(node.args[0])
        graph_module.graph.erase_node(node)


def without_running_mean(graph_module: torch.fx.GraphModule) -> None:
    """Wrong: the statistics of the batch norm do not move."""
    for node in calls(graph_module, aten._native_batch_norm_legit.default):
        node.args = (*node.args[:6], 0.0, *node.args[7:])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_returns_what_an_ordinary_step_of_the_optimizer_makes(optimizer):
    model, expected = network(), network()
    step = training_step(model, nn.functional.cross_entropy, OPTIMIZERS[optimizer])
    before = {name: tensor.clone() for name, tensor in step.state_dict().items()}
    after = step(*batch())
    own = OPTIMIZERS[optimizer](expected.parameters())
    for number, parameter in enumerate(expected.parameters()):
        names = {name.rpartition("_")[0]: name for name in before if name.endswith(f"_{number}")}
        own.state[parameter] = {key.rpartition(".")[2]: before[name].clone() for key, name in names.items()}
    inputs, labels = batch()
    loss = nn.functional.cross_entropy(expected(inputs), labels)
    loss.backward()
    own.step()
    torch.testing.assert_close(after["loss"], loss.detach())
    torch.testing.assert_close(after["parameters"], {n: p.detach() for n, p in expected.named_parameters()})
    torch.testing.assert_close(after["buffers"], dict(expected.named_buffers()))
    states = [dict(own.state[parameter]) for parameter in expected.parameters()]
    torch.testing.assert_close([*after["state"].values()], states)
    assert all(torch.equal(tensor, before[name]) for name, tensor in step.state_dict().items())


@pytest.mark.parametrize("optimizer", ["SGD", pytest.param("Adam", marks=pytest.mark.thorough)])
def test_a_right_pass_on_backward_is_right(optimizer):
    assert judged(square_in_backward, optimizer)[1] == []


@pytest.mark.parametrize("pass_, place", [
    (without_derivative, "output['parameters']"),
    pytest.param(without_decay, "output[", marks=pytest.mark.thorough),
    pytest.param(without_running_mean, "output['buffers']['1.running_", marks=pytest.mark.thorough),
])  # fmt: skip
def test_a_wrong_pass_on_a_step_names_the_wrong_tensor(pass_, place):
    (violation,) = judged(pass_, laws=("contract",))[1]
    assert place in str(violation)


def test_a_pass_on_exported_programs_gets_the_whole_step():
    def count(exported: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
        names.extend(spec.target for spec in exported.graph_signature.input_specs if spec.target)
        square_in_backward(exported.graph_module)
        return exported

    names: list[str] = []
    assert judged(count, form="auto", laws=("contract", "form signature", "form well formed"))[1] == []
    assert {"model.0.weight", "model.1.running_mean", "optimizer_state.momentum_buffer_0"} <= {*names}


@pytest.mark.parametrize("arguments, message", [
    ((len, nn.functional.mse_loss, OPTIMIZERS["SGD"]), "'model' of training_step is a Module, not a builtin"),
    ((network(), 1, OPTIMIZERS["SGD"]), "'loss' of training_step is a function, not an int"),
    ((network(), nn.functional.mse_loss, lambda p: torch.optim.LBFGS(p)), "cannot make a step"),
])  # fmt: skip
def test_bad_arguments_of_a_step_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        training_step(*arguments)
