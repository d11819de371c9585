"""Edits that the analysis allows, made in random programs: they change nothing visible of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_programs import Recipe, build, recipes, run, same, storage
from torch.utils._pytree import tree_leaves

import fx
from fx.analysis.aliases import Aliases
from fx.analysis.dependence import Dependences
from fx.passes.common_subexpressions import EliminateCommonSubexpressions
from fx.passes.dead_code import RemoveDeadCode
from fx.passes.fold_constants import FoldConstants

many = settings(
    max_examples=30 if settings().max_examples > 100 else 12,  # ``make properties`` asks for more than the usual 100
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
shared_inputs = st.integers(0, 2)
Change = Callable[[list[fx.Node], Dependences], Any]


def seen_of(recipe: Recipe, shared: int) -> dict[str, Any]:
    observed = run(build(recipe), shared)
    assume(observed["raised"] in (None, AssertionError))
    return observed


def assert_unchanged(recipe: Recipe, shared: int, before: dict[str, Any], change: Change) -> bool:
    """Let ``change`` edit the program if the analysis allows, and compare runs. True if it did."""
    program = build(recipe)
    nodes = list(program.graph.nodes)
    text = str(program.graph)
    if change(nodes, Dependences(program.graph)) is False:
        return False
    program.graph.lint()
    after = run(program, shared)
    different = [key for key in before if not same(before[key], after[key])]
    assert not different, f"{different}\n{text}\n{program.graph}"
    return True


@many
@given(recipes, shared_inputs)
def test_values_that_overlap_in_memory_are_in_one_group(recipe: Recipe, shared: int) -> None:
    program = build(recipe)
    values: dict[fx.Node, Any] = {}
    run(program, shared, values)
    aliases = Aliases(program.graph)
    holding = {node: {storage(leaf) for leaf in tree_leaves(value)} - {None} for node, value in values.items()}
    for first in values:
        for second in values:
            if holding[first] & holding[second]:
                assert aliases.may_share(first, second), f"{first} {second}\n{program.graph}"


@many
@given(recipes, shared_inputs)
def test_droppable_nodes_do_not_affect_the_result(recipe: Recipe, shared: int) -> None:
    before = seen_of(recipe, shared)
    for place in range(len(build(recipe).graph.nodes)):

        def drop(nodes: list[fx.Node], dependences: Dependences, place: int = place) -> Any:
            if dependences.why_not_drop(nodes[place]) is not None:
                return False
            return nodes[place].graph.erase_node(nodes[place])

        assert_unchanged(recipe, shared, before, drop)


@pytest.mark.thorough
@many
@given(recipes, shared_inputs)
def test_moved_nodes_compute_the_same_values(recipe: Recipe, shared: int) -> None:
    before = seen_of(recipe, shared)
    count = len(build(recipe).graph.nodes)
    for place in range(2, count - 1):
        for goal in range(2, count):

            def move(nodes: list[fx.Node], dependences: Dependences, place: int = place, goal: int = goal) -> Any:
                if goal in (place, place + 1) or dependences.why_not_move(nodes[place], nodes[goal]) is not None:
                    return False
                return nodes[goal].prepend(nodes[place])

            assert_unchanged(recipe, shared, before, move)


@many
@given(recipes, shared_inputs)
def test_neighbours_that_may_be_swapped_can_be(recipe: Recipe, shared: int) -> None:
    before = seen_of(recipe, shared)
    for place in range(2, len(build(recipe).graph.nodes) - 2):

        def swap(nodes: list[fx.Node], dependences: Dependences, place: int = place) -> Any:
            if dependences.why_not_swap(nodes[place], nodes[place + 1]) is not None:
                return False
            return nodes[place].prepend(nodes[place + 1])

        assert_unchanged(recipe, shared, before, swap)


@many
@given(recipes, shared_inputs, st.booleans())
def test_mergeable_nodes_have_equal_values(recipe: Recipe, shared: int, doubled: bool) -> None:
    steps, returned = recipe
    recipe = ((*steps, *steps) if doubled else steps, returned)
    before = seen_of(recipe, shared)
    nodes = list(build(recipe).graph.nodes)
    for first in range(2, len(nodes) - 1):
        for second in range(first + 1, len(nodes) - 1):
            a, b = nodes[first], nodes[second]
            if (a.op, a.target, str(a.args), str(a.kwargs)) != (b.op, b.target, str(b.args), str(b.kwargs)):
                continue

            def merge(nodes: list[fx.Node], dependences: Dependences, one: int = first, two: int = second) -> Any:
                if dependences.why_not_merge(nodes[one], nodes[two]) is not None:
                    return False
                nodes[two].replace_all_uses_with(nodes[one])
                return nodes[two].graph.erase_node(nodes[two])

            assert_unchanged(recipe, shared, before, merge)


@many
@given(recipes, shared_inputs, st.lists(st.integers(0, 1000), min_size=2, max_size=6))
def test_fusible_nodes_may_run_at_the_place_of_the_last(recipe: Recipe, shared: int, chosen: list[int]) -> None:
    before = seen_of(recipe, shared)

    def gather(nodes: list[fx.Node], dependences: Dependences) -> Any:
        places = sorted({2 + number % (len(nodes) - 2) for number in chosen})
        if dependences.why_not_fuse([nodes[place] for place in places]) is not None:
            return False
        for place in places[:-1]:
            nodes[places[-1]].prepend(nodes[place])
        return True

    assert_unchanged(recipe, shared, before, gather)


@many
@given(recipes, shared_inputs, st.sampled_from(["dead", "common", "constants"]), st.booleans())
def test_passes_that_ask_are_exact(recipe: Recipe, shared: int, name: str, doubled: bool) -> None:
    steps, returned = recipe
    recipe = ((*steps, *steps) if doubled else steps, returned)
    before = seen_of(recipe, shared)
    passes = {"dead": RemoveDeadCode(), "common": EliminateCommonSubexpressions(), "constants": FoldConstants()}

    def rewrite(nodes: list[fx.Node], dependences: Dependences) -> Any:
        owner = nodes[0].graph.owning_module
        assert owner is not None
        passes[name](owner)

    assert_unchanged(recipe, shared, before, rewrite)
