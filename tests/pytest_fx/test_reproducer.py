"""pytest_fx.reproducer: what fails on a model is cut out, made small, and fails again from its own file."""

import re
from pathlib import Path

import torch
from torch import nn

from fx.passes import close
from pytest_fx.errors import ContractViolation
from pytest_fx.evaluation import Arguments
from pytest_fx.reproducer import find_part, write_test
from pytest_fx.subject import Subject
from pytest_fx.verification import require, verify

FAULTY = '''
"""A fusion with a fault, which an ini setting of this module takes away."""
import torch
from fx.passes import FuseConvBN

FAULT = 1e-2

def fuse(program):
    norm = program.get_submodule("layer3.0.bn2") if hasattr(program, "layer3") else None
    if norm is not None:
        norm.eps += FAULT
    fused = FuseConvBN()(program)
    if norm is not None:
        norm.eps -= FAULT
    return fused
'''


def violation_of(subject, pass_):
    try:
        require(verify(subject, pass_, close, "own").comparison, close)
    except ContractViolation as violation:
        return violation
    raise AssertionError("the pass is right")


def part_of(module, inputs, pass_, *names):
    subject = Subject("model", module, lambda draw: Arguments(inputs))
    return find_part(subject, pass_, close, frozenset(names), violation_of(subject, pass_), "own")


def called(part):
    return [node.name for node in part.program.graph.nodes if node.op.startswith("call")]


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        y = torch.sigmoid(x) * 2
        return torch.exp(self.second(y)).sum(1)


def double_the_sigmoid(program):
    for node in program.graph.find_nodes(op="call_function", target=torch.sigmoid):
        with program.graph.inserting_after(node):
            doubled = program.graph.call_function(torch.mul, (node, 1.5))
        node.replace_all_uses_with(doubled, delete_user_cb=lambda user, new=doubled: user is not new)
    program.recompile()


def test_the_part_is_the_operation_that_goes_wrong_with_one_sample():
    part = part_of(Steps(), (torch.randn(4, 3),), double_the_sigmoid, "sigmoid")
    assert called(part) == ["sigmoid"]
    (value,) = part.inputs
    assert value.shape == (1, 3)


def test_a_fault_that_needs_its_surroundings_gets_them():
    def wrong_behind_a_sigmoid(program):
        """Goes wrong only where the layer is fed by the product of a sigmoid."""
        for node in program.graph.find_nodes(op="call_module", target="second"):
            product = node.args[0]
            if product.op == "call_function" and product.args[0].op == "call_function":
                node.args = (product.args[0],)
        program.recompile()

    part = part_of(Steps(), (torch.randn(4, 3),), wrong_behind_a_sigmoid, "second")
    assert called(part) == ["sigmoid", "mul", "second"]
    assert [node.name for node in part.program.graph.nodes if node.op == "placeholder"] == ["tanh"]


def test_operations_that_do_not_matter_are_left_out():
    class Long(nn.Module):
        def forward(self, x):
            a = torch.sigmoid(x)
            for _ in range(10):
                x = torch.tanh(x + 1)
            return x * a

    def needs_a_sigmoid(program):
        if program.graph.find_nodes(op="call_function", target=torch.sigmoid):
            program.graph.output_node().args[0].args = (*program.graph.output_node().args[0].args[:1], 3.0)
        program.recompile()

    part = part_of(Long(), (torch.rand(2, 3),), needs_a_sigmoid, "mul")
    assert called(part) == ["sigmoid", "mul"]


def test_no_part_is_found_where_none_fails_like_the_whole():
    class Inner(nn.Module):
        def forward(self, x, y):
            return torch.sigmoid(x) + y

    def raises_on_parts(program):
        if len(program.graph.nodes) < 5:
            raise ValueError("too small")
        double_the_sigmoid(program)

    assert part_of(Inner(), (torch.rand(2), torch.rand(2)), raises_on_parts, "sigmoid") is None


def test_the_file_fails_alone_until_the_pass_is_right(pytester):
    pytester.makepyfile(faulty=FAULTY)
    result = pytester.runpytest(
        "--fx-model", "resnet_tiny", "--fx-pass", "faulty:fuse", "-k", "test_pass_keeps", "-p", "no:cacheprovider"
    )
    assert result.ret == 1
    line = next(line for line in result.outlines if "a test of" in line)
    path = Path(re.search(r"a test of \d nodes that shows it alone: (.*)$", line)[1])
    assert path.parent.parent == pytester.path / ".pytest_fx"
    assert sorted(file.name for file in path.parent.iterdir()) == sorted(
        ["inputs.safetensors", "weights.safetensors", path.name]
    )
    assert "fuse changes what resnet_tiny computes, cut out of resnet_tiny at" in path.read_text()
    alone = pytester.runpytest(path)
    alone.assert_outcomes(failed=1)
    alone.stdout.fnmatch_lines("E*fuse changes what part_of_model computes")
    (pytester.path / "faulty.py").write_text(FAULTY.replace("1e-2", "0.0"))
    pytester.runpytest_subprocess(path).assert_outcomes(passed=1)


def test_a_pass_without_an_importable_name_leaves_no_file(pytester):
    path = pytester.makepyfile(
        """
        import pytest, torch

        def test_local(fx_equal):
            def negate(program):
                for node in program.graph.find_nodes(op="call_module"):
                    with program.graph.inserting_after(node):
                        new = program.graph.call_function(torch.neg, (node,))
                    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
                program.recompile()
            fx_equal(negate)
        """
    )
    result = pytester.runpytest(path, "--fx-model", "mlp")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E *the first node that goes wrong:", "E *no test file was made of it: the pass cannot be imported by name"]
    )
    assert not (pytester.path / ".pytest_fx").exists()


def test_numbers_among_the_inputs_are_written_into_the_file(tmp_path):
    class Sized(nn.Module):
        def forward(self, x):
            return torch.sigmoid(x.view(x.size(0), -1))

    subject = Subject("sized", Sized(), lambda draw: Arguments((torch.rand(2, 3, 4),)))

    def wrong(program):
        for node in program.graph.find_nodes(op="call_function", target=torch.sigmoid):
            node.target = torch.tanh
        for node in program.graph.find_nodes(op="call_method", target="view"):
            node.meta["kept"] = True
        program.recompile()

    part = find_part(subject, wrong, close, frozenset({"view", "sigmoid"}), violation_of(subject, wrong), "own")
    path = write_test(tmp_path, part, "mine:wrong", close, "what", "sized", "model.py:3")
    text = path.read_text()
    assert "what, cut out of sized at model.py:3." in text
    assert "contract='close(rtol=1e-05, atol=1e-08)'" in text
    compile(text, str(path), "exec")
