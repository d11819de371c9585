"""Pipelines: order, fuel, reports, listeners, and the names of passes in the code."""

from __future__ import annotations

import copy
import operator
import pickle
from typing import Any

import pytest
import torch
from small_passes import NegateEachRelu, captured, chain, change_nothing, counted, double_the_result
from torch import nn

import fx
import model_zoo
from fx.passes import (
    Approximate,
    Edit,
    FuseConvBN,
    RemoveDeadCode,
    approximate,
    close,
    contract_of,
    exact,
    get_pass,
    list_passes,
)
from fx.pipelines.contract import Close
from fx.pipelines.pipeline import PassPipeline, PassReport, PipelineListener


def test_passes_run_in_order_and_each_is_reported() -> None:
    program = captured()
    result = PassPipeline([NegateEachRelu(), change_nothing, double_the_result]).run(program)
    assert result.graph_module is program
    assert program(torch.tensor([3.0])).item() == -6
    assert [(r.name, len(r.edits), r.nodes_before, r.nodes_after, r.changed) for r in result.reports] == [
        ("negate-each-relu", 3, 5, 5, True),
        ("change-nothing", 0, 5, 5, False),
        ("double-the-result", 1, 5, 6, True),
    ]
    assert all(report.seconds >= 0 for report in result.reports)
    assert [edit.description for edit in result.reports[0].edits] == [
        "relu becomes a negation",
        "relu_1 becomes a negation",
        "relu_2 becomes a negation",
    ]
    assert result.changed


def test_a_result_prints_as_a_table() -> None:
    result = PassPipeline([NegateEachRelu(), change_nothing]).run(captured())
    header, *rows = str(result).splitlines()
    assert header.split() == ["pass", "edits", "nodes", "seconds", "changed"]
    assert [row.split()[:5] for row in rows] == [
        ["negate-each-relu", "3", "5", "->", "5"],
        ["change-nothing", "0", "5", "->", "5"],
    ]
    assert rows[0].endswith("yes") and rows[1].endswith(" no")
    assert str(result.reports[1]).splitlines()[1].split()[0] == "change-nothing"


def test_a_pipeline_is_a_pass() -> None:
    pipeline = PassPipeline([NegateEachRelu()])
    assert pipeline(captured())(torch.ones(1)).item() == -1
    outer = PassPipeline([pipeline, double_the_result], name="outer")
    assert outer.passes == (NegateEachRelu(), double_the_result)
    assert outer.name == "outer"


def test_passes_are_given_as_text_names_classes_and_functions() -> None:
    text = "fuse-conv-bn,remove-dead-code"
    assert PassPipeline(text).passes == (FuseConvBN(), RemoveDeadCode())
    assert str(PassPipeline(text)) == text
    mixed = PassPipeline(["fuse-conv-bn", RemoveDeadCode, NegateEachRelu(stumble=5), change_nothing])
    assert mixed.passes == (FuseConvBN(), RemoveDeadCode(), NegateEachRelu(5), change_nothing)
    assert str(mixed) == "fuse-conv-bn,remove-dead-code,negate-each-relu{stumble=5},change-nothing"
    assert PassPipeline(change_nothing).passes == (change_nothing,)
    assert PassPipeline([]).run(captured()).reports == ()


def test_its_contract_is_the_weakest_of_its_passes() -> None:
    def promising(contract: Any) -> Any:
        def promise(graph_module: fx.GraphModule) -> None: ...

        promise.contract = contract  # type: ignore[attr-defined]
        return promise

    def together(*contracts: Any) -> Any:
        return PassPipeline([promising(contract) for contract in contracts]).contract

    assert together() == together(exact) == exact
    assert together(close, exact) == close
    assert together(Close(1e-3, 1e-9), Close(1e-4, 1e-6)) == Close(1e-3, 1e-6)
    assert together(approximate(30), close, approximate(20), exact) == approximate(20)


