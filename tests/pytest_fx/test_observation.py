"""Observation: what a program writes to its inputs, and in whose memory its answers lie, and how."""

import pytest
import torch
from torch import nn

from fx.passes import approximate, close, exact
from pytest_fx.comparison.evaluation import Arguments
from pytest_fx.comparison.observation import memory_notes, observe, stride_class
from pytest_fx.comparison.subject import Subject
from pytest_fx.comparison.verification import require, verify
from pytest_fx.errors import ContractViolation


def seen(program, *args, **kwargs):
    return observe(program, Arguments(args, kwargs), torch.float32)


def test_inputs_that_are_written_to_are_kept_as_the_call_left_them():
    def program(x, pair, *, mask):
        pair[1].mul_(3)
        mask.fill_(True)
        return x + 1

    x, mask = torch.ones(2), torch.zeros(2, dtype=torch.bool)
    found = seen(program, x, (torch.ones(1), torch.ones(1)), mask=mask)
    assert {place: tensor.tolist() for place, tensor in found.written.items()} == {
        "[1][1]": [3.0],
        "['mask']": [True, True],
    }
    assert mask.tolist() == [False, False]


def test_outputs_that_share_memory_with_inputs_and_with_each_other_are_known():
    def program(x, y):
        z = y * 2
        return {"view": x.view(-1), "first": z[0], "second": z, "own": y + 1, "empty": x[:0]}

    found = seen(program, torch.ones(2, 2), torch.ones(2))
    assert found.shared == {
        ("output['view']", "input[0]"),
        ("output['second']", "output['first']"),
        ("output['empty']", "input[0]"),
        ("output['empty']", "output['view']"),
    }


@pytest.mark.parametrize(
    "tensor, name",
    [
        (torch.ones(2, 3), "contiguous"),
        (torch.ones(2, 3).t(), "not contiguous"),
        (torch.ones(1, 3).t(), "contiguous"),
        (torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last), "channels last"),
        (torch.ones(2, 3, 4, 4, 4).contiguous(memory_format=torch.channels_last_3d), "channels last"),
        (torch.ones(2, 1, 4, 4).contiguous(memory_format=torch.channels_last), "contiguous"),
        (torch.ones(0, 3), "contiguous"),
        (torch.ones(2, 3)[:, ::2], "not contiguous"),
        (torch.eye(2).to_sparse(), "contiguous"),
    ],
)
def test_strides_fall_into_three_classes(tensor, name):
    assert stride_class(tensor) == name


def test_layouts_and_sharing_that_differ_are_put_into_sentences():
    one = seen(lambda x: (x.t(), x, x * 2), torch.ones(2, 3))
    other = seen(lambda x: (x.t().contiguous(), x.clone(), x * 2), torch.ones(2, 3))
    assert memory_notes(one, one) == []
    assert memory_notes(one, other) == [
        "output[0] is not contiguous in eager and contiguous in the program",
        "output[0] shares memory in eager only: with input[0]",
        "output[1] shares memory in eager only: with input[0]",
        "output[1] shares memory in eager only: with output[0]",
    ]
    assert "output[0] shares memory in the program only: with input[0]" in memory_notes(other, one)


class Writing(nn.Module):
    def forward(self, x, *, state):
        state.add_(x)
        return x * 2


def writing():
    return Subject("writing", Writing(), lambda draw: Arguments((torch.arange(4.0) + draw,), {"state": torch.ones(4)}))


def lose_the_write(program):
    for node in program.graph.find_nodes(op="call_method", target="add_"):
        program.graph.erase_node(node)
    program.recompile()


def write_more(program):
    for node in program.graph.find_nodes(op="call_method", target="add_"):
        with program.graph.inserting_after(node):
            program.graph.call_method("mul_", (node, 1.5))
    program.recompile()


@pytest.mark.parametrize("pass_", [lose_the_write, write_more])
@pytest.mark.parametrize("contract", [exact, close, approximate(60)])
def test_what_is_written_to_inputs_is_held_to_the_contract_as_well(pass_, contract):
    comparison = verify(writing(), pass_, contract, "own").comparison
    with pytest.raises(ContractViolation) as error:
        require(comparison, contract)
    message = str(error.value)
    assert message.startswith("own changes what writing writes to its inputs")
    assert "\n  where  input['state']" in message


def test_a_write_that_is_kept_keeps_the_contract():
    for contract in (exact, close, approximate(60)):
        require(verify(writing(), lambda program: None, contract, "own").comparison, contract)


def test_a_new_write_to_an_input_is_a_violation_that_shows_both_values():
    def write(program):
        (x,) = program.graph.find_nodes(op="placeholder")
        with program.graph.inserting_after(next(iter(x.users))):
            program.graph.call_method("zero_", (x,))
        program.recompile()

    class Doubling(nn.Module):
        def forward(self, x):
            return x * 2

    subject = Subject("doubling", Doubling(), lambda draw: Arguments((torch.ones(300),)))
    with pytest.raises(ContractViolation, match="where  input\\[0\\]\\[0\\], the worst of 300 wrong in 300") as error:
        require(verify(subject, write, exact, "own").comparison, exact)
    assert "value  eager 1.0, transformed 0.0\n         eager in float64 1.0" in str(error.value)


LAYOUT = """
import torch

def transpose(program):
    output = program.graph.output_node()
    with program.graph.inserting_before(output):
        once = program.graph.call_method("t", (output.args[0],))
        dense = program.graph.call_method("contiguous", (once,))
        output.args = (program.graph.call_method("t", (dense,)),)
    program.recompile()
"""


def test_another_layout_is_a_warning_that_can_be_made_a_failure(pytester):
    pytester.makepyfile(layouts=LAYOUT)
    options = ("--fx-model", "mlp", "--fx-batch", "3", "--fx-pass", "layouts:transpose", "-k", "test_pass_keeps_its")
    result = pytester.runpytest(*options, "-W", "default")
    assert (result.parseoutcomes()["passed"], result.ret) == (1, 0)
    result.stdout.fnmatch_lines(
        "*MemoryLayoutWarning: transpose on mlp: output is contiguous in eager and not contiguous in the program"
    )
    strict = pytester.runpytest(*options, "-W", "error::pytest_fx.errors.MemoryLayoutWarning")
    assert strict.parseoutcomes()["failed"] == 1
