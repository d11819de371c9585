"""Passes written for torch.fx edit our programs as if they had been written for them."""

from __future__ import annotations

import copy
import operator
from typing import Any

import pytest
import torch
import torch.fx
from building import Calling
from torch import nn
from torch.fx.passes.infra.pass_base import PassBase, PassResult

import fx
from fx.code.codegen import CodeGen
from fx.errors import InteropError
from fx.interop import AdaptedPass, adapt, to_torch
from fx.passes import contract_of, exact, pass_name
from fx.pipelines.pipeline import PassPipeline
from fx.pipelines.verification import find_stale_code
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import with_data

X = torch.linspace(-1.0, 1.0, 6).reshape(2, 3)


def program() -> fx.GraphModule:
    box = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    return fx.symbolic_trace(Calling(lambda m, x: m.box(x + 1) * m.scale, box=box, scale=torch.full((3,), 2.0)))


def subtract(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    for node in graph_module.graph.find_nodes(op="call_function", target=operator.add):
        node.target = operator.sub
    graph_module.recompile()
    return graph_module


def test_edits_in_place_reach_the_program_itself() -> None:
    original = program()
    graph, nodes = original.graph, list(original.graph.nodes)
    assert adapt(subtract)(original) is original
    assert original.graph is graph
    assert all(node is same for node, same in zip(graph.nodes, nodes, strict=True))
    assert "add = x - 1" in original.code
    expected = torch.relu(getattr(original.box, "0")(X - 1)) * 2
    assert torch.equal(original(X), expected)


def test_nodes_are_inserted_moved_and_erased_where_the_pass_did() -> None:
    def pass_(graph_module: torch.fx.GraphModule) -> None:
        x, add, linear, relu, scale, mul, _ = graph_module.graph.nodes
        with graph_module.graph.inserting_before(add):
            negative = graph_module.graph.call_function(operator.neg, (x,))
            negative.meta = add.meta.copy()
        add.args = (negative, 2)
        x.append(scale)
        relu.replace_all_uses_with(linear)
        graph_module.graph.erase_node(relu)
        mul.name, mul.kwargs, mul.type = "product", {}, torch.Tensor
        graph_module.recompile()

    original = program()
    nodes = {node.name: node for node in original.graph.nodes}
    line = nodes["add"].source
    revision = original.graph.revision
    adapt(pass_)(original)
    original.graph.lint()
    assert original.graph.revision > revision
    assert original.code.strip().splitlines()[1:] == [
        "    scale = self.scale",
        "    neg = -x;  x = None",
        "    add = neg + 2;  neg = None",
        '    box_0 = getattr(self.box, "0")(add);  add = None',
        "    product : torch.Tensor = box_0 * scale;  box_0 = scale = None",
        "    return product",
    ]
    assert [node.name for node in original.graph.nodes] == ["x", "scale", "neg", "add", "box_0", "product", "output"]
    new = next(node for node in original.graph.nodes if node.name == "neg")
    assert (new.source, new.origins) == (line, ("add",))
    assert nodes["mul"].name == "product"
    assert nodes["add"] in original.graph.nodes
    assert nodes["box_1"] not in list(original.graph.nodes)
    assert list(nodes["box_0"].users) == [nodes["mul"]]
    assert torch.equal(original(X), getattr(original.box, "0")(2 - X) * 2)


def test_nodes_without_meta_get_origins_from_their_neighbours() -> None:
    def pass_(graph_module: torch.fx.GraphModule) -> None:
        graph = graph_module.graph
        with graph.inserting_before(graph.output_node()):
            graph.output_node().args = (graph.call_function(operator.neg, graph.output_node().args),)

    original = program()
    adapt(pass_)(original)
    new = original.graph.find_nodes(op="call_function", target=operator.neg)[0]
    assert new.origins == ("mul",)
    assert new.source is not None


def test_a_program_that_is_left_alone_keeps_its_revision() -> None:
    original = program()
    revision, code = original.graph.revision, original.code
    assert adapt(lambda graph_module: None)(original) is original
    assert (original.graph.revision, original.code) == (revision, code)


def test_changes_of_modules_and_state_reach_the_program() -> None:
    def pass_(graph_module: torch.fx.GraphModule) -> None:
        graph_module.add_submodule("box.1", nn.Tanh())
        graph_module.add_submodule("box.more.deep", nn.Identity())
        graph_module.register_buffer("scale", graph_module.scale * 2)
        graph_module.register_parameter("extra", nn.Parameter(torch.ones(1)))
        graph_module.meta["seen"] = True
        del graph_module.note
        graph_module.delete_submodule("unused")

    original = program()
    original.note, original.unused = "old", nn.ReLU()
    original(X)  # from here on children are also found in another place
    box, scale = original.box, original.scale
    recorded: list[Any] = []
    handle = original.register_forward_hook(lambda *_: recorded.append(1))
    adapt(pass_)(original)
    assert original.box is box
    assert type(getattr(box, "1")) is nn.Tanh
    assert type(box.more.deep) is nn.Identity
    assert torch.equal(scale, torch.full((3,), 2.0))
    assert list(original.state_dict()) == ["extra", "scale", "box.0.weight", "box.0.bias"]
    assert original.meta == {"seen": True}
    assert not hasattr(original, "note")
    assert not hasattr(original, "unused")
    assert torch.equal(original(X), torch.tanh(getattr(box, "0")(X + 1)) * 4)
    handle.remove()
    original(X)
    assert recorded == [1]


def calling_a_program() -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    return fx.GraphModule({"inner": fx.symbolic_trace(lambda x: x + 1)}, graph)


def test_programs_inside_are_edited_in_place_too() -> None:
    outer = calling_a_program()
    inner = outer.inner

    def pass_(graph_module: torch.fx.GraphModule) -> None:
        subtract(graph_module.inner)

    adapt(pass_)(outer)
    assert outer.inner is inner
    assert outer(3) == inner(3) == 2


def test_a_graph_that_the_pass_exchanged_takes_the_place_of_the_old_one() -> None:
    def pass_(graph_module: torch.fx.GraphModule) -> None:
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        graph.output(graph.call_function(torch.sin, (x,), name="add"))
        graph_module.graph = graph

    original = program()
    line = next(node.source for node in original.graph.nodes if node.name == "add")
    adapt(pass_)(original)
    assert [node.name for node in original.graph.nodes] == ["x", "add", "output"]
    _, add, _ = original.graph.nodes
    assert (add.source, add.origins) == (line, ("add", "mul"))  # it is returned in the place of the old add
    assert torch.equal(original(X), torch.sin(X))


def forgets(graph_module: torch.fx.GraphModule) -> None:
    for node in graph_module.graph.find_nodes(op="call_function", target=operator.add):
        node.target = operator.sub


def test_a_pass_that_forgets_to_recompile_leaves_the_code_that_torch_fx_runs() -> None:
    original = program()
    theirs = to_torch(original)
    forgets(theirs)
    expected = theirs(X)
    adapt(forgets)(original)
    assert torch.equal(original(X), expected)
    violation = find_stale_code(original)
    assert violation is not None and "recompile()" in str(violation.error())
    original.recompile()
    assert find_stale_code(original) is None and not torch.equal(original(X), expected)


def test_a_copy_that_is_edited_and_not_recompiled_is_out_of_date() -> None:
    def pass_(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        graph_module = copy.deepcopy(graph_module)
        forgets(graph_module)
        return graph_module

    assert find_stale_code(adapt(pass_)(program())) is not None


def test_a_program_inside_that_is_not_recompiled_is_out_of_date() -> None:
    outer = calling_a_program()

    def pass_(graph_module: torch.fx.GraphModule) -> None:
        graph_module.recompile()
        forgets(graph_module.inner)

    adapt(pass_)(outer)
    assert outer(3) == outer.inner(3) == 4
    assert find_stale_code(outer) is not None


@pytest.mark.parametrize("form", [lambda p: p, lambda p: (p, True), lambda p: PassResult(p, True), lambda p: None])
def test_all_results_that_torch_fx_accepts_are_accepted(form: Any) -> None:
    original = program()
    assert adapt(lambda graph_module: form(subtract(graph_module)))(original) is original
    assert "x - 1" in original.code


def test_pass_bases_are_passes() -> None:
    class SubtractPass(PassBase):
        def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
            return PassResult(subtract(graph_module), True)

    pass_ = adapt(SubtractPass())
    assert pass_.name == "subtract-pass"
    assert "x - 1" in pass_(program()).code


def test_another_program_is_returned_as_one_of_ours() -> None:
    def pass_(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        return subtract(torch.fx.GraphModule(graph_module, graph_module.graph.__deepcopy__(), "Other"))

    original = program()
    original.graph.history = ("first",)
    code = original.code
    result = adapt(pass_)(original)
    assert isinstance(result, fx.GraphModule)
    assert (type(result).__name__, result.graph.history) == ("Other", ("first",))
    assert original.code == code
    assert result.scale is original.scale
    lines = {node.name: node.source for node in original.graph.nodes}
    assert all(node.source == lines[node.name] or lines[node.name] is None for node in result.graph.nodes)
    assert all(node.origins == (node.name,) for node in result.graph.nodes)


def test_name_and_contract_are_the_passes_own() -> None:
    def rename_me(graph_module: Any) -> None: ...

    assert adapt(rename_me).name == pass_name(adapt(rename_me)) == "rename-me"
    assert contract_of(adapt(rename_me)) == fx.passes.close
    assert adapt(rename_me).may_change == ("metadata",)
    rename_me.name, rename_me.contract, rename_me.may_change = "mine", exact, ("signature",)  # type: ignore[attr-defined]
    assert (adapt(rename_me).name, contract_of(adapt(rename_me))) == ("mine", exact)
    assert adapt(rename_me).may_change == ("signature", "metadata")
    assert repr(adapt(rename_me)) == f"adapt({rename_me!r})"


def test_pipelines_run_adapted_passes() -> None:
    pipeline = PassPipeline([adapt(subtract), "remove-dead-code"])
    assert str(pipeline) == "subtract,remove-dead-code"
    result = pipeline.run(program())
    assert [(report.name, report.changed) for report in result.reports] == [
        ("subtract", True),
        ("remove-dead-code", False),
    ]
    assert result.graph_module.graph.history == ("subtract",)
    assert "# after the passes subtract" in result.graph_module.code


def test_a_pass_that_raises_leaves_the_program_as_it_was() -> None:
    def fails(graph_module: torch.fx.GraphModule) -> None:
        subtract(graph_module)
        raise KeyError("oh")

    original = program()
    code, revision = original.code, original.graph.revision
    with pytest.raises(KeyError) as caught:
        adapt(fails)(original)
    assert caught.value.__notes__ == ["in the pass 'fails', adapted from torch.fx"]
    assert (original.code, original.graph.revision) == (code, revision)


def test_a_pass_that_leaves_a_broken_graph_is_refused_and_changes_nothing() -> None:
    def breaks(graph_module: torch.fx.GraphModule) -> None:
        nodes = list(graph_module.graph.nodes)
        nodes[2].append(nodes[1])

    original = program()
    code = original.code
    with pytest.raises(InteropError, match="not well formed"):
        adapt(breaks)(original)
    original.recompile()
    assert original.code == code


@pytest.mark.parametrize("result", [3, "text", nn.ReLU(), (1, 2), False])
def test_a_pass_that_returns_no_program_is_refused(result: Any) -> None:
    def returns(graph_module: Any) -> Any:
        return result

    original = program()
    with pytest.raises(InteropError, match="the pass 'returns' returned no program") as caught:
        adapt(returns)(original)
    assert not isinstance(caught.value, fx.PassError)  # with which a pass refuses a program
    assert f"an object of class {type(result).__name__}" in str(caught.value)


def test_a_pass_with_an_unconvertible_result_changes_nothing() -> None:
    def writes_no_code(graph_module: torch.fx.GraphModule) -> None:
        def transform(body: list[str]) -> list[str]:
            raise KeyError("not this body")

        subtract(graph_module)
        graph_module.graph.on_generate_code(lambda _: transform)

    original = program()
    code, revision = original.code, original.graph.revision
    with pytest.raises(InteropError, match="the result of the pass cannot be converted") as caught:
        adapt(writes_no_code)(original)
    assert caught.value.__notes__ == ["in the pass 'writes-no-code', adapted from torch.fx"]
    assert (original.graph.python_code("self").src, original.graph.revision) == (code, revision)


def test_a_pass_gets_the_data_that_it_asks_for() -> None:
    class AddsCalls:
        def __init__(self, calls: tuple[Any, ...] = ()) -> None:
            self.calls = calls

        def with_data(self, data: Any) -> AddsCalls:
            return AddsCalls(tuple(data))

        def __call__(self, graph_module: torch.fx.GraphModule) -> None:
            graph_module.meta["calls"] = len(self.calls)

    arguments = with_data(adapt(AddsCalls()), lambda: [Arguments((X,))] * 3)
    assert isinstance(arguments, AdaptedPass)
    assert arguments(program()).meta["calls"] == 3
    assert not hasattr(adapt(subtract), "with_data")
    asks_for_none = adapt(subtract)
    assert with_data(asks_for_none, lambda: pytest.fail("nobody asked")) is asks_for_none


def test_inputs_that_a_pass_adds_behind_a_computation_are_inputs() -> None:
    def adds_an_input(graph_module: torch.fx.GraphModule) -> None:
        graph = graph_module.graph
        add = next(node for node in graph.nodes if node.target is operator.add)
        with graph.inserting_after(add):
            offset = graph.placeholder("offset", default_value=0)
        with graph.inserting_after(offset):
            both = graph.call_function(operator.sub, (add, offset))
        add.replace_all_uses_with(both, delete_user_cb=lambda user: user is not both)
        graph_module.recompile()

    original = program()
    expected = original(X - 2)
    assert adapt(adds_an_input)(original) is original
    assert [node.name for node in original.graph.nodes][:4] == ["x", "offset", "add", "sub"]
    assert fx.analysis.verify.find_violation(original.graph) is None
    torch.testing.assert_close(original(X, 2), expected)
    torch.testing.assert_close(fx.Interpreter(original).run(X, 2), expected)


def test_objects_that_are_no_pass_are_refused() -> None:
    with pytest.raises(fx.PassError, match=r"adapt takes a pass, not an object of class int"):
        adapt(3)  # type: ignore[arg-type]
    with pytest.raises(fx.PassError, match=r"adapt takes a pass, not an object of class ReLU"):
        adapt(nn.ReLU())
    with pytest.raises(InteropError, match=r"to_torch takes an fx.GraphModule"):
        adapt(subtract)(nn.ReLU())  # type: ignore[arg-type]


def test_a_program_that_torch_fx_cannot_hold_is_refused_by_the_pass() -> None:
    class KeywordsOnly(nn.Module):
        def forward(self, *, x: torch.Tensor, y: Any = None, z: torch.Tensor) -> torch.Tensor:
            return x + z

    program = fx.symbolic_trace(KeywordsOnly())
    with pytest.raises(InteropError, match=r"torch\.fx has no keyword-only inputs, and 'z' is one"):
        to_torch(program)
    with pytest.raises(fx.PassError, match=r"is written for torch\.fx, which cannot hold this program"):
        adapt(lambda graph_module: graph_module)(program)


def test_a_program_with_a_foreign_code_generator_is_refused_by_the_pass() -> None:
    class OwnCode(CodeGen):
        pass

    original = program()
    original.graph.set_codegen(OwnCode())
    with pytest.raises(fx.PassError, match=r"which cannot hold this program") as caught:
        adapt(subtract)(original)
    assert "writes its code with" in str(caught.value)


def test_torch_fx_captures_after_a_pass_that_recaptured_a_program_specialized_on_none() -> None:
    """torch.fx itself does not: in its 2.13 every later capture in the process raises a KeyError."""

    def again(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        return torch.fx.symbolic_trace(graph_module)

    program = fx.symbolic_trace(lambda x, y=None: x + 1 if y is None else x + y, concrete_args={"y": None})
    assert fx.interop.adapt(again)(program)(torch.ones(2)).tolist() == [2, 2]
    assert torch.fx.symbolic_trace(lambda x: x + 1)(1) == 2
