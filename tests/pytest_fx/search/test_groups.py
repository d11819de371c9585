"""Random programs for passes in a form of torch: several are transformed as one, or each is recorded first."""

from __future__ import annotations

from contextlib import nullcontext

import hypothesis
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fx.errors import TraceError
from fx.passes import close
from pytest_fx import LawViolation, check_pass
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import GivenProgram, Subject
from pytest_fx.laws import choose_laws
from pytest_fx.laws.output_laws import non_contiguous_inputs
from pytest_fx.loading import in_form
from pytest_fx.search.aten_spellings import may_call
from pytest_fx.search.groups import changed_parts, group_of, traits_of, worst_part
from pytest_fx.search.nearness import running
from pytest_fx.search.references import references_of
from pytest_fx.search.search import Search

aten = torch.ops.aten


class Difference(nn.Module):
    def forward(self, x, y, *, scale=2.0):
        return (x - y) * scale


class SumWithFactor(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return torch.add(x, x, alpha=self.factor)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return F.dropout(self.layer(x), training=self.training)


def subtraction_as_sum(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    for node in graph_module.graph.find_nodes(op="call_function", target=aten.sub.Tensor):
        if isinstance(node.args[1], torch.fx.Node) and node.kwargs.get("alpha", 1) == 1 and len(node.args) == 2:
            with graph_module.graph.inserting_before(node):
                negative = graph_module.graph.call_function(aten.neg.default, (node.args[1],))
            negative.meta = dict(node.args[1].meta)
            node.target, node.args = aten.add.Tensor, (node.args[0], negative)
    graph_module.recompile()
    return graph_module


def sum_without_alpha(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    for node in graph_module.graph.find_nodes(op="call_function", target=aten.add.Tensor):
        if node.kwargs:
            node.kwargs = {}
    graph_module.recompile()
    return graph_module


PROGRAMS = [
    GivenProgram(Difference, Arguments((torch.ones(2, 3), torch.zeros(3)))),
    GivenProgram(Scaled, Arguments((torch.ones(2, 3),))),
    GivenProgram(Difference, Arguments((torch.ones(4), torch.zeros(4)), {"scale": 3.0})),
]


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_group_returns_the_results_of_its_programs(mode):
    group = group_of(PROGRAMS, mode)
    torch.manual_seed(0)
    module = group.build()
    torch.manual_seed(1)
    results = module(*group.inputs.args)
    torch.manual_seed(1)
    alone = [
        part(*program.inputs.args, **program.inputs.kwargs)
        for part, program in zip(module.parts, PROGRAMS, strict=True)
    ]
    assert [part.training for part in module.parts] == [mode == "train"] * 3
    assert all(map(torch.equal, results, alone))


def test_the_changed_programs_of_a_group_are_those_where_the_pass_acts():
    subject = Subject.of(group_of(PROGRAMS, "eval"))
    assert changed_parts(PassRun(subject, in_form(subtraction_as_sum)), 3) == {0, 2}
    assert changed_parts(PassRun(subject, in_form(sum_without_alpha)), 3) == frozenset()


def test_the_program_that_a_pass_made_most_wrong_is_looked_at_first():
    programs = [
        GivenProgram(lambda factor=factor: SumWithFactor(factor), Arguments((torch.ones(3),)))
        for factor in (2.0, 8.0, 3.0)
    ]
    example = PassRun(Subject.of(group_of(programs, "eval")), in_form(sum_without_alpha))
    changed = changed_parts(example, 3)
    assert changed == {0, 1, 2}
    assert worst_part(example, changed) == 1
    assert worst_part(example, {0, 2}) == 2
    assert worst_part(example, ()) is None


def test_programs_of_a_group_whose_results_are_not_all_there_count_as_equally_wrong():
    def without_last_result(exported: torch.export.ExportedProgram) -> torch.nn.Module:
        program = exported.module()

        class Shortened(nn.Module):
            def forward(self, *inputs):
                return program(*inputs)[:-1]

        return Shortened()

    example = PassRun(Subject.of(group_of(PROGRAMS, "eval")), in_form(without_last_result, "exported-program"))
    assert worst_part(example, {1, 2}) == 1


def test_programs_with_results_that_are_not_finite_and_those_that_cannot_be_exported_are_recognized():
    infinite = GivenProgram(Difference, Arguments((torch.full((2,), torch.inf), torch.ones(2))))
    failing = GivenProgram(Difference, Arguments((torch.ones(2), torch.ones(3))))
    assert [traits_of(program, "eval").kind for program in PROGRAMS] == ["finite"] * 3
    assert [traits_of(program, "eval").kind for program in (infinite, failing)] == ["not finite"] * 2
    indices, mask = torch.tensor([1, 0]), torch.tensor([True, False])
    calls = {
        lambda self, x: x[indices]: "finite",
        lambda self, x: x[mask]: "data-dependent",
        lambda self, x: x.nonzero(): "data-dependent",
        lambda self, x: x * x.sum().item(): "data-dependent",
    }
    for forward, kind in calls.items():
        module = type("Program", (nn.Module,), {"forward": forward})
        assert traits_of(GivenProgram(module, Arguments((torch.ones(2),))), "eval").kind == kind


def test_programs_that_change_attributes_in_python_are_recognized():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    assert traits_of(GivenProgram(Counting, Arguments((torch.ones(2),))), "eval").kind == "stateful"


def test_programs_whose_sizes_depend_on_data_share_no_group_with_others(monkeypatch):
    groups = []
    joint = in_form(subtraction_as_sum, "joint")
    search = Search(joint, close, [], set(), 5.0, references_of(joint))
    monkeypatch.setattr(search, "_check_group", lambda examples, if_changed: groups.append(len(examples)))
    masked = type("Masked", (nn.Module,), {"forward": lambda self, x: (x - 1)[x > 0]})
    for program in (PROGRAMS[0], PROGRAMS[2], GivenProgram(masked, Arguments((torch.ones(2),)))):
        search.check(program, "eval", 0)
    assert groups == [1]
    search.check_waiting()
    assert groups == [1, 2]


def search_for(pass_, laws=()):
    formed = in_form(pass_)
    return Search(formed, close, choose_laws(demand=laws) if laws else [], set(), 5.0, references_of(formed))


def test_most_programs_without_the_operators_of_a_pass_are_not_given_to_it():
    search = search_for(subtraction_as_sum)
    program = GivenProgram(Scaled, Arguments((torch.ones(2, 3),)))
    for number in range(8):
        with pytest.raises(TraceError, match="none of the operators") if (number + 1) % 4 else nullcontext():
            search.check(program, "eval", 0)
    assert search.counts.programs == 2


def test_programs_are_recorded_and_only_some_of_them_exported(monkeypatch):
    search, exports = search_for(subtraction_as_sum, ["contract"]), []
    example = search._example
    monkeypatch.setattr(
        search, "_example", lambda *args, **options: exports.append(options.get("export")) or example(*args, **options)
    )
    for number in range(6):
        search.check(GivenProgram(Difference, Arguments((torch.full((2,), number + 2.0), torch.ones(2)))), "eval", 1)
    assert search.counts.changed == search.counts.programs == 6
    assert exports.count("recording") == 6
    assert len(exports) == 7  # the first program is exported, too


def test_a_law_that_is_broken_on_a_recorded_program_is_judged_on_an_exported_one(monkeypatch):
    search = search_for(sum_without_alpha, ["contract"])
    with pytest.raises(LawViolation, match="changes what the program computes"):
        search.check(GivenProgram(lambda: SumWithFactor(3.0), Arguments((torch.ones(3),))), "eval", 1)
    assert search._found.example.subject.export == "dynamic"


def test_a_program_that_cannot_be_recorded_is_exported():
    def forward(self, x):
        return (x - 1)[x > 0] - x[0]

    search = search_for(subtraction_as_sum, ["contract"])
    search.check(
        GivenProgram(type("Masked", (nn.Module,), {"forward": forward}), Arguments((torch.ones(2),))), "eval", 1
    )
    assert search.counts.programs == 1


def test_a_view_of_a_result_that_is_written_to_belongs_to_the_program_that_makes_it():
    class Writes(nn.Module):
        def forward(self, x):
            y = torch.add(x, x, alpha=2)
            part = y[0]
            y.mul_(2)
            return y, part

    def on_views(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        for node in graph_module.graph.find_nodes(op="call_function", target=aten.select.int):
            node.args = (*node.args[:2], node.args[2] + 1)
        return graph_module

    on_views.levels = ("decomposed",)
    program = GivenProgram(Writes, Arguments((torch.ones(3, 2),)))
    subject = Subject.of(group_of([PROGRAMS[0], program], "eval"))
    assert changed_parts(PassRun(subject, in_form(on_views)), 2) == {1}


def test_a_program_that_writes_to_its_inputs_leaves_those_of_the_group():
    class Writes(nn.Module):
        def forward(self, x):
            return x.add_(1)

    program = GivenProgram(Writes, Arguments((torch.ones(2),)))
    assert traits_of(program, "eval").kind == "finite"
    assert torch.equal(program.inputs.args[0], torch.ones(2))


def test_a_pass_on_aten_refers_to_the_operations_that_become_its_operators():
    def on_products(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        assert not graph_module.graph.find_nodes(op="call_function", target=aten.addmm.default)
        return graph_module

    operations = references_of(in_form(on_products)).operations
    assert {torch.addmm, F.linear, nn.Linear} <= set(operations)


@pytest.mark.thorough
def test_random_programs_show_the_fault_of_a_pass_on_aten():
    settings = hypothesis.settings(database=None, phases=[hypothesis.Phase.generate])  # a smaller program takes time
    with pytest.raises(LawViolation, match="sum-without-alpha changes what the program computes") as raised:
        check_pass(sum_without_alpha, max_examples=16, seed=0, settings=settings)
    assert "alpha" in str(raised.value)


@pytest.mark.thorough
def test_a_right_pass_on_aten_keeps_the_laws_on_random_programs():
    report = check_pass(subtraction_as_sum, max_examples=20, seed=0)
    assert report.changed >= 10
    assert report.trials >= 50


def test_models_without_the_operators_of_a_pass_are_recognized():
    call = Arguments((torch.ones(2, 3),))
    assert may_call(nn.Linear(3, 3), call, [aten.addmm.default])
    assert may_call(nn.Linear(3, 3), call, [aten.linear])
    assert not may_call(nn.Linear(3, 3), call, [aten.convolution.default, aten.relu])


def its_pattern(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


def hyperbolic(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Refers to a pattern without the operator that it names."""
    for node in gm.graph.nodes if its_pattern is not None else ():
        if node.target is torch.ops.aten.cosh.default:
            node.target = torch.ops.aten.sinh.default
    return gm


@pytest.mark.thorough
def test_a_pattern_without_the_operators_that_a_pass_names_ends_no_search() -> None:
    with pytest.raises(LawViolation, match="hyperbolic"):
        check_pass(hyperbolic, form="aten", max_examples=4)


NESTED = """\
import torch
from torch import nn


class Program(nn.Module):
    def forward(self, x):
        return torch.sin(x) + {number}


def build():
    return Program().eval()


def inputs():
    return (torch.ones(2),), {{}}
"""


def test_a_group_of_drawn_programs_is_compiled_as_one():
    programs = [running(NESTED.format(number=number)) for number in range(2)]
    group = group_of(programs, "eval")
    module = group.build()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert torch.equal(torch.stack(compiled(*group.inputs)), torch.stack(module(*group.inputs)))


def test_a_group_gets_only_variants_of_all_inputs_at_once():
    counts = []
    for is_group in (False, True):
        subject = Subject.of(GivenProgram(Difference, Arguments((torch.rand(2, 3), torch.rand(2, 3)))), "eval")
        subject.is_group = is_group
        pass_run = PassRun(subject, in_form(subtraction_as_sum, "aten"))
        non_contiguous_inputs(pass_run)
        counts.append(len(subject.runs))
    assert counts[1] < counts[0]
