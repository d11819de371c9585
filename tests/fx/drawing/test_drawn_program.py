"""fx.drawing.drawn_program: the contents of a program for a drawing."""

from __future__ import annotations

import torch
from building import Calling
from drawn_models import Block, Blocks, captured, each_kind

import fx
from fx.drawing.drawn_program import DrawnProgram, shortened
from fx.passes.shape_prop import ShapeProp


def nodes_of(program, inputs=None):
    return {node.name: node for node in DrawnProgram.of(program, inputs).nodes}


def test_a_node_is_in_the_modules_around_it_and_not_in_the_one_that_it_calls():
    drawn = DrawnProgram.of(captured("resnet_tiny"))
    around = {node.name: node.modules for node in drawn.nodes}
    assert around["conv1"] == () and around["layer1_0_conv1"] == ("layer1", "layer1.0")
    assert around["layer1_0_downsample_0"] == ("layer1", "layer1.0", "layer1.0.downsample")
    assert around["add"] == ("layer1", "layer1.0")
    assert drawn.classes["layer1.0"] == "Bottleneck"


def test_a_node_without_a_module_is_in_the_nearest_module_of_its_target():
    program = fx.symbolic_trace(Blocks(2))
    add = next(node for node in program.graph.nodes if node.name == "add_1")
    with program.graph.inserting_before(add):
        fetched = program.graph.get_attr("blocks.1.wide.weight")
        called = program.graph.call_module("head.0", (add.args[0],))
    drawn = {node.name: node.modules for node in DrawnProgram.of(program).nodes}
    assert (drawn[fetched.name], drawn[called.name]) == (("blocks.1",), ("head",))


def test_each_kind_of_node_has_a_title():
    nodes = nodes_of(fx.symbolic_trace(each_kind()))
    assert {name: node.title for name, node in nodes.items()} == {
        "x": "x", "linear": "Linear", "weight": "weight", "mul": "mul", "relu": "relu", "neg": ".neg()",
        "output": "output",
    }  # fmt: skip
    assert nodes["linear"].settings == "in_features=2, out_features=2, bias=True"
    assert nodes["mul"].arguments == "%linear, %weight" and nodes["mul"].inputs == ("linear", "weight")
    assert nodes["relu"].code == "return torch.relu(module.linear(x) * module.weight).neg()"
    assert nodes["relu"].place == f"drawn_models.py:{nodes['relu'].line}"


def test_sizes_come_from_inputs_or_from_notes():
    program = fx.symbolic_trace(lambda x: torch.split(x, 2))
    assert nodes_of(program)["split"].shape == ""
    assert nodes_of(program, [torch.ones(4, 3)])["split"].shape == "2x3, 2x3"
    ShapeProp(program).propagate(torch.ones(6, 3, dtype=torch.int64))
    noted = nodes_of(program)
    assert (noted["split"].shape, noted["split"].dtype) == ("2x3, 2x3, 2x3", "int64")


def test_long_texts_are_cut_in_the_middle_and_stay_in_one_line():
    assert shortened("a\n b\t c") == "a b c"
    text = shortened("x" * 1000)
    assert len(text) == 299 and " … " in text


def test_a_module_that_is_not_there_is_drawn_by_its_path():
    program = fx.symbolic_trace(Blocks(1))
    program.delete_submodule("head.1")
    assert nodes_of(program)["head_1"].title == "head.1"


def test_a_module_that_is_called_again_is_another_cluster_of_the_same_path():
    twice = Calling(lambda self, x: self.block(torch.neg(self.block(x))), block=Block())
    drawn = DrawnProgram.of(fx.symbolic_trace(twice))
    around = {node.name: node.modules for node in drawn.nodes}
    assert around["relu"] == ("block",) and around["relu_1"] == ("block@1",)
    assert drawn.classes == {"block": "Block", "block@1": "Block", **drawn.classes}
