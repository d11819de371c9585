"""A program on which a pass in a form of torch's breaks a law is made smaller without an export at each step."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from pytest_fx import check_pass
from pytest_fx.errors import LawViolation
from pytest_fx.forms import exported_source

aten = torch.ops.aten


def relu_as_clamp_from_one(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    for node in gm.graph.find_nodes(op="call_function", target=aten.relu.default):
        node.target, node.args = aten.clamp_min.default, (node.args[0], 1)
    return gm


@pytest.mark.filterwarnings("ignore")
def test_few_programs_are_exported_while_one_is_made_smaller(monkeypatch, tmp_path):
    counts, export, record = Counter(), exported_source.export_program, exported_source.record

    def counted(function, name):
        def call(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(exported_source, "export_program", counted(export, "exports"))
    monkeypatch.setattr(exported_source, "record", counted(record, "recordings"))
    with pytest.raises(LawViolation) as caught:
        check_pass(relu_as_clamp_from_one, max_examples=20, seed=1, folder=tmp_path)
    program = str(caught.value).partition("def forward")[2].partition("def ")[0]
    assert program.count(" = ") <= 1
    assert counts["recordings"] > 20
    assert counts["exports"] < counts["recordings"]
    assert counts["exports"] <= 16
