"""Every program of the corpus goes through a data-only file and is the same, but for those that a file cannot hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fx import serialization
from fx.errors import SaveError

from . import function_programs
from .libraries import OURS, assert_identical, describe_graph
from .programs import Program

for _name in "Mode Point Settings decorated_leaf leaf leaf_of_objects leaf_of_pair".split():
    serialization.allow(getattr(function_programs, _name))

CANNOT_BE_SAVED = {"Parametrized": "remove_parametrizations"}
"""Programs that a file cannot hold, with a part of what the error advises."""


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning")
def test_a_saved_program_is_the_program(program: Program, tmp_path: Path) -> None:
    captured = program.captured(OURS)
    path = tmp_path / "program"
    if program.name in CANNOT_BE_SAVED:
        with pytest.raises(SaveError, match=CANNOT_BE_SAVED[program.name]):
            serialization.save(captured, path)
        return
    serialization.save(captured, path)
    loaded = serialization.load(path)
    assert describe_graph(loaded.graph) == describe_graph(captured.graph)
    assert str(loaded.graph) == str(captured.graph)
    assert loaded.code == captured.code
    assert [node.source for node in loaded.graph.nodes] == [node.source for node in captured.graph.nodes]
    assert_identical(dict(loaded.state_dict()), dict(captured.state_dict()))
    assert [name for name, _ in loaded.named_modules()] == [name for name, _ in captured.named_modules()]
    results = []
    for module in (captured, loaded):
        torch.manual_seed(3)
        results.append(module(*program.inputs(), **program.keywords))
    assert_identical(results[1], results[0])
    first = path.read_bytes()
    serialization.save(loaded, path)
    again = serialization.load(path)
    assert again.code == captured.code
    serialization.save(again, path)
    assert len(path.read_bytes()) <= len(first)
