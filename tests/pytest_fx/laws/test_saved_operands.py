"""Gradients of programs of torch that write to inputs or buffers after a pass has read them elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import GivenProgram, Subject
from pytest_fx.laws import choose_laws
from pytest_fx.loading import load_pass

aten = torch.ops.aten
GRADIENTS = next(law for law in choose_laws((), (), ()) if law.name == "gradients")


class ConvolvedThenWritten(nn.Module):
    def __init__(self):
        super().__init__()
        self.pad, self.convolution = nn.ZeroPad1d(1), nn.Conv1d(1, 1, 1)

    def forward(self, x):
        padded = self.pad(x)
        x.add_(1)
        return self.convolution(padded)


def pad_in_convolutions(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    for node in gm.graph.find_nodes(op="call_function", target=aten.convolution.default):
        pad = node.args[0]
        if pad.target is aten.constant_pad_nd.default:
            node.args = (pad.args[0], *node.args[1:4], [1], *node.args[5:])
    return gm


def detach_pads(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    for node in gm.graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default):
        with gm.graph.inserting_before(node):
            detached = gm.graph.call_function(aten.detach.default, (node.args[0],))
        node.args = (detached, *node.args[1:])
    return gm


def violation(pass_, export):
    subject = Subject.of(GivenProgram(ConvolvedThenWritten, Arguments((torch.ones(1, 1, 2),))), "eval")
    subject.export = export
    return GRADIENTS.find_violation(PassRun(subject, load_pass(pass_, "aten").at("decomposed")))


@pytest.mark.parametrize("export", ["recording", "dynamic"])
def test_gradients_are_compared_although_torch_writes_to_an_input_at_the_end(export):
    assert violation(pad_in_convolutions, export) is None
    assert "changes the gradient of input[0]" in str(violation(detach_pads, export))
