"""pytest_fx.comparison.rewriting: applying a pass to a fresh capture."""

import copy

import pytest
import torch
from torch import nn

from fx.errors import FxError
from pytest_fx.comparison.evaluation import Arguments
from pytest_fx.comparison.rewriting import rewrite, rewrite_in
from pytest_fx.comparison.subject import Subject
from pytest_fx.errors import ContractViolation


def subject() -> Subject:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    return Subject("own", module, lambda draw: Arguments((torch.ones(1, 3, 8, 8),)))


@pytest.mark.parametrize("leaves", [True, False])
def test_a_pass_that_does_nothing_changes_nothing(leaves):
    assert not rewrite(subject(), lambda program: None, leaves=leaves).changed


def test_without_leaf_modules_a_pass_sees_functions_only():
    operations = set()

    def look(program):
        operations.update(node.op for node in program.graph.nodes)

    rewrite(subject(), look, leaves=False)
    assert "call_function" in operations
    assert "call_module" not in operations


def test_a_pass_sees_a_capture_in_the_dtype_asked_for():
    dtypes = []

    def look(program):
        dtypes.append((next(program.parameters()).dtype, torch.get_default_dtype()))

    rewrite(subject(), look)
    rewrite_in(subject(), look, torch.float64)
    assert dtypes == [(torch.float32, torch.float32), (torch.float64, torch.float64)]


def edit_graph(program):
    node = next(node for node in program.graph.nodes if node.op == "call_module" and node.target == "2")
    node.replace_all_uses_with(node.args[0])
    program.graph.erase_node(node)


def replace_parameter(program):
    program.get_submodule("0").weight = nn.Parameter(torch.zeros(4, 3, 3, 3))


def change_setting(program):
    program.get_submodule("1").eps = 0.5


@pytest.mark.parametrize("pass_", [edit_graph, replace_parameter, change_setting])
def test_an_edit_of_the_graph_a_parameter_or_a_setting_is_a_change(pass_):
    def on_a_copy(program):
        program = copy.deepcopy(program)
        pass_(program)
        return program

    assert rewrite(subject(), on_a_copy).changed


def test_a_buffer_that_is_not_saved_is_the_originals_too():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.ones(2), persistent=False)

        def forward(self, x):
            return x + self.shift

    def write(program):
        next(program.buffers()).zero_()

    with pytest.raises(ContractViolation, match="write wrote to tensors of the original own\n  value  shift"):
        rewrite(Subject("own", Shifted(), lambda draw: Arguments((torch.ones(2),))), write)


def test_nodes_are_counted_before_and_after_and_the_code_is_current():
    rewriting = rewrite(subject(), edit_graph)
    assert (rewriting.nodes_before, rewriting.nodes_after) == (5, 4)
    assert bool((rewriting.program(torch.ones(1, 3, 8, 8)) < 0).any())


def test_a_graph_that_is_not_well_formed_is_refused():
    def call_what_is_not_there(program):
        next(node for node in program.graph.nodes if node.op == "call_module").target = "missing"

    with pytest.raises(FxError, match="missing"):
        rewrite(subject(), call_what_is_not_there)


def rename_the_input(program):
    (node,) = program.graph.find_nodes(op="placeholder")
    node.target = "renamed"


def test_another_signature_is_refused_unless_the_pass_says_that_it_may_change():
    with pytest.raises(ContractViolation) as error:
        rewrite(subject(), rename_the_input)
    assert str(error.value).startswith(
        "rename-the-input changes the signature of own\n  value  (renamed) instead of (input)\n"
    )

    def allowed(program):
        rename_the_input(program)

    allowed.may_change = ("signature",)
    assert rewrite(subject(), allowed).changed


def test_a_default_is_part_of_the_signature():
    class Scaled(nn.Module):
        def forward(self, x, scale=2):
            return x * scale

    def drop_the_default(program):
        program.graph.find_nodes(op="placeholder")[1].args = ()

    scaled = Subject("own", Scaled(), lambda draw: Arguments((torch.ones(2), 3)))
    with pytest.raises(ContractViolation, match=r"\(x, scale\) instead of \(x, scale=2\)"):
        rewrite(scaled, drop_the_default)