def test_fuel_stops_after_so_many_edits_across_passes() -> None:
    pipeline = PassPipeline([NegateEachRelu(), change_nothing, double_the_result, change_nothing])
    for fuel, negated, doubled, ran in [(0, 0, 0, 0), (2, 2, 0, 1), (3, 3, 0, 1), (4, 3, 1, 3), (9, 3, 1, 4)]:
        result = pipeline.run(captured(), fuel=fuel)
        assert counted(result.graph_module, operator.neg) == negated
        assert counted(result.graph_module, operator.mul) == doubled
        assert len(result.reports) == ran
        result.graph_module.graph.lint()


def test_changed_is_read_from_the_graph_and_not_from_the_pass() -> None:
    def swaps_a_weight(graph_module: fx.GraphModule) -> None:
        graph_module.weight = nn.Parameter(torch.zeros(2, 2))

    def edits_a_program_inside(graph_module: fx.GraphModule) -> None:
        inner: Any = graph_module.inner
        inner.graph.find_nodes(op="call_function")[0].target = torch.tanh
        inner.recompile()

    graph = fx.Graph()
    x = graph.placeholder("x")
    product = graph.call_function(torch.matmul, (x, graph.get_attr("weight")))
    graph.output(graph.call_module("inner", (product,)))
    program = fx.GraphModule({"weight": nn.Parameter(torch.ones(2, 2)), "inner": captured()}, graph)
    result = PassPipeline([change_nothing, swaps_a_weight, edits_a_program_inside]).run(program)
    assert [report.changed for report in result.reports] == [False, True, True]
    assert [str(edit) for report in result.reports for edit in report.edits] == ["the pass as a whole"] * 2
    assert program.graph.history == ("swaps-a-weight", "edits-a-program-inside")


def test_changes_that_a_rewriting_pass_does_not_announce_count_as_one_edit() -> None:
    class Silent(NegateEachRelu):
        name = "silent"

        def rewrites(self, graph_module: fx.GraphModule) -> Any:
            list(super().rewrites(graph_module))
            yield from ()

    (report,) = PassPipeline([Silent()]).run(captured()).reports
    assert [str(edit) for edit in report.edits] == ["the pass as a whole"]


def test_a_rewriting_pass_with_a_call_of_its_own_is_called() -> None:
    class Own(NegateEachRelu):
        name = "own"

        def __call__(self, graph_module: fx.GraphModule) -> fx.GraphModule:
            double_the_result(graph_module)
            return super().__call__(graph_module)

    program = PassPipeline([Own()]).run(captured()).graph_module
    assert (counted(program, operator.neg), counted(program, operator.mul)) == (3, 1)


def test_generated_code_names_the_passes_that_changed_something() -> None:
    program = captured()
    PassPipeline([NegateEachRelu(), change_nothing, double_the_result]).run(program)
    assert program.graph.history == ("negate-each-relu", "double-the-result")
    header, definition, *_ = program.code.strip().splitlines()
    assert header == "# after the passes negate-each-relu, double-the-result"
    assert definition.startswith("def forward(self, x")
    for other in (copy.deepcopy(program), pickle.loads(pickle.dumps(program))):
        assert other.code == program.code


def test_a_program_that_nothing_changed_keeps_its_code_and_revision() -> None:
    program = captured()
    code, revision = program.code, program.graph.revision
    assert not PassPipeline([change_nothing, RemoveDeadCode()]).run(program).changed
    assert program.code is code
    assert program.graph.revision == revision


def test_a_program_made_again_continues_the_history() -> None:
    def copies(graph_module: fx.GraphModule) -> fx.GraphModule:
        graph = fx.Graph()
        graph.output(graph.graph_copy(graph_module.graph, {}))
        return fx.GraphModule(graph_module, graph)

    program = captured()
    result = PassPipeline([NegateEachRelu(), copies, double_the_result]).run(program).graph_module
    assert result is not program
    assert result.graph.history == ("negate-each-relu", "copies", "double-the-result")
    assert program.graph.history == ("negate-each-relu",)


