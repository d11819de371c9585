"""Torch's own clean-up, which many passes on ATen call at their end, is neither their change nor their fault."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import GivenProgram, Subject
from pytest_fx.laws import choose_laws
from pytest_fx.loading import load_pass
from pytest_fx.search.blame import Blame

aten = torch.ops.aten
LAWS = {law.name: law for law in choose_laws((), (), ())}


class UnusedNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x):
        self.norm(x)
        return torch.relu(x)


class PaddedThenWritten(nn.Module):
    def __init__(self):
        super().__init__()
        self.pad, self.convolution = nn.ZeroPad1d(1), nn.Conv1d(1, 1, 1)

    def forward(self, x):
        padded = self.pad(x)
        x.add_(1)
        return self.convolution(padded)


def clamp_and_clean_up(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    for node in gm.graph.find_nodes(op="call_function", target=aten.relu.default):
        node.target, node.args = aten.clamp_min.default, (node.args[0], 0)
    gm.graph.eliminate_dead_code()
    return gm


def drop_norms(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    for node in gm.graph.find_nodes(op="call_function", target=aten.batch_norm.default):
        node.replace_all_uses_with(node.args[0])
        gm.graph.erase_node(node)
    return gm


def pad_in_convolution(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    for node in gm.graph.find_nodes(op="call_function", target=aten.convolution.default):
        pad = node.args[0]
        if pad.target is aten.constant_pad_nd.default:
            node.args = (pad.args[0], *node.args[1:4], [1], *node.args[5:])
    gm.graph.eliminate_dead_code()
    return gm


def run_of(pass_, model, inputs, mode, export="recording"):
    subject = Subject.of(GivenProgram(model, Arguments((inputs,))), mode)
    subject.export = export
    return PassRun(subject, load_pass(pass_))


@pytest.mark.parametrize("export", ["recording", "dynamic"])
@pytest.mark.parametrize("pass_, is_to_blame", [(clamp_and_clean_up, False), (drop_norms, True)])
def test_a_pass_is_not_blamed_for_updates_that_torch_drops_with_dead_code(pass_, is_to_blame, export):
    run = run_of(pass_, UnusedNorm, torch.randn(4, 2), "train", export)
    assert LAWS["state"].find_violation(run) is not None
    assert Blame(run.pass_).caused_by_pass(LAWS["state"], run) is is_to_blame


def test_a_program_without_dead_code_is_no_change_if_the_pass_edits_others():
    run = run_of(pad_in_convolution, UnusedNorm, torch.randn(4, 2), "eval")
    assert run.changed
    assert run.only_tidied
    assert not Blame(run.pass_).changed_by_pass(run)


def test_a_pass_that_only_cleans_up_at_the_first_level_is_given_the_next_one():
    run = run_of(pad_in_convolution, PaddedThenWritten, torch.ones(1, 1, 2), "eval")
    assert run.form_result.level == "decomposed"
    assert not run.only_tidied
