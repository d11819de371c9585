"""Running a program node by node, and rebuilding it."""

from __future__ import annotations

import operator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from fx.node import OPCODES

from .libraries import refuses


class Net(nn.Module):
    """One node of each kind."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x, shift=1.0):
        return torch.relu(self.linear(x) * self.scale).sum(dim=0) + shift


@pytest.fixture
def module(library: ModuleType):
    """The captured net."""
    torch.manual_seed(0)
    return library.symbolic_trace(Net())


X = torch.linspace(-1, 1, 6).reshape(2, 3)


def test_each_kind_of_node_has_its_method(library: ModuleType, module) -> None:
    calls = []

    def recording(op: str):
        def method(self, target, args, kwargs):
            calls.append((op, target, len(args), kwargs))
            return getattr(library.Interpreter, op)(self, target, args, kwargs)

        return method

    recorder = type("Recorder", (library.Interpreter,), {op: recording(op) for op in OPCODES})
    assert torch.equal(recorder(module).run(X), module(X))
    assert calls == [
        ("placeholder", "x", 0, {}),
        ("placeholder", "shift", 1, {}),
        ("call_module", "linear", 1, {}),
        ("get_attr", "scale", 0, {}),
        ("call_function", operator.mul, 2, {}),
        ("call_function", torch.relu, 1, {}),
        ("call_method", "sum", 1, {"dim": 0}),
        ("call_function", operator.add, 2, {}),
        ("output", "output", 1, {}),
    ]


def test_every_node_goes_through_run_node(library: ModuleType, module) -> None:
    values: dict[str, Any] = {}

    class Recording(library.Interpreter):
        def run_node(self, n):
            values[n.name] = super().run_node(n)
            return values[n.name]

    Recording(module).run(X, 2.0)
    assert list(values) == [node.name for node in module.graph.nodes]
    assert values["shift"] == 2.0
    assert torch.equal(values["output"], module(X, 2.0))


def test_methods_may_change_the_computation(library: ModuleType, module) -> None:
    class Swapped(library.Interpreter):
        def call_function(self, target, args, kwargs):
            return super().call_function(torch.neg if target is torch.relu else target, args, kwargs)

    expected = torch.neg(module.linear(X) * module.scale).sum(dim=0) + 1.0
    assert torch.equal(Swapped(module).run(X), expected)


def test_values_are_freed_after_their_last_use(library: ModuleType, module) -> None:
    recorded = []

    class Watching(library.Interpreter):
        def run_node(self, n):
            recorded.append([node.name for node in self.env])
            return super().run_node(n)

    interpreter = Watching(module)
    interpreter.run(X)
    assert recorded[-3:] == [["shift", "relu"], ["shift", "sum_1"], ["add"]]
    assert [node.name for node in interpreter.env] == ["output"]


def test_values_may_be_kept(library: ModuleType, module) -> None:
    interpreter = library.Interpreter(module, garbage_collect_values=False)
    interpreter.run(X)
    assert [node.name for node in interpreter.env] == [node.name for node in module.graph.nodes]


def test_initial_values_replace_nodes(library: ModuleType, module) -> None:
    relu = module.graph.find_nodes(op="call_function", target=torch.relu)[0]
    x = torch.ones(2, 3)
    ran = []

    class Recording(library.Interpreter):
        def run_node(self, n):
            ran.append(n.name)
            return super().run_node(n)

    result = Recording(module).run(X, initial_env={relu: x})
    assert torch.equal(result, x.sum(dim=0) + 1.0)
    assert "relu" not in ran


def test_another_graph_may_be_run_on_the_module(library: ModuleType, module) -> None:
    graph = library.Graph()
    graph.output(graph.get_attr("scale"))
    assert library.Interpreter(module, graph=graph).run() is module.scale


def test_plain_modules_with_a_graph_are_run(library: ModuleType, module) -> None:
    holder = Net()
    holder.graph = module.graph
    assert library.Interpreter(holder).run(X).shape == (3,)


def test_variadic_inputs_take_the_rest_as_a_list(library: ModuleType) -> None:
    def root(x, *rest):
        return x, rest

    captured = library.symbolic_trace(root)
    assert library.Interpreter(captured).run(1, 2, 3) == (1, [2, 3])


def test_further_inputs_are_ignored(library: ModuleType, module) -> None:
    assert torch.equal(library.Interpreter(module).run(X, 1.0, "extra"), module(X))


def test_missing_input_is_named(library: ModuleType, module) -> None:
    with refuses(library, RuntimeError, match="x"):
        library.Interpreter(module).run()


def test_boxed_inputs_are_cleared(library: ModuleType, module) -> None:
    inputs = [X, 2.0]
    result = library.Interpreter(module).boxed_run(inputs)
    assert inputs == []
    assert torch.equal(result, module(X, 2.0))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_boxed_inputs_of_another_number_are_refused_and_kept(library: ModuleType, module, count: int) -> None:
    inputs = [X] * count
    with refuses(library, RuntimeError, match=f"{count}"):
        library.Interpreter(module).boxed_run(inputs)
    assert len(inputs) == count


def test_missing_attribute_is_named(library: ModuleType, module) -> None:
    with refuses(library, RuntimeError, match="linear.nothing"):
        library.Interpreter(module).fetch_attr("linear.nothing.weight")
    assert library.Interpreter(module).fetch_attr("linear.weight") is module.linear.weight


def test_arguments_are_mapped_to_values(library: ModuleType, module) -> None:
    interpreter = library.Interpreter(module)
    x, shift, *_ = module.graph.nodes
    interpreter.env = {x: 1, shift: 2}
    assert interpreter.map_nodes_to_values((x, [shift, {"k": x}], "text"), x) == (1, [2, {"k": 1}], "text")
    add = module.graph.find_nodes(op="call_function", target=operator.add)[0]
    interpreter.env[add.args[0]] = 5
    assert interpreter.fetch_args_kwargs_from_env(add) == ((5, 2), {})


def test_value_that_is_not_there_is_named(library: ModuleType, module) -> None:
    interpreter = library.Interpreter(module)
    x, shift, *_ = module.graph.nodes
    with refuses(library, RuntimeError, match="x"):
        interpreter.map_nodes_to_values((x,), shift)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_errors_keep_their_type_and_name_the_node(library: ModuleType) -> None:
    def root(x):
        return torch.relu(x).reshape(7, 7)

    captured = library.symbolic_trace(root)
    with pytest.raises(RuntimeError) as caught:
        library.Interpreter(captured).run(X)
    message = " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "reshape" in message
    assert "shape '[7, 7]' is invalid" in message


def test_submodules_and_name_are_known(library: ModuleType, module) -> None:
    interpreter = library.Interpreter(module)
    assert interpreter.module is module
    assert interpreter.submodules["linear"] is module.linear
    assert interpreter.name == "Interpreter"


def test_transformer_may_replace_calls(library: ModuleType) -> None:
    class Swapped(library.Transformer):
        def call_function(self, target, args, kwargs):
            if target is torch.relu:
                return torch.neg(*args, **kwargs)
            return super().call_function(target, args, kwargs)

        def call_method(self, target, args, kwargs):
            if target == "sum":
                value, *rest = args
                return value.mean(*rest, **kwargs)
            return super().call_method(target, args, kwargs)

    captured = library.symbolic_trace(Net())
    transformed = Swapped(captured).transform()
    assert "torch.neg" in transformed.code
    assert ".mean(dim = 0)" in transformed.code
    assert isinstance(transformed, library.GraphModule)
    assert transformed is not captured
    assert "torch.relu" in captured.code
    expected = torch.neg(captured.linear(X) * captured.scale).mean(dim=0) + 1.0
    assert torch.equal(transformed(X), expected)


def test_transformer_may_replace_modules_and_inputs(library: ModuleType) -> None:
    class Renaming(library.Transformer):
        def placeholder(self, target, args, kwargs):
            return super().placeholder(target + "_in", args, kwargs)

        def call_module(self, target, args, kwargs):
            return super().call_module(target, args, kwargs) + 1

        def get_attr(self, target, args, kwargs):
            return super().get_attr("linear.bias", args, kwargs)

    transformed = Renaming(library.symbolic_trace(Net())).transform()
    assert "def forward(self, x_in, shift_in = 1.0):" in transformed.code
    assert "self.linear.bias" in transformed.code
    assert "linear + 1" in transformed.code


def test_transformer_keeps_meta(library: ModuleType) -> None:
    captured = library.symbolic_trace(Net())
    for node in captured.graph.nodes:
        node.stack_trace = f"trace of {node.name}"
    captured.graph.output_node().meta["extra"] = 1
    transformed = library.Transformer(captured).transform()
    traces = {node.name: node.stack_trace for node in transformed.graph.nodes if node.op.startswith("call")}
    assert traces == {name: f"trace of {name}" for name in traces}
    assert traces
    assert transformed.graph.output_node().meta["extra"] == 1


def test_transformer_leaves_wrapped_functions_whole(library: ModuleType) -> None:
    graph = library.Graph()
    node = graph.call_function(len, (graph.placeholder("x"),))
    graph.output(node)
    transformed = library.Transformer(library.GraphModule({}, graph)).transform()
    assert transformed([1, 2]) == 2


def test_interpreter_runs_shapes_through_fake_values(library: ModuleType, module) -> None:
    shapes = {}

    class Shapes(library.Interpreter):
        def run_node(self, n):
            value = super().run_node(n)
            if isinstance(value, torch.Tensor):
                n.meta["shape"] = shapes[n.name] = tuple(value.shape)
            return value

    Shapes(module).run(torch.zeros(5, 3))
    assert shapes["linear"] == (5, 3)
    assert shapes["sum_1"] == (3,)
