"""Passes that name the options to try on a program, and passes that split calls into start and wait."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import hypothesis
import pytest
import torch

import fx
from fx.errors import PassError
from fx.operators.asynchronous import halves_of
from fx.passes import OverlapCommunication, get_pass
from pytest_fx import LawViolation, check_pass
from pytest_fx.generation.waiting import WAITING
from pytest_fx.search.drawn_options import with_drawn_options
from pytest_fx.search.references import references_of

pytestmark = pytest.mark.usefixtures("little_explored")

QUICK = hypothesis.settings(database=None, phases=[hypothesis.Phase.generate])


@dataclass(frozen=True)
class SkipReLU:
    """A wrong pass, which skips the operations in its option."""

    at: tuple[str, ...] = ()
    modules: bool = False

    def options_for(self, graph_module: fx.GraphModule) -> Iterator[Mapping[str, Any]]:
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
            yield {"at": (node.name,)}

    def __call__(self, graph_module: fx.GraphModule) -> fx.GraphModule:
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
            if node.name in self.at:
                node.replace_all_uses_with(node.args[0] if node.args else node.kwargs["input"])
                graph_module.graph.erase_node(node)
        graph_module.recompile()
        return graph_module


class TellsNoOptions:
    """A pass without options."""

    def options_for(self, graph_module: fx.GraphModule) -> list[str]:
        return ["relu"]

    def __call__(self, graph_module: fx.GraphModule) -> fx.GraphModule:
        return graph_module


def test_a_pass_is_tried_with_the_options_that_it_names_for_each_program(tmp_path):
    with pytest.raises(LawViolation) as caught:
        check_pass(SkipReLU(), max_examples=40, seed=0, folder=tmp_path, settings=QUICK)
    assert "with these options: skip-re-lu{at=relu" in str(caught.value)


@pytest.mark.thorough
def test_the_test_file_of_a_failure_has_the_options(tmp_path):
    with pytest.raises(LawViolation) as caught:
        check_pass(SkipReLU(), max_examples=40, seed=0, folder=tmp_path)
    text = str(caught.value)
    assert "with these options: skip-re-lu{at=relu}" in text
    assert text.count("torch.relu") == 2  # in the program, made smaller, and in its code before the pass
    (file,) = tmp_path.glob("test_*.py")
    assert f"'{__name__}:SkipReLU{{at=relu}}'" in file.read_text()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    ran = subprocess.run(command, check=False, capture_output=True)
    assert b"LawViolation" in ran.stdout


def test_options_that_are_given_stay():
    report = check_pass(SkipReLU(at=("nowhere",)), max_examples=20, seed=0, min_changed=0)
    assert report.changed == 0


def test_a_pass_that_names_something_else_than_options_is_refused():
    with pytest.raises(PassError, match=r"options_for yields options by name"):
        check_pass(TellsNoOptions(), max_examples=1)


@pytest.mark.parametrize(
    "name, count",
    [("canonicalize", 5), ("fuse-conv-bn", 2), ("merge-parallel-layers", 2), ("overlap", 4), ("split", 11)],
)
def test_passes_of_ours_are_tried_with_several_options(name, count):
    program = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)))
    drawn = {str(with_drawn_options(get_pass(name), program, Random(seed))) for seed in range(60)}
    assert len(drawn) == count


def test_a_pipeline_draws_options_for_each_of_its_passes_and_so_splits_most_programs_at_a_place_of_theirs():
    report = check_pass("remove-dead-code,split", max_examples=6, seed=0)
    assert report.changed >= 4


def test_a_pass_that_looks_for_waits_gets_programs_with_waits():
    assert set(WAITING) <= set(references_of(OverlapCommunication()).operations)
    assert set(WAITING).isdisjoint(references_of(get_pass("fuse-conv-bn")).operations)
    report = check_pass("overlap", max_examples=4, seed=0)
    assert report.changed >= 2


def wait_at_once(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A wrong pass: starts each fetch first, before the producer of its argument."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op == "call_function" and halves_of(node.target) is not None:
            next(other for other in graph.nodes if other.op != "placeholder").prepend(node)
    graph_module.recompile()
    return graph_module


def test_a_call_that_waits_and_moves_too_far_is_found(tmp_path):
    with pytest.raises(LawViolation):
        check_pass(wait_at_once, max_examples=20, seed=0, folder=tmp_path, settings=QUICK)


class _Plan:
    """A helper, whose constructor does the work."""

    def __init__(self, graph: fx.Graph) -> None:
        self.nodes = graph.find_nodes(op="call_function", target=torch.sinh)


def count_sinh(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A pass that names an operation in a constructor alone."""
    graph_module.meta["count"] = len(_Plan(graph_module.graph).nodes)
    return graph_module


def test_operations_in_the_constructor_of_a_helper_are_references():
    assert references_of(count_sinh).operations == (torch.sinh,)
