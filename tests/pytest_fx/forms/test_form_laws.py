"""The laws for passes in other forms only, and differences that they allow."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from aten_passes import aten, net
from torch import nn
from torch.export import ExportedProgram

from pytest_fx import LawViolation, check_program
from pytest_fx.forms import ExportedSource, form_name
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun, applied
from pytest_fx.harness.subject import Subject
from pytest_fx.laws import affordable, broken_laws, choose_laws
from pytest_fx.loading import load_pass


def run_of(pass_, form="auto", model=net) -> PassRun:
    module, inputs = model()
    subject = Subject("net", module, lambda number: Arguments(inputs), input_set_count=1)
    return PassRun(subject, load_pass(pass_, form))


def broken_by(pass_, form="auto", model=net) -> set[str]:
    run = run_of(pass_, form, model)
    return {violation.law for violation in broken_laws(affordable(choose_laws(), run), run)}


def test_a_node_before_its_operand_is_not_well_formed():
    def disorder(graph_module: torch.fx.GraphModule) -> None:
        relu = next(node for node in graph_module.graph.nodes if node.target is aten.relu.default)
        next(iter(graph_module.graph.nodes)).prepend(relu)

    assert "form well formed" in broken_by(disorder)


def test_an_input_of_another_name_breaks_the_signature():
    def rename(graph_module: torch.fx.GraphModule) -> None:
        aten.relu
        node = next(node for node in graph_module.graph.nodes if node.op == "placeholder")
        node.target = "other"

    assert "form signature" in broken_by(rename)


def test_a_function_of_ones_own_cannot_be_saved():
    def call_python(exported: ExportedProgram) -> None:
        for node in exported.graph.nodes:
            if node.target is aten.relu.default:
                node.target = torch.relu

    assert broken_by(call_python) >= {"form well formed", "form round trips"}


def test_a_node_without_its_operator_cannot_be_decomposed():
    def forget(exported: ExportedProgram) -> None:
        for node in exported.graph.nodes:
            if node.target is aten.linear.default:
                node.target = _not_traceable

    assert "decomposes again" in broken_by(forget)


def _not_traceable(x, weight, bias):
    return nn.functional.linear(x, weight, bias) if float(x.sum()) > -1e9 else x


def clamp(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    for node in graph_module.graph.nodes:
        if node.target is aten.relu.default:
            node.target, node.args = aten.clamp_min.default, (node.args[0], 0)
    return graph_module


def test_a_law_that_torch_itself_breaks_is_not_blamed_on_the_pass(monkeypatch):
    def without_gradients(graph_module):
        for node in graph_module.graph.nodes:
            if node.target is aten.linear.default:
                node.args = (node.args[0], *(_detached(graph_module.graph, each) for each in node.args[1:]))
        return graph_module

    assert "gradients" in broken_by(without_gradients, "aten")
    run = run_of(lambda graph_module: clamp(without_gradients(graph_module)), "aten")
    form = dataclasses.replace(run.pass_.form, identity=without_gradients)
    run.pass_.form = form
    assert broken_laws(affordable(choose_laws(), run), run) == []
    assert "torch's own result" in run.not_asked["gradients"]


def _detached(graph, node):
    with graph.inserting_after(node):
        return graph.call_function(aten.detach.default, (node,))


def test_a_program_that_torch_cannot_pickle_need_not_be_picklable_afterwards():
    run = run_of(clamp)
    assert broken_laws(affordable(choose_laws(), run), run) == []
    assert run.not_asked["form round trips"] == "what torch makes without the pass cannot be pickled either"


def test_the_program_given_to_a_pass_has_no_nodes_of_ours():
    nodes = []

    def look(graph_module: torch.fx.GraphModule) -> None:
        aten.relu
        nodes.extend(graph_module.graph.nodes)

    look.levels = ("exported", "decomposed")
    run_of(look)
    assert not [node for node in nodes if node.op == "call_method" or "assert" in str(node.target)]
    layers = [node for node in nodes if node.target is aten.linear.default]
    assert all({"val", "nn_module_stack", "stack_trace"} <= node.meta.keys() for node in layers)
    assert all(isinstance(node.meta["val"].shape[0], torch.SymInt) for node in layers)


def test_the_strict_export_tells_the_calls_of_one_module_apart():
    relu = nn.ReLU()
    source = ExportedSource(lambda: nn.Sequential(relu, nn.Tanh(), relu), ((torch.ones(2, 3),), {}))
    nodes = source.exported("strict").graph.find_nodes(op="call_function", target=aten.relu.default)
    calls = [node.meta["source_fn_stack"][-1] for node in nodes]
    assert len({name for name, _ in calls}) == 2
    assert {kind for _, kind in calls} == {nn.ReLU}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_in_meta_have_the_dtype_that_is_judged(dtype):
    dtypes = []

    def look(graph_module: torch.fx.GraphModule) -> None:
        for node in graph_module.graph.nodes:
            if node.target is aten.relu.default:
                dtypes.append(node.meta["val"].dtype)

    run = run_of(look)
    assert run.has_float64
    assert run.after_float64 is not None
    assert dtype in dtypes


def clamp_and_forget(graph_module: torch.fx.GraphModule) -> None:
    """Right as exported; in a decomposed program, the bias of linear layers is lost."""
    clamp(graph_module)
    for node in graph_module.graph.nodes:
        if node.target is aten.addmm.default:
            node.target, node.args = aten.mm.default, node.args[1:]


def repeat_activations(graph_module: torch.fx.GraphModule) -> None:
    """Names no operator: it looks at the text of targets."""
    for node in graph_module.graph.nodes:
        if str(node.target).endswith("relu.default"):
            with graph_module.graph.inserting_before(node):
                node.args = (graph_module.graph.call_function(node.target, node.args),)


def test_a_pass_is_judged_at_each_level_at_which_it_acts_unless_it_declares_its_levels(monkeypatch):
    def check():
        check_program(clamp_and_forget, lambda: net()[0], lambda: (net()[1], {}), laws="contract")

    with pytest.raises(LawViolation, match=r"(?s)law 'contract'.*level  decomposed: .* levels.* exported and"):
        check()
    monkeypatch.setattr(clamp_and_forget, "levels", ("exported",), raising=False)
    check()


def test_a_pass_that_names_no_operation_gets_the_exported_form_if_it_acts_there_alone():
    module, inputs = net()
    subject = Subject("net", module, lambda number: Arguments(inputs), input_set_count=1)
    assert form_name(load_pass(repeat_activations)) == "torch.fx"
    assert form_name(applied(subject, load_pass(repeat_activations)).pass_) == "aten"


def test_a_pass_that_dynamic_sizes_keep_from_acting_gets_the_program_of_fixed_sizes():
    class Slices(nn.Module):
        def forward(self, x):
            return x[:, 1:3][:, :1]

    def merge(graph_module: torch.fx.GraphModule) -> None:
        for node in graph_module.graph.nodes:
            inner = node.args[0] if node.target is aten.slice.Tensor else node
            if inner is not node and inner.target is aten.slice.Tensor and node.args[1] == inner.args[1]:
                node.args = (inner.args[0], 1, 1, 2)

    assert broken_by(merge, model=lambda: (Slices(), (torch.ones(2, 4),))) == set()
    assert run_of(merge, model=lambda: (Slices(), (torch.ones(2, 4),))).form_result.level == "fixed"


def test_programs_of_inductor_have_no_assertions_on_dtypes():
    class Cast(nn.Module):
        def forward(self, x):
            return x.to(torch.float64)

    source = ExportedSource(Cast, ((torch.ones(2, 3),), {}))
    assertion = aten._assert_tensor_metadata.default
    counts = [
        sum(node.target is assertion for node in source.exported(level).graph.nodes)
        for level in ("exported", "decomposed", "inductor")
    ]
    assert counts == [1, 1, 0]
