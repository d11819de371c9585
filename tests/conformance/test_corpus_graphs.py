"""Every program of the corpus is captured, printed and written as Python as torch.fx does it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from .differences import assert_equal_unless_intended, is_intended
from .libraries import OURS, THEIRS, describe_graph, module_stacks, neutral
from .programs import Program

pytestmark = pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning")


@pytest.mark.parametrize(
    "kind, of",
    [
        ("nodes", lambda captured: describe_graph(captured.graph)),
        ("print", lambda captured: neutral(str(captured.graph))),
        ("code", lambda captured: neutral(captured.code)),
        ("names", lambda captured: module_stacks(captured.graph)),  # of the modules that nodes come from
    ],
)
def test_a_captured_program_is_the_same(program: Program, kind: str, of: Callable[[Any], Any]) -> None:
    assert_equal_unless_intended(of(program.captured(OURS)), of(program.captured(THEIRS)), program.name, kind)


def test_targets_are_the_same_objects(program: Program) -> None:
    if is_intended(program.name, "nodes"):
        return
    for mine, other in zip(program.captured(OURS).graph.nodes, program.captured(THEIRS).graph.nodes, strict=True):
        if not (getattr(other.target, "__module__", None) or "").startswith(THEIRS.__name__):
            assert mine.target == other.target


def test_captured_module_holds_the_same_state(program: Program) -> None:
    ours, theirs = program.captured(OURS), program.captured(THEIRS)
    assert_equal_unless_intended(list(ours.state_dict()), list(theirs.state_dict()), program.name, "state")
    assert sorted(dict(ours.named_parameters())) == sorted(dict(theirs.named_parameters()))
    assert sorted(dict(ours.named_buffers())) == sorted(dict(theirs.named_buffers()))
    assert sorted(dict(ours.named_modules())) == sorted(dict(theirs.named_modules()))
    assert ours.training == theirs.training
    assert type(ours).__name__ == type(theirs).__name__


def test_dead_code_is_eliminated_alike(program: Program) -> None:
    ours, theirs = program.capture(OURS), program.capture(THEIRS)
    changed = ours.graph.eliminate_dead_code(), theirs.graph.eliminate_dead_code()
    assert_equal_unless_intended(
        (changed[0], describe_graph(ours.graph)), (changed[1], describe_graph(theirs.graph)), program.name, "dead code"
    )


def test_copied_graph_reads_like_the_original(program: Program) -> None:
    ours, theirs = program.captured(OURS), program.captured(THEIRS)
    copied = copy.deepcopy(ours.graph)
    copied.lint()
    assert describe_graph(copied) == describe_graph(ours.graph)
    theirs_copied = describe_graph(copy.deepcopy(theirs.graph))
    assert_equal_unless_intended(describe_graph(copied), theirs_copied, program.name, "nodes")
    assert all(mine is not original for mine, original in zip(copied.nodes, ours.graph.nodes, strict=True))


def test_graph_copied_into_another_gets_the_same_names(program: Program) -> None:
    described = []
    for library in (OURS, THEIRS):
        graph = library.Graph()
        graph.placeholder("x")
        graph.call_function(abs, (next(iter(graph.nodes)),))
        output = graph.graph_copy(program.captured(library).graph, {})
        graph.output(output)
        graph.lint()
        described.append(describe_graph(graph))
    assert_equal_unless_intended(described[0], described[1], program.name, "nodes")


def test_retracing_gives_the_same_graph(program: Program) -> None:
    if not program.retraces_in_torch_fx:
        pytest.skip("torch.fx cannot trace its own code again here")
    described = []
    for library in (OURS, THEIRS):
        retraced = library.symbolic_trace(program.captured(library))
        described.append((describe_graph(retraced.graph), neutral(retraced.code)))
    assert_equal_unless_intended(described[0], described[1], program.name, "retrace")


def test_identity_transformer_rebuilds_the_same_graph(program: Program) -> None:
    described = []
    for library in (OURS, THEIRS):
        transformed = library.Transformer(program.captured(library)).transform()
        described.append((describe_graph(transformed.graph), neutral(transformed.code)))
    assert_equal_unless_intended(described[0], described[1], program.name, "transformer")


def test_no_warning_is_given_where_torch_fx_gives_none(program: Program) -> None:
    counts = []
    for library in (OURS, THEIRS):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            program.capture(library)
        counts.append([warning.category for warning in caught])
    assert counts[0] == counts[1]
