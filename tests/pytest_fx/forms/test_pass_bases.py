"""Plain passes of ``torch.fx`` on exported programs get what torch asks of these."""

from __future__ import annotations

import torch
from torch import nn
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import GivenProgram, Subject
from pytest_fx.loading import load_pass

aten = torch.ops.aten


class ClampMin(PassBase):
    def call(self, graph_module):
        for node in graph_module.graph.find_nodes(op="call_function", target=aten.relu.default):
            with graph_module.graph.inserting_before(node):
                clamped = graph_module.graph.call_function(aten.clamp_min.default, (node.args[0], 0))
            node.replace_all_uses_with(clamped)
        return PassResult(graph_module, True)


def test_nodes_that_a_pass_base_adds_without_values_get_them():
    subject = Subject.of(GivenProgram(nn.ReLU, Arguments((torch.randn(4, 2),))))
    run = PassRun(subject, load_pass(ClampMin))
    (clamped,) = run.form_result.graph_module.graph.find_nodes(op="call_function", target=aten.clamp_min.default)
    assert run.error is None
    assert tuple(clamped.meta["val"].shape)[1:] == (2,)
