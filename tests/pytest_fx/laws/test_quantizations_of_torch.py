"""Right quantizations by torch.ao and torchao are right, also where torch's own modules cannot be pickled."""

from __future__ import annotations

import copy
import types
import warnings
from dataclasses import replace

import pytest
import torch
import torch.fx
from torch import nn

from fx.interop import adapt
from fx.passes import approximate
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import affordable, broken_laws, choose_laws


def images(number):
    return Arguments((torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(number)),))


def network():
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 4))
    return nn.Sequential(*layers).eval().requires_grad_(False)


def judged(pass_, **tracing):
    """Return the laws that a pass breaks on the network, and why round trips were not asked, if they were not."""
    subject = Subject("network", network(), images)
    subject.tracing = replace(subject.tracing, **tracing)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao is deprecated
        pass_run = PassRun(subject, adapt(pass_), contract=approximate(sqnr_db=8))
        assert pass_run.error is None and pass_run.changed
        laws = broken_laws(affordable(choose_laws((), (), ("metadata",)), pass_run), pass_run)
    assert pass_run.waivers == []
    return [violation.law for violation in laws], pass_run.not_asked.get("round trips")


def quantize_fx(program: torch.fx.GraphModule) -> torch.fx.GraphModule:
    ao = pytest.importorskip("torch.ao.quantization.quantize_fx")
    mapping = torch.ao.quantization.get_default_qconfig_mapping(torch.backends.quantized.engine)
    prepared = ao.prepare_fx(copy.deepcopy(program), mapping, images(0).args)
    prepared(*images(0).args)
    return ao.convert_fx(prepared)


def quantize_pt2e(program: torch.fx.GraphModule) -> torch.fx.GraphModule:
    pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    x86 = pytest.importorskip("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = pt2e.prepare_pt2e(copy.deepcopy(program), quantizer)
    prepared(*images(0).args)
    return pt2e.convert_pt2e(prepared)


class Annotation:
    """A note as PT2E keeps them in ``meta``: it holds nodes, and cannot be pickled."""

    def __init__(self, nodes):
        self.nodes = dict.fromkeys(nodes, lambda: None)


def as_pt2e_leaves_it(program: torch.fx.GraphModule) -> torch.fx.GraphModule:
    program = copy.deepcopy(program)
    for node in program.graph.nodes:
        node.meta["annotation"] = Annotation(program.graph.nodes)
    (relu,) = program.graph.find_nodes(op="call_module", target="1")
    with program.graph.inserting_after(relu):
        relu.replace_all_uses_with(program.graph.call_function(torch.relu, relu.args))
    program.graph.erase_node(relu)
    program.recompile()

    def refuse(self, *args):
        raise NotImplementedError("the mode is fixed")

    program.train, program.eval = (types.MethodType(refuse, program) for _ in range(2))
    return program


class Unpickled(nn.Module):
    def __reduce__(self):
        raise TypeError("not to be pickled")

    def forward(self, x):
        return torch.relu(x)


def with_a_module_of_the_users(program: torch.fx.GraphModule) -> torch.fx.GraphModule:
    program = copy.deepcopy(program)
    program.add_submodule("1", Unpickled())
    return program


def test_a_program_that_torch_ao_quantized_is_right_and_torchs_part_in_it_is_named():
    assert judged(quantize_fx) == ([], "it cannot be pickled, nor can torch's own ConvReLU2d by itself")


def test_a_program_that_torchao_quantized_by_pt2e_is_right():
    assert judged(quantize_pt2e, how="export", form="aten") == ([], None)


def test_methods_and_notes_that_a_pass_of_torch_leaves_on_its_program_are_not_blamed_on_it():
    assert judged(as_pt2e_leaves_it) == ([], None)


def test_a_module_of_the_users_that_cannot_be_pickled_is_blamed_on_the_pass():
    assert judged(with_a_module_of_the_users) == (["round trips"], None)
