"""The canonical form: functions only, state in ``get_attr``, arguments by keyword."""

from __future__ import annotations

import torch

from fx import symbolic_trace
from fx.canonical import canonical_form


def test_three_spellings_of_one_activation_become_one() -> None:
    def program(x):
        return torch.relu(x), torch.nn.functional.relu(x), x.relu()

    nodes = canonical_form(symbolic_trace(program)).graph_module.graph.find_nodes(op="call_function")
    assert len(nodes) == 3
    assert {(node.target, tuple(node.kwargs)) for node in nodes} == {
        (torch.nn.functional.relu, ("input", "inplace")),
    }
