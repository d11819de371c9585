"""Localization: the node that a faulty pass gets wrong is named, and later nodes that only inherit the error are not
listed.
"""

import operator

import pytest
import torch
from building import Calling, WithoutLeaves, subject_of
from judged import located, made_in_float64, tolerance
from torch import nn

import fx
from fx.passes import FuseConvBN
from model_zoo import get_model
from pytest_fx.failures.localization import localize
from pytest_fx.failures.stepwise import written_input
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.subject import Subject


def zoo_subject(name):
    model = get_model(name)
    return Subject(name, model.build(), lambda input_set: Arguments(model.example_inputs(batch=2, seed=input_set)))


def test_a_correct_pass_has_no_wrong_node():
    localization = located(zoo_subject("resnet_tiny"), FuseConvBN())
    assert localization.first_wrong is None
    assert len(localization.errors) == 46  # all nodes of the fused program but its output
    assert max(error.made for error in localization.errors) < 1e-12


def test_a_fusion_with_a_wrong_epsilon_is_found_at_its_convolution():
    def fuse(program):
        program.get_submodule("layer3.0.bn2").eps = 1e-3
        return FuseConvBN()(program)

    wrong = located(zoo_subject("resnet_tiny"), fuse).first_wrong
    assert wrong.node == "%layer3_0_conv2 = call_module[layer3.0.conv2](%layer3_0_relu)"
    assert wrong.original == "layer3_0_bn2"  # the last of the two nodes that it replaces
    assert wrong.where.text == "out = self.relu(self.bn2(self.conv2(out)))"
    assert wrong.made > 1e-4 and wrong.inherited < 1e-12 and 0 < wrong.eager < 1e-4


def test_swapped_operands_are_found_at_the_operator():
    class Steps(nn.Module):
        def forward(self, x, y):
            a = torch.relu(x) - torch.sigmoid(y)
            return a.exp() / 2

    def swap(program):
        (node,) = program.graph.find_nodes(op="call_function", target=operator.sub)
        node.args = node.args[::-1]
        program.recompile()

    localization = located(subject_of(Steps(), torch.rand(3), torch.rand(3)), swap)
    assert localization.first_wrong.node == "%sub = call_function[operator.sub](%sigmoid, %relu)"
    behind = [error for error in localization.errors if error.original in ("exp", "truediv")]
    assert [error.wrong for error in behind] == [False, False]
    assert all(error.inherited > 0.01 and error.made == 0 for error in behind)


def test_a_lost_bias_is_found_at_its_layer():
    def lose(program):
        without = nn.Linear(32, 32, bias=False)
        without.weight = program.get_submodule("layers.2").weight
        program.add_submodule("layers.2", without)

    wrong = located(zoo_subject("mlp"), lose).first_wrong
    assert wrong.node == "%layers_2 = call_module[layers.2](%layers_1)"
    assert str(wrong).splitlines()[1].startswith("  where  ")
    assert str(wrong).splitlines()[2].startswith("  value  layers_2[")


def test_a_new_node_in_the_place_of_another_is_blamed_and_not_its_user():
    class Steps(nn.Module):
        def forward(self, x):
            return torch.relu(torch.tanh(x)).sum()

    def square(program):
        (node,) = program.graph.find_nodes(op="call_function", target=torch.tanh)
        with program.graph.inserting_before(node):
            twice = program.graph.call_function(operator.add, (node.args[0], node.args[0]))
            new = program.graph.call_function(torch.tanh, (twice,))
        node.replace_all_uses_with(new)
        program.graph.erase_node(node)
        program.recompile()

    wrong = located(subject_of(Steps(), torch.rand(4)), square).first_wrong
    assert wrong.original == "tanh"
    assert wrong.node.endswith("call_function[torch.tanh](%add)")


def test_values_written_in_place_are_compared_as_they_were():
    class Steps(nn.Module):
        def forward(self, x):
            y = x + 1
            z = y * 3
            y.mul_(2)
            y.add_(z)
            return y.exp(), z

    def nothing(program):
        return program

    def wrong_factor(program):
        (node,) = program.graph.find_nodes(op="call_method", target="mul_")
        node.args = (node.args[0], 2.5)
        program.recompile()

    subject = subject_of(Steps(), torch.rand(4))
    assert located(subject, nothing).first_wrong is None
    assert located(subject, wrong_factor).first_wrong.original == "mul_"


def test_the_programs_are_left_as_they_were():
    subject = zoo_subject("two_heads")
    original, eager = subject.capture(subject.fresh(torch.float64)), subject.capture()
    transformed = made_in_float64(subject, FuseConvBN())
    before = [
        (program.code, {name: tensor.clone() for name, tensor in program.state_dict().items()})
        for program in (original, transformed, eager)
    ]
    localize(original, transformed, subject.arguments(), tolerance, eager)
    for program, (code, state) in zip((original, transformed, eager), before, strict=True):
        assert program.code == code
        assert all(torch.equal(tensor, state[name]) for name, tensor in program.state_dict().items())


