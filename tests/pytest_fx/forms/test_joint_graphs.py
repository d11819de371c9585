"""Passes and partitioners on the joint graph of forward and backward: outputs, gradients, buffers, kept memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch._inductor.fx_passes.joint_graph import joint_graph_passes

from pytest_fx.forms import form_name
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import affordable, broken_laws, choose_laws
from pytest_fx.loading import load_pass

aten = torch.ops.aten


class Layer(nn.Module):
    """A layer whose backward pass needs values of the forward pass, and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.second(torch.sigmoid(self.first(x)).cos()) * self.calls


def run_of(pass_, form="auto") -> PassRun:
    torch.manual_seed(0)
    module, inputs = Layer(), (torch.randn(3, 4),)
    return PassRun(
        Subject("layer", module, lambda number: Arguments(inputs), input_set_count=1), load_pass(pass_, form)
    )


def broken_by(pass_, form="auto") -> set[str]:
    run = run_of(pass_, form)
    return {violation.law for violation in broken_laws(affordable(choose_laws(), run), run)}


def _nodes(graph: torch.fx.Graph, target) -> list[torch.fx.Node]:
    return graph.find_nodes(op="call_function", target=target)


def cos_as_sin(joint: torch.fx.GraphModule) -> None:
    """The cosine is the sine of another angle, and the sine in backward stays."""
    for node in _nodes(joint.graph, aten.cos.default):
        with joint.graph.inserting_before(node):
            angle = joint.graph.call_function(aten.add.Tensor, (node.args[0], torch.pi / 2))
            angle.meta = dict(node.meta)
        node.target, node.args = aten.sin.default, (angle,)


def lose_sign_of_gradient(joint: torch.fx.GraphModule) -> None:
    for node in _nodes(joint.graph, aten.neg.default):
        node.replace_all_uses_with(node.args[0])
        joint.graph.erase_node(node)


def wrong_forward(graph: torch.fx.Graph) -> None:
    for node in _nodes(graph, aten.cos.default):
        node.target = aten.sin.default


def lose_count(joint: torch.fx.GraphModule) -> None:
    """Return the counter as it was; the result of the call stays."""
    output = joint.graph.output_node()
    placeholders = joint.graph.find_nodes(op="placeholder")
    counter = next(node for node in output.args[0] if node in _nodes(joint.graph, aten.add.Tensor))
    before = next(node for node in placeholders if node in counter.args)
    output.replace_input_with(counter, before)


@pytest.mark.parametrize("pass_, laws", [
    (cos_as_sin, set()),
    (lose_sign_of_gradient, {"gradients"}),
    (wrong_forward, {"contract"}),
    (lose_count, {"state"}),
])  # fmt: skip
def test_a_pass_on_the_joint_graph_is_judged_by_outputs_gradients_and_buffers(pass_, laws):
    broken = broken_by(pass_, "joint")
    assert broken >= laws and bool(broken) == bool(laws), broken


def save_everything(joint, inputs, *, num_fwd_outputs):
    """A partitioner that recomputes nothing, and keeps each value that backward reads."""
    return default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)


def with_other_derivative(joint, inputs, *, num_fwd_outputs):
    """A wrong partitioner: the derivative of the cosine is another function."""
    forward, backward = default_partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)
    for node in _nodes(backward.graph, aten.sin.default):
        node.target = aten.sinh.default
    backward.recompile()
    return forward, backward


@pytest.mark.parametrize("partitioner, laws", [
    (min_cut_rematerialization_partition, set()),
    (save_everything, set()),
    (with_other_derivative, {"gradients"}),
])  # fmt: skip
def test_a_partitioner_is_judged_by_the_gradients(partitioner, laws):
    assert form_name(load_pass(partitioner)) == "joint-partitioner"
    assert broken_by(partitioner) == laws


def test_recomputation_keeps_fewer_bytes_for_backward():
    result = run_of(min_cut_rematerialization_partition).form_result
    layer = 3 * 5 * 4  # bytes of a value between both layers
    assert result.kept_bytes_before == 4 * layer + 4  # and the counter
    assert result.kept_bytes == 3 * layer + 4


def test_passes_of_inductor_on_joint_graphs_are_right():
    assert broken_by(joint_graph_passes, "joint") == set()


def test_a_model_without_gradients_has_no_joint_graph():
    subject = Subject("flags", nn.Identity(), lambda number: Arguments((torch.tensor([1]),)), input_set_count=1)
    run = PassRun(subject, load_pass(cos_as_sin, "joint"))
    assert run.not_judged is not None and "no joint graph" in run.not_judged
