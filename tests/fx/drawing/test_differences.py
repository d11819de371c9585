"""fx.drawing.pass_history and fx.drawing.difference: the fate of each node in each pass."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from building import Calling
from drawn_models import Blocks, captured
from torch import nn

import fx
from fx.drawing.difference import longest_increasing
from fx.drawing.pass_history import record_passes
from fx.errors import PassError
from fx.operators.asynchronous import register_async
from fx.passes import Canonicalize, RemoveChecks, get_pass, list_passes


@fx.wrap
def ask(server, x):
    return x + 1


register_async(ask, channel=lambda args, kwargs: args[0], independent=True)


def waiting(x):
    y = torch.cos(torch.sin(x))
    return y + ask("server", x)


class Everything(nn.Module):
    """Something for many passes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(4, 3), nn.Linear(4, 5), nn.Dropout()
        self.conv, self.bn = nn.Conv2d(1, 1, 1, bias=False), nn.BatchNorm2d(1)

    def forward(self, x):
        torch._assert(True, "checked")
        p, q = self.a(x), self.b(x)
        dead = torch.relu(p)  # noqa: F841
        image = self.bn(self.conv(torch.reshape(x, (1, 1, -1, 4))))
        return self.drop(p) * 3, torch.exp(q) + torch.exp(q), image


def everything():
    return fx.symbolic_trace(Everything().eval())


def checked():
    def call(self, x):
        if x.dim() != 2:
            raise ValueError("two dimensions")
        return self.last(F.relu(self.first(x)))

    return fx.symbolic_trace(Calling(call, first=nn.Linear(4, 8), last=nn.Linear(8, 2)).eval())


def functional():
    return RemoveChecks()(Canonicalize()(checked()))


def doubled():
    graph = fx.Graph()
    x = graph.placeholder("x")
    two = graph.call_function(torch.mul, (graph.call_function(torch.ones, (3,)), 2))
    graph.output(graph.call_function(torch.add, (x, two)))
    return fx.GraphModule(nn.Module(), graph)


def moved_relu(program):
    """A pass that only moves one operation forward."""
    nodes = {node.name: node for node in program.graph.nodes}
    nodes["b"].append(nodes["exp"])
    program.recompile()


def rebuilt(program):
    """A pass that copies the program, by a transformer."""
    return fx.Transformer(program).transform()


def renamed(program):
    next(iter(program.graph.find_nodes(op="call_function", target=torch.relu))).name = "rectified"
    program.recompile()


def written(program):
    """A pass that puts another weight into a module that stays."""
    program.a.weight = nn.Parameter(program.a.weight.detach() + 1)
    program.recompile()


SETS = {
    "fuse-conv-bn": (everything, {"removed": "bn", "changed": "conv", "many_to_one": {"conv": ("conv", "bn")}}),
    "merge-parallel-layers": (
        everything,
        {
            "removed": "a b",
            "added": "a_merged split getitem getitem_1",
            "one_to_many": {"a": ("a_merged", "split", "getitem"), "b": ("a_merged", "split", "getitem_1")},
            "many_to_one": {"a_merged": ("a", "b"), "split": ("a", "b")},
        },
    ),
    "remove-identities": (everything, {"removed": "drop", "many_to_one": {"a": ("a", "drop")}}),
    "eliminate-common-subexpressions": (everything, {"removed": "exp_1", "many_to_one": {"exp": ("exp", "exp_1")}}),
    "remove-dead-code": (everything, {"removed": "relu"}),
    "remove-checks": (checked, {"removed": "dim ne eq _assert"}),
    "canonicalize": (
        checked,
        {
            "added": "first_weight first_bias last_weight last_bias",
            "changed": "dim _assert first relu last",
            "one_to_many": {
                "first": ("first_weight", "first_bias", "first"),
                "last": ("last_weight", "last_bias", "last"),
            },
        },
    ),
    "fold-into-modules": (
        functional,
        {"removed": "first_weight first_bias last_weight last_bias", "changed": "first last"},
    ),
    "fold-constants": (
        doubled,
        {"removed": "ones mul", "added": "_folded_0"},
    ),
    "overlap": (
        lambda: fx.symbolic_trace(waiting),
        {
            "removed": "ask",
            "added": "start_on_thread wait_for",
            "one_to_many": {"ask": ("start_on_thread", "wait_for")},
        },
    ),
    "split{at=last}": (
        checked,
        {
            "removed": "dim ne eq _assert first relu last",
            "added": "submod_0 submod_1",
            "many_to_one": {"submod_0": ("dim", "ne", "eq", "_assert", "first", "relu")},
        },
    ),
    "quantize": (
        checked,
        {
            "removed": "dim relu",
            "added": "quantize dim",
            "changed": "_assert first last",
            "one_to_many": {"x": ("x", "quantize")},
            "many_to_one": {"first": ("first", "relu")},
        },
    ),
    "lower": (everything, None),
}