class Diary(PipelineListener):
    def __init__(self) -> None:
        self.entries: list[Any] = []

    def before_pass(self, name: str, graph_module: fx.GraphModule) -> None:
        self.entries.append(("before", name, counted(graph_module, torch.relu)))

    def edit(self, name: str, edit: Edit) -> None:
        self.entries.append((name, edit.description))

    def after_pass(self, report: PassReport, graph_module: fx.GraphModule) -> None:
        self.entries.append(("after", report.name, counted(graph_module, torch.relu)))


def test_listeners_are_notified_of_passes_and_edits() -> None:
    diary = Diary()
    PassPipeline([NegateEachRelu(), change_nothing, double_the_result], [diary]).run(captured(), fuel=4)
    assert diary.entries == [
        ("before", "negate-each-relu", 3),
        ("negate-each-relu", "relu becomes a negation"),
        ("negate-each-relu", "relu_1 becomes a negation"),
        ("negate-each-relu", "relu_2 becomes a negation"),
        ("after", "negate-each-relu", 0),
        ("before", "change-nothing", 0),
        ("after", "change-nothing", 0),
        ("before", "double-the-result", 0),
        ("double-the-result", "the pass as a whole"),
        ("after", "double-the-result", 0),
    ]


@pytest.mark.parametrize("event", ["before_pass", "edit", "after_pass"])
def test_an_exception_of_a_listener_keeps_its_type_and_gets_a_note(event: str) -> None:
    class Interrupts(PipelineListener):
        pass

    def interrupt(self: object, *what: object) -> None:
        raise KeyError("enough")

    setattr(Interrupts, event, interrupt)
    program = captured()
    with pytest.raises(KeyError, match="enough") as caught:
        PassPipeline([NegateEachRelu()], [Interrupts()]).run(program)
    assert caught.value.__notes__ == [f"raised by {event} of listener Interrupts, at pass 'negate-each-relu' (1 of 1)"]
    program.graph.lint()


def test_programs_compiled_when_first_run_are_taken_as_they_come() -> None:
    program = fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval())
    x = torch.randn(2, 3, 4, 4)
    expected = copy.deepcopy(program)(x)
    torch.testing.assert_close(PassPipeline("fuse-conv-bn")(program)(x), expected)


def test_chain_itself_stays_as_it_is() -> None:
    PassPipeline([NegateEachRelu()]).run(captured())
    assert chain(torch.ones(1)).item() == 1


def test_a_module_around_the_same_graph_is_no_change() -> None:
    program = fx.symbolic_trace(nn.Sequential(nn.Sequential(nn.Linear(2, 2))))
    result = PassPipeline([lambda given: fx.GraphModule(given, given.graph)]).run(program)
    assert result.graph_module is not program
    assert not result.changed


def test_a_pipeline_inside_of_a_pass_adds_to_the_history() -> None:
    def both(graph_module: fx.GraphModule) -> fx.GraphModule:
        return PassPipeline([double_the_result])(graph_module)

    program = PassPipeline([NegateEachRelu(), both])(captured())
    assert program.graph.history == ("negate-each-relu", "double-the-result", "both")


@pytest.mark.parametrize("model", ["resnet_tiny", "two_heads", "functional_convnet", "transformer_encoder_small"])
@pytest.mark.parametrize(
    "name", [name for name in list_passes() if not isinstance(contract_of(get_pass(name)), Approximate)]
)
def test_every_amount_of_fuel_leaves_a_program_that_computes_the_same(name: str, model: str) -> None:
    entry = model_zoo.get_model(model)
    program, inputs = fx.symbolic_trace(entry.build()), entry.example_inputs(batch=2)
    expected = program(*inputs)
    rtol, atol = (0.0, 0.0) if contract_of(get_pass(name)) is exact else (1e-3, 1e-4)
    edits = sum(len(report.edits) for report in PassPipeline(name).run(copy.deepcopy(program)).reports)
    for fuel in sorted({0, 1, 2, edits // 2, edits - 1, edits} & set(range(edits + 1))):
        result = PassPipeline(name).run(copy.deepcopy(program), fuel)
        assert sum(len(report.edits) for report in result.reports) == fuel
        torch.testing.assert_close(result.graph_module(*inputs), expected, rtol=rtol, atol=atol)
