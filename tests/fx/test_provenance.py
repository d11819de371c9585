"""The origins of nodes: lines of the user's program, kept through copies, edits and pickles."""

from __future__ import annotations

import copy
import pickle

import torch

import fx
from fx.provenance import SourceLocation, line_of


class Gate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(
            x + 1,
        )
        return self.inner(y)  # calls


class Inner(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.neg()  # negates


def sources() -> dict[str, SourceLocation]:
    return {node.name: node.source for node in fx.symbolic_trace(Gate()).graph.nodes if node.source is not None}


def test_each_operation_knows_the_line_that_made_it() -> None:
    sources_by_name = sources()
    assert sources_by_name["add"].text == "x + 1,"
    assert sources_by_name["relu"].text == "y = torch.relu("
    assert sources_by_name["neg"].text == "return x.neg()  # negates"
    assert sources_by_name["relu"].line == sources_by_name["add"].line - 1
    assert all(source.file == __file__ for source in sources_by_name.values())


def test_a_location_prints_as_one_line() -> None:
    location = SourceLocation.of("gate.py", 12, "Gate.forward", "if x.sum() > 0:")
    assert str(location) == "gate.py:12, in Gate.forward:  if x.sum() > 0:"
    assert repr(location) == "SourceLocation('gate.py:12, in Gate.forward:  if x.sum() > 0:')"
    assert str(SourceLocation.of("gate.py", 12, "forward")) == "gate.py:12, in forward"


def test_a_location_prints_as_a_traceback_entry() -> None:
    location = SourceLocation.of("gate.py", 12, "Gate.forward", "return x")
    assert location.traceback() == 'File "gate.py", line 12, in forward\n    return x\n'


def test_stack_trace_is_the_location_unless_one_is_recorded() -> None:
    node = next(node for node in fx.symbolic_trace(Gate()).graph.nodes if node.name == "neg")
    assert node.stack_trace == node.source.traceback()
    node.stack_trace = "elsewhere"
    assert node.stack_trace == "elsewhere"
    assert node.meta["stack_trace"] == "elsewhere"


def test_locations_compare_by_their_contents() -> None:
    first = SourceLocation.of("a.py", 1, "f", "x")
    assert first == SourceLocation.of("a.py", 1, "f", "x")
    assert hash(first) == hash(SourceLocation.of("a.py", 1, "f", "x"))
    assert first != SourceLocation.of("a.py", 2, "f", "x")
    assert first != "a.py:1, in f:  x"


def test_locations_survive_copies_and_pickles() -> None:
    for name, source in sources().items():
        assert copy.copy(source) is source, name
        assert copy.deepcopy(source) is source
        assert pickle.loads(pickle.dumps(source)) == source


def test_a_file_that_is_gone_leaves_the_text_empty() -> None:
    code = compile("\n\nx = 1\n", "no such file.py", "exec")
    location = SourceLocation(code, len(code.co_code) - 2)
    assert (location.file, location.line, location.text) == ("no such file.py", 3, "")


def test_instructions_are_found_in_code() -> None:
    code = compile("a = 1\nb = 2\n\nc = 3\n", "f.py", "exec")
    assert {line_of(code, offset) for offset in range(0, len(code.co_code), 2)} >= {1, 2, 4}
    assert line_of(code, 10**6) == code.co_firstlineno
