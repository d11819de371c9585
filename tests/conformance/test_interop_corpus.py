"""Every program of the corpus is converted from torch.fx and to it, and back, without a difference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fx
from fx.analysis.verify import find_violation
from fx.interop import from_torch, to_torch

from .differences import is_intended
from .libraries import OURS, THEIRS, assert_identical, describe_graph, neutral
from .programs import Program

pytestmark = pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning")

CODE_IS_WRITTEN_OTHERWISE = {"annotated_with_anything", "enumerations", "specialized_none"}
"""Programs whose nodes are alike in both libraries, and whose code is spelled as each library does."""

KEYWORD_ONLY = {
    "defaults": ("scale = 2.0, *, ", "scale = 2.0, "),
    "keyword_only": ("x, *, ", "x, "),
    "KeywordSignature": ("x : torch.Tensor, *, ", "x : torch.Tensor, "),
    "every_kind_of_parameter": ("*rest, scale = 2.0", "scale = 2.0, *rest"),
}
"""Parts of a signature with keyword-only parameters that torch.fx writes otherwise: it makes them positional."""

HOLDS_SIZES = {"nested_arguments", "containers_of_other_classes"}
"""Programs with torch.Size among the arguments, which torch.fx turns into tuples."""


def assert_same_code(ours: Any, theirs: Any, program: Program) -> None:
    if program.name in CODE_IS_WRITTEN_OTHERWISE:
        assert is_intended(program.name, "code")
        assert neutral(ours.code) != neutral(theirs.code)
    else:
        assert neutral(ours.code) == neutral(theirs.code)


def nodes_of(graph: Any) -> list[tuple[str, ...]]:
    """Return the nodes, with corresponding functions of the two libraries spelled alike."""
    theirs = "torch.fx._symbolic_trace._assert_is_none"
    return [
        tuple(part.replace(theirs, "fx.assertions.assert_is_none") for part in node) for node in describe_graph(graph)
    ]


def result_of(module: Any, program: Program) -> Any:
    return module(*program.inputs(), **program.keywords)


def test_program_of_torch_fx_becomes_the_same_program(program: Program) -> None:
    theirs = program.captured(THEIRS)
    ours = from_torch(theirs)
    assert find_violation(ours.graph) is None
    assert isinstance(ours, fx.GraphModule)
    assert nodes_of(ours.graph) == nodes_of(theirs.graph)
    assert_same_code(ours, theirs, program)
    assert_identical(result_of(ours, program), result_of(theirs, program))


def test_program_of_ours_becomes_the_same_program(program: Program) -> None:
    ours = program.captured(OURS)
    theirs = to_torch(ours)
    theirs.graph.lint()
    assert isinstance(theirs, torch.fx.GraphModule)
    if program.name in HOLDS_SIZES:
        assert ("Size(" in str(nodes_of(ours.graph)), "Size(" in str(nodes_of(theirs.graph))) == (True, False)
    else:
        assert nodes_of(theirs.graph) == nodes_of(ours.graph)
        if program.name in KEYWORD_ONLY:
            written, positional = KEYWORD_ONLY[program.name]
            assert written in ours.code
            assert neutral(theirs.code) == neutral(ours.code).replace(written, positional, 1)
        else:
            assert_same_code(ours, theirs, program)
    assert_identical(result_of(theirs, program), result_of(ours, program))


def test_state_is_shared_under_the_same_names(program: Program) -> None:
    for library, convert in ((THEIRS, from_torch), (OURS, to_torch)):
        original = program.captured(library)
        converted = convert(original)
        assert converted.training == original.training
        assert type(converted).__name__ == type(original).__name__
        assert list(converted.state_dict()) == list(original.state_dict())
        for kind in ("named_parameters", "named_buffers"):
            pairs = zip(getattr(converted, kind)(), getattr(original, kind)(), strict=True)
            assert all(name == other and tensor is shared for (name, tensor), (other, shared) in pairs)
        modules = zip(converted.named_modules(), original.named_modules(), strict=True)
        assert all(name == other and mine.training == its.training for (name, mine), (other, its) in modules)


def test_there_and_back_is_the_same_program(program: Program) -> None:
    ours = program.captured(OURS)
    back = from_torch(to_torch(ours))
    if program.name in HOLDS_SIZES:
        assert back.code != ours.code
    else:
        assert back.code == ours.code
        assert str(back.graph) == str(ours.graph)
        assert describe_graph(back.graph) == describe_graph(ours.graph)
    for node, original in zip(back.graph.nodes, ours.graph.nodes, strict=True):
        assert node.meta == original.meta
        assert (node.source, node.origins, node.stack_trace) == (
            original.source,
            original.origins,
            original.stack_trace,
        )
    assert_identical(result_of(back, program), result_of(ours, program))


def test_back_and_there_is_the_same_program(program: Program) -> None:
    theirs = program.captured(THEIRS)
    again = to_torch(from_torch(theirs))
    assert again.code == theirs.code
    assert str(again.graph) == str(theirs.graph)
    assert describe_graph(again.graph) == describe_graph(theirs.graph)
    assert [node.meta for node in again.graph.nodes] == [node.meta for node in theirs.graph.nodes]
    assert_identical(result_of(again, program), result_of(theirs, program))
