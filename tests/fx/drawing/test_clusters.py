"""fx.drawing.clusters: nodes in the modules that they are of, and blocks that repeat."""

from __future__ import annotations

import pytest
import torch
from drawn_models import Blocks, captured

import fx
from fx.drawing.appearance import title_of
from fx.drawing.clusters import Cluster, all_clusters, make_clusters
from fx.drawing.drawn_program import DrawnProgram
from fx.drawing.picture import Picture
from fx.drawing.picture import _folded as folded
from fx.passes import Canonicalize


def titles(picture: Picture) -> list[str]:
    return [f"{cluster.path}: {cluster.title}" for cluster in picture.clusters[1:]]


def test_blocks_that_repeat_are_folded_and_counted() -> None:
    picture = Picture.of(DrawnProgram.of(fx.symbolic_trace(Blocks(12))))
    assert titles(picture) == ["blocks.0 … blocks.11: Block × 12", "head: Sequential"]
    names = [picture.nodes[node].at(0).name for node in picture.visible]
    assert names == "x blocks_0_wide relu blocks_0_narrow add head_0 head_1 output".split()


def test_edges_of_folded_blocks_lead_to_the_first() -> None:
    picture = Picture.of(DrawnProgram.of(fx.symbolic_trace(Blocks(3))))
    name = [node.at(0).name for node in picture.nodes]
    assert [(name[tail], name[head]) for tail, head, _ in picture.edges] == [
        ("x", "blocks_0_wide"),
        ("blocks_0_wide", "relu"),
        ("relu", "blocks_0_narrow"),
        ("x", "add"),
        ("blocks_0_narrow", "add"),
        ("add", "head_0"),
        ("head_0", "head_1"),
        ("head_1", "output"),
    ]


def test_blocks_that_differ_are_not_folded_together() -> None:
    assert titles(Picture.of(DrawnProgram.of(captured("resnet50"))))[:8] == [
        "layer1: Sequential",
        "layer2: Sequential",
        "layer3: Sequential",
        "layer4: Sequential",
        "layer1.0: Bottleneck",
        "layer1.1 … layer1.2: Bottleneck × 2",
        "layer2.0: Bottleneck",
        "layer2.1 … layer2.3: Bottleneck × 3",
    ]


def test_unfolded_blocks_are_all_drawn() -> None:
    program = DrawnProgram.of(fx.symbolic_trace(Blocks(3)))
    picture = Picture.of(program, fold=False)
    assert len(picture.visible) == len(program.nodes)
    assert titles(picture)[0] == "blocks.0 … blocks.2: Block × 3"


def test_repeats_inside_repeats_are_folded() -> None:
    outer = [("o0",)] * 3 + [("o1",)] * 3
    inner = [(*path, f"{path[0]}.i{number % 3}") for number, path in enumerate(outer)]
    paths = [(), *(path for path in inner for _ in range(2))]
    inputs = [[node - 1] if node else [] for node in range(13)]
    classes = {key: "Outer" if len(key) == 2 else "Inner" for path in inner for key in path}
    root = make_clusters(paths, classes, [node % 2 for node in range(13)], inputs)
    titles = [cluster.title for cluster in all_clusters(root)]
    assert (titles.count("Outer × 2"), titles.count("Inner × 3"), titles.count("Inner")) == (1, 2, 6)
    edges = [(tail, head, 1) for head, read in enumerate(inputs) for tail in read]
    assert folded(root, edges, 13) == [(0, 1, 1), (1, 2, 1)]
    assert root.nodes() == [0, 1, 2]


def test_blocks_that_read_in_another_way_are_not_folded_together() -> None:
    paths = [(), *[("b0",)] * 3, *[("b1",)] * 3]
    chained = make_clusters(paths, {"b0": "B", "b1": "B"}, "xpqrpqr", [[], [0], [1], [2], [3], [4], [5]])
    forked = make_clusters(paths, {"b0": "B", "b1": "B"}, "xpqrpqr", [[], [0], [1], [2], [3], [4], [4]])
    assert [cluster.title for cluster in all_clusters(chained)[1:]] == ["B × 2", "B", "B"]
    assert [cluster.title for cluster in all_clusters(forked)[1:]] == ["B", "B"]


def test_edges_of_folded_blocks_are_there_in_the_states_of_all() -> None:
    paths = [(), *[("b0",)] * 2, *[("b1",)] * 2]
    root = make_clusters(paths, {"b0": "B", "b1": "B"}, "xpqpq", [[], [0], [1], [2], [3]])
    assert folded(root, [(0, 1, 1), (1, 2, 1), (2, 3, 3), (3, 4, 2)], 5) == [(0, 1, 1), (1, 2, 3)]


def test_a_call_of_a_module_is_a_stretch_of_nodes() -> None:
    root = make_clusters([("a",), ("a",), (), ("a",), ("a",)], {"a": "A"}, "pqrst", [[], [0], [1], [2], [3]])
    assert [member.nodes() if isinstance(member, Cluster) else member for member in root.members] == [[0, 1], 2, [3, 4]]


def test_large_clusters_are_cut_into_parts() -> None:
    root = make_clusters([()] * 1000, {}, list(range(1000)), [[]] * 1000, largest=10)
    assert all(len(cluster.members) <= 10 for cluster in all_clusters(root))
    assert root.nodes() == list(range(1000))
    assert root.members[1].title == "100 nodes" and root.members[1].path == "nodes 101 to 200"


def test_weights_that_are_fetched_first_are_beside_their_readers() -> None:
    program = Canonicalize()(fx.symbolic_trace(Blocks(4).eval()))
    (x,) = program.graph.find_nodes(op="placeholder")
    for node in program.graph.find_nodes(op="get_attr"):
        x.append(node)
    headings = titles(Picture.of(DrawnProgram.of(program)))
    assert headings[:3] == ["blocks.0 … blocks.3: Block × 4", "head: Sequential", "blocks.0.wide: Linear"]


def test_titles_have_the_ends_of_long_paths() -> None:
    assert title_of(Cluster("a.b", "Block", number=1)) == "a.b  Block"
    assert title_of(Cluster("a" * 50, "Block", number=1)) == f"…{'a' * 39}  Block"


@pytest.mark.thorough
def test_exported_programs_have_the_same_modules() -> None:
    program = fx.from_export(torch.export.export(Blocks(4).eval(), (torch.ones(1, 4),)))
    headings = titles(Picture.of(DrawnProgram.of(program)))
    assert headings[:2] == ["blocks.0 … blocks.3: Block × 4", "head: Sequential"]
    assert "blocks.0.wide: Linear" in headings
