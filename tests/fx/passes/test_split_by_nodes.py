"""Sets of nodes of a program become submodules, and everything else stays."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from building import body
from torch import Tensor, nn

import fx
from fx.errors import PassError
from fx.passes.split_module import split_by_nodes
from model_zoo import get_model, list_models


def split(program: fx.GraphModule, *sets: str) -> fx.GraphModule:
    """The nodes of each set, given by names, in one submodule each."""
    nodes = {node.name: node for node in program.graph.nodes}
    result = split_by_nodes(program, [[nodes[name] for name in names.split()] for names in sets])
    result.graph.lint()
    for part in result.children():
        if isinstance(part, fx.GraphModule):
            part.graph.lint()
    return result


def diamond(x: Tensor) -> Tensor:
    left, right = torch.relu(x), torch.neg(x)
    return (left + 1) * (right - 1)


def test_a_set_becomes_a_submodule_and_the_rest_stays_in_order() -> None:
    program = fx.symbolic_trace(diamond)
    result = split(program, "neg sub")
    assert body(result) == [
        "relu = torch.relu(x)",
        "add = relu + 1",
        "submod_0 = self.submod_0(x)",
        "mul = add * submod_0",
        "return mul",
    ]
    assert body(result.submod_0) == ["neg = torch.neg(x)", "sub = neg - 1", "return sub"]
    x = torch.randn(4)
    assert torch.equal(result(x), diamond(x))
    assert [node.name for node in program.graph.nodes] == ["x", "relu", "neg", "add", "sub", "mul", "output"]


def test_a_set_runs_earlier_where_something_else_needs_its_value() -> None:
    def function(x: Tensor) -> Tensor:
        y = torch.relu(x)
        z = y + 1
        w = torch.exp(x)
        return z * w

    result = split(fx.symbolic_trace(function), "relu exp")
    assert body(result) == [
        "submod_0 = self.submod_0(x)",
        "getitem = submod_0[0]",
        "getitem_1 = submod_0[1]",
        "add = getitem + 1",
        "mul = add * getitem_1",
        "return mul",
    ]
    assert torch.equal(result(x := torch.randn(4)), function(x))


def test_several_sets_hand_values_to_each_other() -> None:
    result = split(fx.symbolic_trace(diamond), "relu neg", "add sub", "mul")
    assert body(result) == [
        "submod_0 = self.submod_0(x)",
        "getitem = submod_0[0]",
        "getitem_1 = submod_0[1]",
        "submod_1 = self.submod_1(getitem, getitem_1)",
        "getitem_2 = submod_1[0]",
        "getitem_3 = submod_1[1]",
        "submod_2 = self.submod_2(getitem_2, getitem_3)",
        "return submod_2",
    ]
    assert torch.equal(result(x := torch.randn(4)), diamond(x))


def test_a_value_that_is_used_inside_outside_and_in_another_set_is_returned_once() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = torch.relu(x)
        return y, y + 1, y.neg()

    result = split(fx.symbolic_trace(function), "relu add", "neg")
    assert body(result.submod_0)[-1] == "return (relu, add)"
    assert all(map(torch.equal, result(x := torch.randn(4)), function(x)))


def test_sets_without_inputs_and_without_results() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    ones = graph.call_function(torch.ones, (3,))
    two = graph.call_function(operator.mul, (ones, 2))
    graph.call_method("add_", (x, 1))
    graph.call_function(torch.relu, (x,))
    graph.output(graph.call_function(torch.add, (x, two)))
    result = split(fx.GraphModule(nn.Module(), graph), "ones mul", "add_", "relu")
    assert body(result) == [
        "submod_0 = self.submod_0()",
        "submod_1 = self.submod_1(x)",
        "submod_2 = self.submod_2(x)",
        "add = torch.add(x, submod_0)",
        "return add",
    ]
    assert body(result.submod_1)[-1] == body(result.submod_2)[-1] == "return ()"
    assert torch.equal(result(torch.zeros(3)), torch.full((3,), 3.0))


def test_attributes_that_one_set_uses_go_with_it() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mine, self.ours = nn.Parameter(torch.rand(2)), nn.Parameter(torch.rand(2))
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            ours = self.ours
            return self.inner(x * self.mine * ours) + ours

    model = Model()
    program = fx.symbolic_trace(model)
    result = split(program, "mul mul_1 inner")
    assert sorted(result.state_dict()) == ["ours", "submod_0.inner.bias", "submod_0.inner.weight", "submod_0.mine"]
    assert torch.equal(result(x := torch.rand(1, 2)), model(x))
    named = split(program, "ours mul mul_1")  # a member for everybody
    assert body(named) == [
        "submod_0 = self.submod_0(x)",
        "getitem = submod_0[0]",
        "getitem_1 = submod_0[1]",
        "inner = self.inner(getitem)",
        "add = inner + getitem_1",
        "return add",
    ]
    assert torch.equal(named(x), model(x))


def test_metadata_lines_and_origins_are_kept() -> None:
    program = fx.symbolic_trace(diamond)
    for node in program.graph.nodes:
        node.meta["val"] = node.name
    result = split(program, "relu neg")
    nodes = {node.name: node for part in (result, result.submod_0) for node in part.graph.nodes}
    for node in program.graph.nodes:
        if node.op.startswith("call"):
            assert (nodes[node.name].meta, nodes[node.name].source) == (node.meta, node.source)
            assert nodes[node.name].origins == (node.name,)
    assert nodes["submod_0"].origins == ("relu", "neg")
    assert (nodes["getitem"].origins, nodes["getitem"].meta) == (("relu",), {"val": "relu"})
    assert nodes["getitem"].source is not None


def test_empty_sets_and_no_sets_leave_the_program_as_it_is() -> None:
    program = fx.symbolic_trace(diamond)
    assert split(program).code == program.code
    assert split(program, "", "relu").meta["partition_names"] == {"submod_1"}


def test_submodules_get_free_names() -> None:
    program = split(fx.symbolic_trace(diamond), "relu")
    again = split(program, "neg", "mul")
    assert sorted(name for name, _ in again.named_children()) == ["submod_0", "submod_1", "submod_2"]
    assert torch.equal(again(x := torch.randn(4)), diamond(x))


# Refused.


def test_a_path_that_leaves_a_set_and_comes_back_is_refused() -> None:
    with pytest.raises(PassError) as caught:
        split(fx.symbolic_trace(diamond), "relu mul")
    what, where, value, why, remedy = str(caught.value).splitlines()
    assert what == "submod_0 cannot be one submodule: a path leaves it and comes back"
    assert __file__ in where and "(left + 1) * (right - 1)" in where
    assert value == "  value  %relu (submod_0) -> %add; %add -> %mul (submod_0)"
    assert why == "  why    a submodule runs as a whole"
    assert remedy == "  try    put these nodes into one submodule, or divide those that they are in"


def test_sets_that_need_each_other_are_refused() -> None:
    def function(x: Tensor) -> Tensor:
        first, second = torch.relu(x), torch.neg(x)
        return first.exp() + second.sin()

    with pytest.raises(PassError) as caught:
        split(fx.symbolic_trace(function), "relu sin", "neg exp")
    assert str(caught.value).startswith("cycle exists between partitions! submod_0, submod_1 need each other\n")
    for step in ("%relu (submod_0) -> %exp (submod_1)", "%neg (submod_1) -> %sin (submod_0)"):
        assert step in str(caught.value)


def test_a_set_around_a_write_is_refused_with_the_reason() -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        z = y + 1
        y.add_(1)
        return y + z

    program = fx.symbolic_trace(function)
    with pytest.raises(PassError, match=r"a submodule runs as a whole; `%add_` writes to `%mul`"):
        split(program, "mul add_")
    result = split(program, "mul add add_")
    assert torch.equal(result(x := torch.randn(3)), function(x))


@pytest.mark.parametrize(
    "sets, problem",
    [
        (("relu", "neg relu"), "`%relu` is in two sets, those of submod_0 and submod_1"),
        (("relu relu",), "`%relu` is twice in one set"),
        (("x",), "`%x` is an input or the output of the program, which stay outside"),
        (("output",), "`%output` is an input or the output of the program, which stay outside"),
    ],
)
def test_sets_that_make_no_sense_are_refused(sets: tuple[str, ...], problem: str) -> None:
    with pytest.raises(PassError) as caught:
        split(fx.symbolic_trace(diamond), *sets)
    assert str(caught.value).splitlines()[0] == problem


def test_nodes_of_another_graph_are_refused() -> None:
    program, other = fx.symbolic_trace(diamond), fx.symbolic_trace(diamond)
    with pytest.raises(PassError, match=r"`%relu` is not in the program's graph\n  where  .*\n  value  %relu : "):
        split_by_nodes(program, [[list(other.graph.nodes)[1]]])
    output = program.graph.output_node()
    mul = output.prev
    output.args = (mul.prev,)
    program.graph.erase_node(mul)
    with pytest.raises(PassError, match="`%mul` is not in the program's graph"):
        split_by_nodes(program, [[mul]])


@pytest.mark.parametrize("name", [name for name in list_models() if "small" in get_model(name).tags])
def test_small_models_compute_the_same_bit_for_bit(name: str) -> None:
    model = get_model(name)
    module = model.build()
    program = fx.symbolic_trace(module)
    calls = [node for node in program.graph.nodes if node.op.startswith("call")]
    result = split_by_nodes(program, [calls[index : index + 2] for index in range(0, len(calls), 5)])
    inputs = model.example_inputs(batch=2)
    torch.testing.assert_close(result(*inputs), module(*inputs), rtol=0, atol=0)
