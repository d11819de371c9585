"""mutate_pass: how many faults that are put into a pass its search finds."""

import os
from pathlib import Path

import pytest
import torch

import fx
from fx.errors import FxError
from fx.passes import get_pass
from pytest_fx import LawViolation, mutate_pass
from pytest_fx.search.mutants import mutants_of

pytestmark = pytest.mark.usefixtures("little_explored")

QUICKLY = {
    "max_examples": 4,
    "modes": ("eval",),
    "without": (
        *("gradients", "deterministic", "other values", "other weights", "other sizes", "batch sizes"),
        *("non-contiguous inputs", "non-finite inputs", "calls in a row", "round trips", "retraceable"),
    ),
}
"""A search that tries what each mutant does on few programs, by the laws that kill some of these mutants."""
PRODUCTS = {torch.neg: -1, torch.positive: 1}
"""A table of the pass below."""


def negation_as_product(graph_module: fx.GraphModule) -> None:
    """Write products where a negation has one user."""
    pending = graph_module.graph.find_nodes(op="call_function", target=torch.neg)
    while pending:
        node = pending[0]
        pending.remove(node)
        if node.op != "call_function":
            graph_module.meta["unusual"] = 999
            continue
        if node.kwargs or len(node.users) > 1:
            continue
        node.target, node.args = torch.mul, (node.args[0], PRODUCTS[torch.neg])
    graph_module.recompile()


def explain_negations(graph_module: fx.GraphModule) -> int:
    """Say how many there are; the pass does not call this."""
    return len(graph_module.graph.find_nodes(op="call_function", target=torch.neg)) + 0


def negation_as_relu(graph_module: fx.GraphModule) -> None:
    """A wrong pass."""
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.neg):
        node.target = torch.relu
    graph_module.recompile()


def line_of(text: str) -> int:
    """Return the first line of this file that has a text."""
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.fixture(scope="module")
def report():
    return mutate_pass(negation_as_product, mutants=100, **QUICKLY)


def fates(report, line, kind):
    return [each for each in report.outcomes if each.mutant.line == line and each.mutant.kind == kind]


def test_a_mutant_that_changes_results_is_killed_by_the_contract(report):
    (dropped,) = fates(report, line_of("if node.kwargs or len"), "constant changed")
    assert dropped.fate in ("survived", "not told apart")  # any number of users is right
    (negative,) = [each for each in report.of("killed") if each.mutant.line == line_of("PRODUCTS = {")][:1]
    assert negative.by in ("contract", "raises")
    assert {"contract"} <= {each.by for each in report.of("killed")}


def test_a_fault_that_makes_no_difference_is_not_distinguished(report):
    (guard,) = fates(report, line_of('if node.op != "call_function"'), "guard removed")
    assert guard.fate == "not told apart"


def test_a_fault_in_a_line_that_no_program_reaches_is_reported_as_unreached(report):
    (constant,) = fates(report, line_of("999"), "edit removed")
    assert (constant.fate, constant.by) == ("not told apart", "no program reached it")
    assert "`graph_module.meta['unusual'] = 999` (no program reached it)" in str(report)


def test_a_fault_that_stays_right_survives_and_is_shown_with_its_line(report):
    line = line_of("if node.kwargs or len")
    dropped = [each for each in fates(report, line, "operand dropped") if each.mutant.after == "node.kwargs"]
    assert [each.fate for each in dropped] == ["survived"]
    text = f"survived: {os.path.basename(__file__)}:{line}: operand dropped: "
    assert f"  {text}`node.kwargs or len(node.users) > 1` → `node.kwargs`" in str(report).splitlines()
    assert 0 < report.killed_part < 1


def test_a_fault_that_leaves_out_the_edits_changes_too_few_programs(report):
    (removed,) = fates(report, line_of("node.target, node.args = torch.mul"), "edit removed")
    assert (removed.fate, removed.by) == ("killed", "changes too few programs")


def test_a_fault_that_loops_is_killed(report):
    (removed,) = fates(report, line_of("pending.remove(node)"), "edit removed")
    assert (removed.fate, removed.by) == ("killed", "terminates")