def sets_of(difference):
    names = {what: " ".join(getattr(difference, what)) for what in ("removed", "added", "changed", "moved")}
    both = {"one_to_many": dict(difference.one_to_many), "many_to_one": dict(difference.many_to_one)}
    return {what: nodes for what, nodes in {**names, **both}.items() if nodes}


@pytest.mark.parametrize("name", [name for name, (_, expected) in SETS.items() if expected is not None])
def test_changes_of_a_pass_are_reported_exactly(name):
    make, expected = SETS[name]
    inputs = [torch.ones(2, 4)] if name == "quantize" else None
    assert sets_of(record_passes(make(), name, inputs).difference()) == expected


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN")
def test_parts_that_are_lowered_become_one_node_each():
    program = fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()).eval())
    difference = record_passes(program, "lower", [torch.ones(1, 3, 128, 128)]).difference()
    assert sets_of(difference) == {
        "removed": "_0 _1 _2 _3",
        "added": "onednn_0",
        "many_to_one": {"onednn_0": ("_0", "_1", "_2", "_3")},
    }


def test_the_table_has_every_pass():
    assert {name.partition("{")[0] for name in SETS} == set(list_passes()) - {"leave-as-it-is"}  # a doctest's


@pytest.mark.parametrize("model", ["resnet_tiny", "bert_small", "unet_small", "gpt2_small"])
@pytest.mark.parametrize("name", [name for name in list_passes() if name not in ("quantize", "split", "lower")])
def test_removed_and_added_nodes_are_those_that_were_erased_and_made(name, model):
    program = captured(model)
    before = {node: node.name for node in program.graph.nodes}
    difference = record_passes(program, name).difference()
    get_pass(name)(program)
    after = set(program.graph.nodes)
    assert set(difference.removed) == {name for node, name in before.items() if node not in after}
    assert set(difference.added) == {node.name for node in after if node not in before}


def test_a_moved_node_is_the_only_one_that_moved():
    difference = record_passes(everything(), [moved_relu]).difference()
    assert sets_of(difference) == {"moved": "exp"}


def test_a_program_that_is_copied_node_by_node_is_the_same():
    assert sets_of(record_passes(everything(), [rebuilt]).difference()) == {}


def test_a_name_and_a_weight_are_changes():
    assert sets_of(record_passes(everything(), [renamed]).difference()) == {"changed": "relu"}
    assert sets_of(record_passes(everything(), [written]).difference()) == {"changed": "a"}


def test_the_program_stays_as_it_is():
    program = everything()
    code, state = program.code, copy.deepcopy(program.state_dict())
    history = record_passes(program, "fuse-conv-bn,remove-dead-code,canonicalize", [torch.ones(2, 4)])
    assert program.code == code and all(torch.equal(value, state[name]) for name, value in program.state_dict().items())
    assert all(node.origins == () and not node.meta.get("tensor_meta") for node in program.graph.nodes)
    assert not [o for node in history.graph_module.graph.nodes for o in node.origins if "\0" in o]