def test_another_shape_is_a_mismatch_with_the_shapes():
    class Steps(nn.Module):
        def forward(self, x):
            return torch.flatten(x, 1).cumsum(-1)

    def flatten_all(program):
        (node,) = program.graph.find_nodes(op="call_function", target=torch.flatten)
        node.args = (node.args[0], 0)
        program.recompile()

    wrong = located(subject_of(Steps(), torch.rand(2, 3, 4)), flatten_all).first_wrong
    assert wrong.mismatch == "flatten has the shape [2, 12] in the original and [24] here"
    assert "why    flatten has the shape [2, 12]" in str(wrong)


def test_only_values_that_are_still_needed_are_kept(monkeypatch):
    alive = []

    class Steps(nn.Module):
        def forward(self, x):
            for _ in range(50):
                x = torch.relu(x)
            return x

    original_step = fx.Interpreter.run_node

    def counting(self, node):
        alive.append(len(self.env))
        return original_step(self, node)

    monkeypatch.setattr(fx.Interpreter, "run_node", counting)
    located(subject_of(Steps(), torch.rand(4)), lambda program: None)
    assert max(alive) <= 2


@pytest.mark.parametrize(
    "name", ["two_heads", "shared_convnet", "transformer_encoder_small", "unet_small", "dlrm_small"]
)
def test_programs_that_nothing_changed_have_no_errors(name):
    localization = located(zoo_subject(name), lambda program: program)
    assert localization.errors and not any(error.made or error.inherited for error in localization.errors)


def test_a_baked_batch_size_is_found_where_it_is_used():
    class Flat(nn.Module):
        def forward(self, x):
            return torch.relu(x.view(x.size(0), -1) + 1)

    def bake(program):
        (size,) = program.graph.find_nodes(op="call_method", target="size")
        for user in list(size.users):
            user.args = tuple(2 if arg is size else arg for arg in user.args)
        program.graph.erase_node(size)
        program.recompile()

    assert located(subject_of(Flat(), torch.rand(2, 3, 4)), bake).first_wrong is None
    wrong = located(subject_of(Flat(), torch.rand(6, 3, 4)), bake).first_wrong
    assert wrong.node == "%view = call_method[view](%x, 2, -1)"
    assert wrong.mismatch == "view has the shape [6, 12] in the original and [2, 36] here"


def test_a_node_with_a_right_value_and_its_private_operands_are_not_blamed():
    def move_the_factor(second):
        def pass_(program):
            for name, factor in (("first", 2.0), ("second", second)):
                layer, scaled = program.get_submodule(name), nn.Linear(3, 3)
                scaled.weight = nn.Parameter(layer.weight.detach() * factor)
                scaled.bias = nn.Parameter(layer.bias.detach() * factor)
                program.add_submodule(name, scaled)
            (node,) = program.graph.find_nodes(op="call_function", target=operator.mul)
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)
            program.recompile()

        return pass_

    layers = {"first": nn.Linear(3, 3), "second": nn.Linear(3, 3)}
    scaled = Calling(lambda m, x: m.second(torch.relu(m.first(x)) * 2).tanh(), **layers)
    subject = subject_of(scaled, torch.randn(8, 3))
    right = located(subject, move_the_factor(1.0))
    assert right.first_wrong is None
    assert [error.original for error in right.errors if error.excused and error.made > 1e-3] == ["first", "mul"]
    wrong = located(subject, move_the_factor(1.1))
    assert [error.original for error in wrong.errors if error.wrong] == ["second"]


def test_a_program_written_again_under_other_names_is_compared_by_its_values():
    class Steps(nn.Module):
        def forward(self, x):
            return torch.exp(torch.sigmoid(x) - torch.tanh(x)).sum(1)

    def written_anew(program):
        graph = fx.Graph()
        new = graph.placeholder("x")
        a = graph.create_node("call_method", "sigmoid", (new,), name="a")
        b = graph.create_node("call_method", "tanh", (new,), name="b")
        c = graph.create_node("call_function", torch.sub, (a, b), name="c")
        d = graph.create_node("call_function", torch.expm1, (c,), name="d")
        graph.output(graph.create_node("call_function", torch.sum, (d, 1), name="e"))
        program.graph = graph
        program.recompile()

    wrong = located(subject_of(Steps(), torch.rand(3, 4)), written_anew).first_wrong
    assert wrong.node == "%d = call_function[torch.expm1](%c)"


def test_a_number_that_opened_layers_ask_for_is_not_blamed_for_what_their_operation_does():
    def opened(program):
        program.graph = WithoutLeaves().trace(program)
        (norm,) = (node for node in program.graph.nodes if node.target is nn.functional.batch_norm)
        norm.update_kwarg("eps", 0.5)
        program.recompile()

    layers = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1)).eval()
    wrong = located(subject_of(layers, torch.rand(3, 2, 4, 4)), opened).first_wrong
    assert wrong.node.startswith("%batch_norm = call_function[torch.nn.functional.batch_norm]"), wrong


def test_the_written_argument_is_known_by_position_or_keyword():
    program = fx.symbolic_trace(lambda x, y: (torch.add(x, 1, out=y), x.mul_(2), torch.add(x, y)))
    x, y, *calls, _ = program.graph.nodes
    assert [written_input(node) for node in calls] == [y, x, None]