def test_every_fault_is_counted_once_and_the_pass_is_as_before(report):
    assert len(report.outcomes) == report.total == len(mutants_of(negation_as_product))
    program = fx.symbolic_trace(lambda x: torch.neg(x))
    negation_as_product(program)
    assert "torch.mul" in program.code
    assert {torch.neg: -1, torch.positive: 1} == PRODUCTS


def negation_as_new_product(graph_module: fx.GraphModule) -> None:
    """Write a product beside each negation, and erase that."""
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.neg):
        if "out" in node.kwargs:
            continue
        with graph_module.graph.inserting_before(node):
            product = graph_module.graph.call_function(torch.mul, (*node.args, *node.kwargs.values(), -1))
        product.meta.update(node.meta)
        node.replace_all_uses_with(product)
        graph_module.graph.erase_node(node)
    graph_module.recompile()


def test_a_fault_that_leaves_dead_code_behind_acts_less():
    report = mutate_pass(negation_as_new_product, **QUICKLY)
    (mutant,) = fates(report, line_of("graph_module.graph.erase_node(node)"), "edit removed")
    assert mutant.fate == "acts less"
    (metadata,) = fates(report, line_of("product.meta.update(node.meta)"), "edit removed")
    assert metadata.fate == "survived"  # no law is about metadata of new nodes


@pytest.mark.thorough
def test_fewer_mutants_are_the_same_ones_in_each_run():
    first, second = (mutate_pass("remove-dead-code", mutants=1, max_examples=5) for _ in range(2))
    assert len(first.outcomes) == 1
    assert [str(each.mutant) for each in first.outcomes] == [str(each.mutant) for each in second.outcomes]


def test_a_mutant_is_installed_inside_of_the_block_alone():
    removed = [each for each in mutants_of(negation_as_product) if each.kind == "edit removed"]
    (mutant,) = [each for each in removed if "mul" in each.before]
    program = fx.symbolic_trace(lambda x: torch.neg(x))
    code = negation_as_product.__code__
    with mutant.installed() as is_possible:
        assert is_possible
        negation_as_product(program)
        assert "torch.neg" in program.code
        with mutant.put_back():
            negation_as_product(program)
        assert "torch.mul" in program.code
    assert negation_as_product.__code__ is code


def test_tables_that_a_pass_reads_have_mutants_and_uncalled_code_has_none():
    mutants = mutants_of(negation_as_product)
    (dropped,) = [each for each in mutants if each.kind == "entry dropped" and "torch.neg: -1" not in each.after]
    with dropped.installed() as is_possible:
        assert is_possible
        assert torch.neg not in PRODUCTS
    assert torch.neg in PRODUCTS
    assert not [each for each in mutants if "+ 0" in each.before or each.line == line_of("target=torch.neg)) + 0")]


def test_each_kind_of_fault_is_put_into_passes_of_ours():
    kinds = {each.kind for name in ("fuse-conv-bn", "overlap") for each in mutants_of(get_pass(name))}
    assert kinds == {
        "argument dropped", "comparison swapped", "condition negated", "condition removed", "constant changed",
        "edit removed", "entry dropped", "guard removed", "operand dropped",
    }  # fmt: skip


def test_explanations_of_a_pass_have_no_mutants():
    lines = {each.line for each in mutants_of(get_pass("fuse-conv-bn"))}
    text = Path(fx.passes.fuse_conv_bn.__file__).read_text().splitlines()
    explains = next(number for number, line in enumerate(text, 1) if "def decisions" in line)
    assert lines.isdisjoint(range(explains, explains + 5))


def test_a_pass_without_source_has_no_mutants():
    names: dict = {}
    exec("import torch\ndef quiet(graph_module):\n    if graph_module:\n        return graph_module", names)
    assert mutants_of(names["quiet"]) == []


def test_a_wrong_pass_is_reported_before_any_mutant_is_tried():
    with pytest.raises(LawViolation, match="negation-as-relu"):
        mutate_pass(negation_as_relu, max_examples=20)


def test_the_number_of_mutants_is_one_at_least():
    with pytest.raises(FxError, match="mutants= is a number of mutants from 1 on"):
        mutate_pass(negation_as_product, mutants=0)
