"""Passes that misbehave: each gets its own error, with its name, its place, the node and the user's line."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from small_passes import NegateEachRelu, captured, change_nothing
from torch import nn

import fx
from fx.errors import PassError
from fx.pipelines.pipeline import PassPipeline


def refused(pass_: Any, program: fx.GraphModule | None = None) -> str:
    """Return the message with which a pipeline refuses a second pass."""
    with pytest.raises(PassError) as caught:
        PassPipeline([change_nothing, pass_]).run(captured() if program is None else program)
    return str(caught.value)


def first_call(graph_module: fx.GraphModule) -> fx.Node:
    return graph_module.graph.find_nodes(op="call_function")[0]


def test_a_pass_that_raises_is_named_with_its_error() -> None:
    def stumbles(graph_module: fx.GraphModule) -> None:
        raise KeyError("conv\nof another")

    with pytest.raises(PassError) as caught:
        PassPipeline([change_nothing, stumbles]).run(captured())
    assert str(caught.value) == (
        "pass 'stumbles' (2 of 2) raised KeyError: 'conv\\nof another'\n"
        "  try    the program may be edited in part: continue with a fresh one"
    )
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_pass_that_raises_at_an_edit_is_named_with_the_edit_and_its_line() -> None:
    message = refused(NegateEachRelu(stumble=2))
    assert message.startswith("pass 'negate-each-relu' (2 of 2) raised IndexError: list index out of range\n  where  ")
    assert "small_passes.py:" in message and "in chain:  return torch.relu" in message
    assert "\n  why    the last edit it began is number 2, relu_1 becomes a negation (" in message


def test_an_error_of_the_library_keeps_its_lines() -> None:
    def erases(graph_module: fx.GraphModule) -> None:
        graph_module.graph.erase_node(first_call(graph_module))

    message = refused(erases)
    assert message.startswith("pass 'erases' (2 of 2) raised GraphError: Tried to erase Node relu but it still had 1")
    assert "\n  value  %relu = call_function" in message
    assert "\n  try    give the users another input first" in message


def test_several_lines_of_a_foreign_error_stay_readable() -> None:
    def stumbles(graph_module: fx.GraphModule) -> None:
        raise ValueError("one\ntwo")

    assert refused(stumbles).startswith("pass 'stumbles' (2 of 2) raised ValueError: one\n         two\n  try ")


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_interruptions_pass_through(interruption: type[BaseException]) -> None:
    def interrupted(graph_module: fx.GraphModule) -> None:
        raise interruption

    with pytest.raises(interruption) as caught:
        PassPipeline([interrupted]).run(captured())
    assert not hasattr(caught.value, "__notes__")


@dataclass
class PassResult:
    graph_module: Any
    modified: bool


@pytest.mark.parametrize(
    "returned, what, remedy",
    [
        (True, "a bool", "return the GraphModule, or nothing after editing it in place"),
        (PassResult(None, True), "a PassResult", "return its graph_module"),
        (nn.ReLU(), "a ReLU", "return a GraphModule: capture the module with fx.symbolic_trace"),
        ((None, True), "a tuple", "return the GraphModule alone: whether it changed is read from the graph"),
        (
            torch.fx.symbolic_trace(nn.ReLU()),
            "a ReLU",
            "adapt a pass that is written for torch.fx: fx.interop.adapt(pass_)",
        ),
    ],
)
def test_the_error_for_a_pass_without_a_program_names_the_return_value(returned: Any, what: str, remedy: str) -> None:
    message = refused(lambda graph_module: returned)
    assert message.startswith(f"pass '<lambda>' (2 of 2) returned {what}, which is not a program\n  value  ")
    assert message.endswith(f"  try    {remedy}")


def test_a_pass_that_does_not_recompile_gets_an_error() -> None:
    def forgets(graph_module: fx.GraphModule) -> None:
        first_call(graph_module).target = torch.tanh

    assert refused(forgets) == (
        "pass 'forgets' (2 of 2) left a program that is out of date: "
        "the graph was edited, but the program not recompiled\n"
        "  why    it still runs the code of the graph as it was\n"
        "  try    call recompile() on the GraphModule after the last edit"
    )


def test_the_error_for_a_stale_nested_program_names_it() -> None:
    def forgets(graph_module: fx.GraphModule) -> None:
        first_call(graph_module.inner).target = torch.tanh  # type: ignore[arg-type]

    graph = fx.Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    program = fx.GraphModule({"inner": captured()}, graph)
    assert "out of date: in submodule 'inner': the graph was edited" in refused(forgets, program)


def test_a_pass_that_breaks_the_graph_is_named_with_the_node_and_its_line() -> None:
    def misorders(graph_module: fx.GraphModule) -> None:
        first, second, _ = graph_module.graph.find_nodes(op="call_function")
        second.append(first)

    message = refused(misorders)
    assert message.startswith(
        "pass 'misorders' (2 of 2) left a broken program: "
        "Argument 'relu' of Node 'relu_1' was used before it has been defined\n  where  "
    )
    assert "small_passes.py:" in message
    assert "\n  value  %relu_1 = call_function[torch.relu](%relu)\n  why    it stands behind its user" in message


def test_a_broken_edit_is_named() -> None:
    class Breaks(NegateEachRelu):
        name = "breaks"

        def rewrites(self, graph_module: fx.GraphModule) -> Any:
            for edit in super().rewrites(graph_module):
                yield edit
                first_call(graph_module).name = "output"
                return

    message = refused(Breaks())
    assert message.startswith("pass 'breaks' (2 of 2) left a broken program: Node redefined name output!")
    assert "; the last edit it began is number 1, relu becomes a negation (" in message


def test_a_program_that_cannot_be_written_is_the_fault_of_the_pass() -> None:
    class Unspeakable(NegateEachRelu):
        name = "unspeakable"

        def rewrites(self, graph_module: fx.GraphModule) -> Any:
            for edit in super().rewrites(graph_module):
                yield edit
                first_call(graph_module)._update((), {3: 4})  # type: ignore[dict-item]
                return

    message = refused(Unspeakable())
    assert message.startswith("pass 'unspeakable' (2 of 2) raised CodegenError: ")
    assert "the last edit it began is number 1" in message


def two(x: torch.Tensor, y: torch.Tensor, alpha: float = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
    return x + y * alpha, x


def drops_an_input(graph_module: fx.GraphModule) -> None:
    graph = graph_module.graph
    alpha = graph.find_nodes(op="placeholder")[2]
    first_call(graph_module).update_arg(1, 0.5)
    graph.erase_node(alpha)
    graph_module.recompile()


def test_a_changed_signature_is_refused() -> None:
    assert refused(drops_an_input, fx.symbolic_trace(two)) == (
        "pass 'drops-an-input' (2 of 2) changed the program's signature: "
        "the program's inputs are (x, y) instead of (x, y, alpha)\n"
        "  try    keep every placeholder, also one that nothing uses any more, "
        'or declare in the pass that it may: may_change = ("signature",)'
    )


def test_a_pass_may_make_its_declared_changes() -> None:
    @dataclass(frozen=True)
    class DropsAnInput:
        name: ClassVar[str] = "drops-an-input"
        may_change: ClassVar[tuple[str, ...]] = ("signature",)

        def __call__(self, graph_module: fx.GraphModule) -> None:
            drops_an_input(graph_module)

    program = PassPipeline([DropsAnInput()])(fx.symbolic_trace(two))
    assert program(torch.ones(1), torch.ones(1))[0].item() == 1.5


def test_a_permission_that_is_unknown_is_refused() -> None:
    class Odd:
        name = "odd"
        may_change = ("name",)

        def __call__(self, graph_module: fx.GraphModule) -> None: ...

    with pytest.raises(PassError) as caught:
        PassPipeline([Odd()])
    assert str(caught.value) == (
        "pass 'odd' may change 'name', which is unknown\n"
        "  try    may_change is a tuple of 'signature', 'result', 'writes', 'tensors', 'gradients', "
        "'non-finite', 'metadata', 'checks', 'sizes', 'tracing'"
    )


def test_a_result_of_another_structure_is_refused() -> None:
    def shortens(graph_module: fx.GraphModule) -> None:
        output = graph_module.graph.output_node()
        output.args = (output.args[0][:1],)
        graph_module.recompile()

    message = refused(shortens, fx.symbolic_trace(two))
    assert message.startswith(
        "pass 'shortens' (2 of 2) changed the structure of the program's result: "
        "the result has 1 elements instead of 2\n"
    )
    assert "\n  value  %output = output[output]((%add,))\n" in message


def test_a_write_that_is_dropped_is_refused() -> None:
    def counts(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 1

    def drops(graph_module: fx.GraphModule) -> None:
        (write,) = graph_module.graph.find_nodes(op="call_method")
        graph_module.graph.erase_node(write)
        graph_module.recompile()

    message = refused(drops, fx.symbolic_trace(counts))
    assert message.startswith(
        "pass 'drops' (2 of 2) changed what the program writes to: the program no longer writes to input 'x'\n"
        "  why    `%add_ = call_method[add_](%x, 1)` ("
    )
    assert "test_pipeline_failures.py:" in message


def test_a_write_to_a_tensor_of_the_program_is_refused() -> None:
    def scales(graph_module: fx.GraphModule) -> None:
        with torch.no_grad():
            graph_module.get_parameter("0.weight").mul_(2)

    model = nn.Sequential(nn.Linear(2, 2))
    assert refused(scales, fx.symbolic_trace(model)) == (
        "pass 'scales' (2 of 2) changed the program's tensors: the tensor '0.weight' of the program was written to\n"
        "  why    the traced module holds the same tensor and would compute something else from now on\n"
        "  try    put a new one in its place: setattr(module, name, torch.nn.Parameter(...)), "
        'or declare in the pass that it may: may_change = ("tensors",)'
    )


def test_a_broken_program_is_refused_before_any_pass() -> None:
    program = captured()
    first_call(program).name = "relu_1"
    with pytest.raises(PassError) as caught:
        PassPipeline([change_nothing]).run(program)
    assert str(caught.value).startswith("the program given to the pipeline is broken: Node redefined name relu_1!")


def test_a_program_that_was_not_recompiled_is_refused_before_any_pass() -> None:
    program = captured()
    first_call(program).target = operator.neg
    with pytest.raises(PassError, match="the program given to the pipeline is broken: the graph was edited, but"):
        PassPipeline([change_nothing]).run(program)


def test_objects_that_are_no_program_are_refused() -> None:
    with pytest.raises(PassError) as caught:
        PassPipeline([change_nothing]).run(nn.ReLU())  # type: ignore[arg-type]
    what, where, value, remedy = str(caught.value).splitlines()
    assert what == "'graph_module' of PassPipeline.run is a GraphModule, not a ReLU"
    assert where.startswith(f"  where  {__file__}:")
    assert (value, remedy) == ("  value  ReLU()", "  try    capture it first: fx.symbolic_trace(module)")


@pytest.mark.parametrize("fuel", [-1, "2", 1.5, True, [], float("nan"), float("inf")], ids=repr)
def test_fuel_that_is_no_number_of_edits_is_refused(fuel: Any) -> None:
    with pytest.raises(PassError, match=re.escape(f"is an int of at least 0 or None, not {fuel!r}\n")):
        PassPipeline([change_nothing]).run(captured(), fuel=fuel)


def test_a_program_of_torch_fx_is_to_be_converted_first() -> None:
    with pytest.raises(PassError, match=r"not a ReLU\n(.*\n)*  try    convert it first: fx.interop.from_torch"):
        PassPipeline([change_nothing]).run(torch.fx.symbolic_trace(nn.ReLU()))  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [3, [None], nn.ReLU()], ids=repr)
def test_objects_that_are_no_pass_are_refused(given: Any) -> None:
    with pytest.raises(
        PassError, match=r"(an? (NoneType|ReLU) is not a pass|, not an int)\n(.|\n)*give a function from GraphModule"
    ):
        PassPipeline(given)


def test_an_exception_without_words_is_named_by_its_type() -> None:
    def stumbles(graph_module: fx.GraphModule) -> None:
        raise NotImplementedError

    assert refused(stumbles).startswith("pass 'stumbles' (2 of 2) raised NotImplementedError\n  try ")


class Fails:
    """A pass with an attribute that cannot be read."""

    def __init__(self, attribute: str) -> None:
        self.attribute = attribute

    def __call__(self, graph_module: fx.GraphModule) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name == self.__dict__["attribute"]:
            raise ZeroDivisionError("division by zero")
        raise AttributeError(name)


@pytest.mark.parametrize("attribute", ["name", "may_change"])
def test_passes_that_cannot_be_asked_are_refused(attribute: str) -> None:
    with pytest.raises(PassError) as failure:
        PassPipeline([Fails(attribute)])
    assert str(failure.value) == (
        f"a Fails is not a pass: its {attribute} cannot be read\n"
        "  why    ZeroDivisionError: division by zero\n"
        f"  try    make its attribute {attribute} a plain value, or leave it out"
    )


def test_a_contract_that_cannot_be_read_is_reported_where_it_is_read() -> None:
    pipeline = PassPipeline([Fails("contract")])
    with pytest.raises(PassError, match="its contract cannot be read"):
        _ = pipeline.contract


@pytest.mark.parametrize("may_change", [3, None, [3], "signature", ("signature", "zzz")])
def test_may_change_is_a_tuple_of_known_names(may_change: Any) -> None:
    def odd(graph_module: fx.GraphModule) -> None: ...

    odd.may_change = may_change  # type: ignore[attr-defined]
    with pytest.raises(PassError, match=r"may_change of pass 'odd' is|pass 'odd' may change"):
        PassPipeline([odd])


_NO_PASSES = [
    None, 0, 1.5, True, "", " ", ",", "zzz", b"x", {1: 2}, [None], [[3]], int, object(), torch.ones(2), nn.ReLU(),
    [nn.ReLU()], nn.Linear,
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(_NO_PASSES)))
def test_arbitrary_objects_that_are_no_pass_are_refused(number: int) -> None:
    with pytest.raises(PassError):
        PassPipeline(_NO_PASSES[number])  # type: ignore[arg-type]


def test_a_pipeline_of_nothing_runs_and_prints() -> None:
    program = fx.symbolic_trace(lambda x: x + 1)
    result = PassPipeline([]).run(program)
    assert result.graph_module is program
    assert str(result).split() == ["pass", "edits", "nodes", "seconds", "changed"]
    assert PassPipeline([]).bisect(program, lambda _: True) is None


def test_the_error_for_several_undeclared_changes_lists_them_all() -> None:
    def drops_an_input_and_boxes_the_result(graph_module: fx.GraphModule) -> None:
        drops_an_input(graph_module)
        output = graph_module.graph.output_node()
        output.args = ([output.args[0]],)
        graph_module.recompile()

    message = refused(drops_an_input_and_boxes_the_result, fx.symbolic_trace(two))
    assert 'may_change = ("signature", "result")' in message