def test_states_follow_nodes_through_a_pipeline_and_skip_passes_that_did_nothing():
    history = record_passes(everything(), "fuse-conv-bn,fuse-conv-bn,merge-parallel-layers,canonicalize")
    assert [report.changed for report in history.reports] == [True, False, True, True]
    assert [difference.name for difference in history.differences] == [
        "fuse-conv-bn",
        "merge-parallel-layers",
        "canonicalize",
    ]
    whole = history.difference()
    assert whole.name == "fuse-conv-bn,merge-parallel-layers,canonicalize"
    assert set(whole.removed) == {"a", "b", "bn"}
    assert {other for name, other in whole.counterparts if name == "bn"} == {"conv_weight", "conv_bias", "conv"}
    assert whole.edits[:1] == history.differences[0].edits


def test_new_nodes_are_in_the_module_of_the_nodes_they_derive_from():
    program = captured("bert_small")
    after = record_passes(program, "canonicalize").states[1].program
    around = {node.name: node.modules for node in after.nodes}
    assert around["layers_0_out_weight"] == around["layers_0_out"] == ("layers.0",)

    def doubled(program):  # its new node has no record of a module
        (relu,) = program.graph.find_nodes(op="call_function", target=torch.relu)
        with program.graph.inserting_after(relu):
            twice = program.graph.call_function(torch.mul, (relu, 2))
        relu.replace_all_uses_with(twice, delete_user_cb=lambda user: user is not twice)
        program.recompile()

    after = record_passes(fx.symbolic_trace(Blocks(1)), [doubled]).states[1].program
    assert {node.name: node.modules for node in after.nodes}["mul"] == ("blocks.0",)


def test_untouched_nodes_keep_their_place_in_one_picture():
    history = record_passes(everything(), "fuse-conv-bn")
    picture, _ = history.picture([0, 1])
    there = {node.at(0).name: node.states for node in picture.nodes}
    assert there["bn"] == 0b01 and there["conv"] == there["exp"] == 0b11
    marks = {node.at(0).name: mark for node, mark in zip(picture.nodes, picture.marks, strict=True) if any(mark)}
    assert marks == {"conv": ("changed",), "bn": ("removed",)}


def test_a_difference_is_written_as_text():
    difference = record_passes(everything(), "fuse-conv-bn").difference()
    lines = str(difference).splitlines()
    assert lines[0] == "fuse-conv-bn: 13 -> 12 nodes, 1 removed, 1 changed"
    assert lines[1] == "  … 5 as they were"
    assert lines[2].startswith("~ %conv = call_module[conv](%reshape) Conv2d(1, 1, ")
    assert lines[3].startswith("    was %conv = call_module[conv](%reshape) Conv2d(1, 1, ")
    assert lines[4].startswith("- %bn = call_module[bn](%conv) BatchNorm2d(1, ")
    assert lines[4].split()[-1].startswith("test_differences.py:")
    assert lines[5:] == ["  … 6 as they were", "many to one: %conv, %bn -> %conv"]
    assert max(map(len, lines)) <= 80


def test_no_difference_is_reported():
    difference = record_passes(everything(), "overlap").difference()
    assert str(difference) == "overlap: 13 -> 13 nodes, nothing is different\n  … 13 as they were"
    assert sets_of(difference) == {}


def test_a_pass_that_fails_fails_as_in_a_pipeline():
    def broken(program):
        raise IndexError("out of range")

    with pytest.raises(PassError, match="pass 'broken' \\(1 of 1\\) raised IndexError: out of range"):
        record_passes(everything(), [broken])


def test_the_longest_increasing_places_are_found():
    assert longest_increasing([]) == set()
    assert longest_increasing([4, 0, 1, 2, 3]) == {1, 2, 3, 4}
    assert longest_increasing([0, 3, 1, 2, 4]) == {0, 2, 3, 4}
