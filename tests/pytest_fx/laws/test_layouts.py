"""Changes of memory layout by a pass: other rounding by kernels of that layout is no fault, other values are."""

import copy

import pytest
import torch
from building import Calling
from torch import nn

from pytest_fx.errors import LawViolation
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.layouts import LayoutIndependent
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import affordable, broken_laws, choose_laws
from pytest_fx.laws.judging import wherever_values_lie


def subject(forward, inputs, mode="eval", dtype=torch.float32, **layers):
    torch.manual_seed(0)
    for layer in layers.values():
        layer.reset_parameters()
    arguments = Arguments((inputs,))
    return Subject("model", Calling(forward, **layers), arguments.for_input_set, mode=mode, working_dtype=dtype)


def in_channels_last(program):
    """Convert the input and the weights, and convert the output back."""
    graph, output = program.graph, program.graph.output_node()
    (x,) = graph.find_nodes(op="placeholder")
    with graph.inserting_before(x.next):
        converted = graph.call_method("contiguous", (x,), {"memory_format": torch.channels_last})
    for user in [user for user in x.users if user is not converted]:
        user.replace_input_with(x, converted)
    with graph.inserting_before(output):
        output.args = (graph.call_method("contiguous", (output.args[0],)),)
    for node in graph.find_nodes(op="call_module"):
        layer = copy.deepcopy(program.get_submodule(node.target))
        program.add_submodule(node.target, layer.to(memory_format=torch.channels_last))
    program.recompile()


def judged(model, pass_):
    pass_run = PassRun(model, pass_)
    violations = broken_laws(affordable(choose_laws(), pass_run), pass_run)
    return [violation.law for violation in violations], pass_run.waivers


CONSTANT = {
    "one value": torch.full((2, 3, 8, 8), 0.3),
    "a value for each channel": torch.tensor([0.1, 0.7, -0.4])[:, None, None].expand(2, 3, 8, 8).contiguous(),
}


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("images", CONSTANT.values(), ids=CONSTANT)
def test_the_norm_of_constant_images_may_differ_as_kernels_of_another_layout_do(images, mode):
    layers = {"norm": nn.BatchNorm2d(3), "conv": nn.Conv2d(3, 4, 1)}
    laws, waivers = judged(subject(lambda m, x: m.conv(m.norm(x)), images, mode, **layers), in_channels_last)
    assert not laws
    assert mode == "eval" or any("how values lie in memory" in waiver for waiver in waivers)


def test_a_kernel_of_another_layout_may_spread_nan_further():
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    images[0, 0, 3, 3] = torch.nan
    model = subject(lambda m, x: m.conv(x), images, dtype=torch.bfloat16, conv=nn.Conv2d(3, 8, 3, padding=1))
    assert judged(model, in_channels_last)[0] == []


def with_another_eps(program):
    in_channels_last(program)
    program.norm.eps = 1e-3


def without_permuting_back(program):
    """Give the numbers as they lie in memory in place of the image."""
    in_channels_last(program)
    output = program.graph.output_node()
    contiguous = output.args[0]
    with program.graph.inserting_before(contiguous):
        rows = program.graph.call_method("permute", (contiguous.args[0], 0, 2, 3, 1))
        contiguous.args = (program.graph.call_method("reshape", (rows, 2, 4, 8, 8)),)
    program.recompile()


def by_places_in_memory(program):
    """Read the output by the strides that it has in the other layout."""
    in_channels_last(program)
    output = program.graph.output_node()
    contiguous = output.args[0]
    with program.graph.inserting_before(contiguous):
        places = ((2, 4, 8, 8), (256, 64, 8, 1))
        contiguous.args = (program.graph.call_function(torch.as_strided, (contiguous.args[0], *places)),)
    program.recompile()


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("pass_", [with_another_eps, without_permuting_back, by_places_in_memory])
def test_other_values_are_found_beside_another_layout(pass_, mode):
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    layers = {"norm": nn.BatchNorm2d(3), "conv": nn.Conv2d(3, 4, 1)}
    laws, _ = judged(subject(lambda m, x: m.conv(m.norm(x)), images, mode, **layers), pass_)
    assert "contract" in laws


@pytest.mark.parametrize("kind", ["values of output", "rounding of output", "sqnr of output"])
def test_only_what_other_inputs_cannot_excuse_is_decided_on_the_first_inputs_alone(kind):
    """Other inputs may widen the bound of rounding errors, and raise the signal-to-noise ratio of all outputs."""
    images = torch.randn(2, 3, 8, 8)
    pass_run = PassRun(subject(lambda m, x: m.norm(x), images, norm=nn.BatchNorm2d(3)), lambda program: program)

    def judge():
        if pass_run.kernel_mode is not LayoutIndependent:
            raise LawViolation("contract", "it differs", kind="values of output")

    def judge_first():
        raise LawViolation("contract", "it differs", kind=kind)

    if kind == "values of output":
        with pytest.raises(LawViolation):
            wherever_values_lie(pass_run, judge, judge_first)
    else:
        wherever_values_lie(pass_run, judge, judge_first)
    assert bool(pass_run.waivers) == (kind != "values of output")
