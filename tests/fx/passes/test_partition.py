"""Supported operations come together in regions that can run as a whole, as large as they can be."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fx
from fx.errors import PassError
from fx.passes.machinery.partition import find_regions
from fx.passes.machinery.regions import Region, Regions


def regions_of(function: Callable[..., Any], names: str) -> list[str]:
    graph = fx.symbolic_trace(function).graph
    wanted = set(names.split())
    regions = find_regions(graph, {node for node in graph.nodes if node.name in wanted})
    assert runs_as_a_whole(graph, regions)
    return [" ".join(node.name for node in region) for region in regions]


def runs_as_a_whole(graph: fx.Graph, regions: list[list[fx.Node]]) -> bool:
    home: dict[fx.Node, Region] = {}
    for number, nodes in enumerate(regions):
        home.update(dict.fromkeys(nodes, Region(f"part_{number}")))
    try:
        Regions(fx.GraphModule(torch.nn.Module(), graph), home).in_program_order(-1)
    except PassError:
        return False
    return True


def test_a_chain_is_one_region() -> None:
    assert regions_of(lambda x: torch.relu(x).neg().exp(), "relu neg exp") == ["relu neg exp"]


def test_an_operation_in_between_divides() -> None:
    assert regions_of(lambda x: torch.relu(x).neg().exp(), "relu exp") == ["relu", "exp"]


def test_a_path_that_leaves_and_comes_back_divides_though_values_go_straight_too() -> None:
    def function(x: Tensor) -> Tensor:
        y = torch.relu(x)
        return y + torch.exp(y)

    assert regions_of(function, "relu add") == ["relu", "add"]


def test_an_operation_beside_a_region_does_not_divide_it() -> None:
    def function(x: Tensor, z: Tensor) -> Tensor:
        return torch.relu(x) + torch.exp(z)

    assert regions_of(function, "relu add") == ["relu add"]


def test_branches_that_read_the_same_value_are_one_region() -> None:
    assert regions_of(lambda x: (torch.relu(x), torch.neg(x)), "relu neg") == ["relu neg"]
    assert regions_of(lambda x, y: (torch.relu(x), torch.neg(y)), "relu neg") == ["relu", "neg"]


def test_a_region_waits_for_one_that_it_feeds() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        early = torch.relu(x)  # nothing but the last addition needs it
        late = torch.neg(torch.exp(torch.sin(y)))
        return late + early

    assert regions_of(function, "relu sin neg add") == ["relu neg add", "sin"]


def test_writes_separate_nodes_that_must_not_cross_them() -> None:
    def function(x: Tensor) -> Tensor:
        before = x + 1
        x.add_(5)
        return before * (x + 2)

    assert regions_of(function, "add add_1 mul") == ["add", "add_1 mul"]
    assert regions_of(lambda x: (x + 1) * (x + 2), "add add_1 mul") == ["add add_1 mul"]


def random_program(seed: int, operations: int) -> tuple[fx.Graph, set[fx.Node]]:
    chance = random.Random(seed)
    graph = fx.Graph()
    values = [graph.placeholder("x"), graph.placeholder("y")]
    for _ in range(operations):
        reach = values[-chance.choice((3, 6, 30)) :]
        if chance.random() < 0.05:
            values.append(graph.call_function(torch.Tensor.add_, (chance.choice(reach), 1)))
        elif chance.random() < 0.5:
            values.append(graph.call_function(torch.neg, (chance.choice(reach),)))
        else:
            values.append(graph.call_function(operator.add, (chance.choice(reach), chance.choice(reach))))
    graph.output(tuple(values[-3:]))
    share = chance.choice((0.3, 0.6, 0.9))
    pure = (node for node in graph.nodes if node.op == "call_function" and node.target is not torch.Tensor.add_)
    return graph, {node for node in pure if chance.random() < share}


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_are_divided_into_regions_that_run(seed: int) -> None:
    graph, supported = random_program(seed, 40)
    regions = find_regions(graph, supported)
    assert [node for node in graph.nodes if node in supported] == sorted(node for nodes in regions for node in nodes)
    assert runs_as_a_whole(graph, regions)


def joinable(graph: fx.Graph, regions: list[list[fx.Node]]) -> int:
    """Return the number of pairs of connected regions that could be one."""
    count = 0
    for region in regions:
        users = {user for node in region for user in node.users}
        for other in regions:
            if other is not region and not users.isdisjoint(other):
                rest = [nodes for nodes in regions if nodes is not region and nodes is not other]
                count += runs_as_a_whole(graph, [*rest, [*region, *other]])
    return count


def test_hardly_any_regions_that_feed_one_another_could_be_one() -> None:
    counts = []
    for seed in range(40):
        graph, supported = random_program(seed, 25)
        counts.append(joinable(graph, find_regions(graph, supported)))
    assert sum(counts) <= 1, counts  # that one would need all that follows to move


def test_dividing_takes_as_many_steps_an_operation_in_long_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are counted as look-ups of inputs, which every sweep makes."""
    from fx.passes.machinery import partition

    steps = []
    for operations in (500, 5000):
        graph, supported = random_program(1, operations)
        looked_up = 0
        find = partition._Groups.find

        def counting(self: Any, node: fx.Node, find: Any = find) -> fx.Node:
            nonlocal looked_up
            looked_up += 1
            return find(self, node)

        with monkeypatch.context() as patch:
            patch.setattr(partition._Groups, "find", counting)
            find_regions(graph, supported)
        steps.append(looked_up / operations)
    assert steps[1] < 1.5 * steps[0]
