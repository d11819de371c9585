"""The limit on nesting of arguments, the errors for misuse, and the state that an error leaves unchanged."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import types
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import fx
from fx import passes
from fx.arguments import DEEPEST, contains_itself, expect, expect_all, shown
from fx.passes.shape_prop import ShapeProp
from fx.quantize.scheme import Choice

NESTED: dict[str, Callable[[Any], Any]] = {
    "list": lambda inner: [inner],
    "tuple": lambda inner: (1, inner),
    "dict": lambda inner: {"k": inner},
    "slice": lambda inner: slice(None, inner),
}


def nested(depth: int, kind: str, value: Any) -> Any:
    for _ in range(depth):
        value = NESTED[kind](value)
    return value


@pytest.mark.parametrize("kind", NESTED)
def test_arguments_nest_as_deep_as_code_can_be_compiled(kind: str) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(nested(DEEPEST, kind, x))
    module = fx.GraphModule({}, graph)
    for program in (
        module,
        copy.deepcopy(module),
        pickle.loads(pickle.dumps(module)),
        fx.Transformer(module).transform(),
    ):
        assert program(7) == nested(DEEPEST, kind, 7)
        assert fx.Interpreter(program).run(7) == nested(DEEPEST, kind, 7)
    assert str(graph).count("x") > 1


@pytest.mark.parametrize("depth", [DEEPEST + 4, 600, 5000])
@pytest.mark.parametrize("kind", NESTED)
def test_deeper_ones_are_refused_by_name(kind: str, depth: int) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    deep = nested(depth, kind, x)
    for give in (
        lambda: graph.output(deep),
        lambda: graph.call_function(print, (deep,)),
        lambda: graph.call_function(print, (), {"k": [deep]}),
        lambda: setattr(x, "args", (deep,)),
        lambda: x.replace_all_uses_with(deep),
    ):
        with pytest.raises(fx.GraphError, match=f"an argument nests more than {DEEPEST} levels deep") as caught:
            give()
        assert f"where  {__file__}" in str(caught.value)
    assert list(graph.nodes) == [x]
    assert (x.args, x.users) == ((), {})


@pytest.mark.parametrize("depth", [DEEPEST + 4, 600, 5000])
@pytest.mark.parametrize("kind", NESTED)
def test_deep_results_and_arguments_of_programs_are_refused_by_name(kind: str, depth: int) -> None:
    with pytest.raises(fx.FxError, match=f"an argument nests more than {DEEPEST} levels deep"):
        fx.symbolic_trace(lambda x: nested(depth, kind, x))
    with pytest.raises(fx.FxError, match=f"an argument nests more than {DEEPEST} levels deep"):
        fx.symbolic_trace(lambda x: x + nested(depth, kind, x))


def test_values_nest_deeper_than_arguments_may() -> None:
    program = fx.symbolic_trace(lambda x: x)
    deep = nested(600, "list", 1)
    assert program(deep) is deep
    assert fx.Interpreter(program).run(deep) is deep
    with pytest.raises(fx.GraphError, match="nests more than"):
        ShapeProp(program).propagate(deep)


def test_a_container_that_holds_itself_is_distinguished() -> None:
    cycle: list[Any] = [1]
    cycle.append({"k": (cycle,)})
    shared = [1]
    assert contains_itself(cycle)
    assert not contains_itself([shared, {"k": shared}])
    graph = fx.Graph()
    with pytest.raises(fx.GraphError, match=r"an argument contains itself[\s\S]*give a container that ends"):
        graph.output(cycle)
    with pytest.raises(fx.TraceError, match="an argument contains itself"):
        fx.symbolic_trace(lambda x: (x, cycle))
    with pytest.raises(fx.GraphError, match="an argument contains itself"):
        fx.map_arg(cycle, lambda node: node)
    program = fx.symbolic_trace(lambda x: x)
    with pytest.raises(fx.GraphError, match="an argument contains itself"):
        fx.Interpreter(program).map_nodes_to_values((cycle,), program.graph.output_node())


def test_endless_recursion_of_the_program_itself_stays_a_recursion_error() -> None:
    def endless(x: Any) -> Any:
        return endless(x + 1)

    limit = sys.getrecursionlimit()
    with pytest.raises(RecursionError):
        fx.symbolic_trace(endless)
    assert sys.getrecursionlimit() == limit


class Outer(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def nested_modules(depth: int) -> torch.nn.Module:
    model: torch.nn.Module = torch.nn.ReLU()
    for _ in range(depth):
        model = Outer(model)
    return model


def runs(model: torch.nn.Module) -> bool:
    try:
        model(torch.ones(1))
    except RecursionError:
        return False
    return True


def test_modules_nest_as_deep_as_in_eager_code() -> None:
    limit = sys.getrecursionlimit()
    # Python 3.12 has a limit of its own for calls from C
    model = next(model for depth in (240, 200) if runs(model := nested_modules(depth)))
    program = fx.symbolic_trace(model)
    assert sys.getrecursionlimit() == limit
    assert torch.equal(program(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))
    assert [node.op for node in program.graph.nodes] == ["placeholder", "call_module", "output"]


ENDLESS = """
import sys, fx, torch

class Endless(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call
    def __getattr__(self, name):
        return self(name) if name == "none" else super().__getattr__(name)
    def forward(self, x):
        return self.call(self, x) + 1

for limit, call in (
    (10_000, lambda self, x: self(x)),
    (4_000, lambda self, x: sorted([x], key=lambda value: self(value))[0]),
    (6_000, lambda self, x: getattr(self, "none")),
):
    sys.setrecursionlimit(limit)
    try:
        fx.symbolic_trace(Endless(call))
    except RecursionError:
        assert sys.getrecursionlimit() == limit
        print("refused")
"""


@pytest.mark.thorough
def test_endless_recursion_ends_in_an_error_where_it_does_in_eager_code() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "refused\n" * 3), ended.stderr


def test_numbers_of_numpy_are_numbers() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    sum_ = graph.call_function(torch.add, (x, 1))
    sum_.update_arg(np.int64(1), 2)
    sum_.insert_arg(np.int64(2), 3)
    assert sum_.args == (x, 2, 3)
    assert passes.Close(rtol=np.float32(0.25)).rtol == 0.25
    assert passes.approximate(np.float32(30)).sqnr_db == 30
    assert passes.FoldConstants(max_bytes=np.int64(5)).max_bytes == 5
    assert Choice(percentile=np.float32(99.5)).percentile == 99.5


def test_arguments_are_assigned_as_lists_and_any_mappings_too() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    sum_ = graph.call_function(torch.add, (x, 1))
    sum_.args = [x, 2]
    sum_.kwargs = types.MappingProxyType({"alpha": 3})
    assert (sum_.args, sum_.kwargs) == ((x, 2), {"alpha": 3})
    assert type(sum_.args) is tuple


def test_uses_are_replaced_by_any_argument() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    pair = graph.call_function(divmod, (x, y))
    user = graph.call_function(print, (pair,), {"k": [pair]})
    graph.output(user)
    assert pair.replace_all_uses_with((x, [y])) == [user]
    assert user.args == ((x, [y]),)
    assert user.kwargs == {"k": [(x, [y])]}
    assert (list(x.users), list(y.users), list(pair.users)) == ([pair, user], [pair, user], [])
    user.replace_input_with(x, 3)
    assert user.args == ((3, [y]),)
    assert list(x.users) == [pair]
    graph.lint()


def test_a_node_does_not_start_to_use_itself() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    relu = graph.call_function(torch.relu, (x,))
    for edit in (
        lambda: setattr(relu, "args", (relu,)),
        lambda: setattr(relu, "kwargs", {"input": relu}),
        lambda: relu.update_arg(0, [relu]),
        lambda: relu.insert_arg(0, relu),
        lambda: relu.update_kwarg("input", relu),
    ):
        with pytest.raises(fx.GraphError, match=r"node relu would use itself[\s\S]*inputs are computed before it"):
            edit()
    assert (relu.args, relu.kwargs, list(relu.users)) == ((x,), {}, [])


def test_a_node_that_replaced_its_own_input_can_be_repaired() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    relu = graph.call_function(torch.relu, (x,))
    graph.output(x)
    x.replace_all_uses_with(relu)  # the common spelling, in which it uses itself for a moment
    assert relu.args == (relu,)
    relu.args = (x,)
    graph.lint()


def test_an_erased_node_is_neither_edited_nor_used() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    relu = graph.call_function(torch.relu, (x,))
    graph.erase_node(relu)
    for name, value in (("name", "y"), ("op", "output"), ("target", "y"), ("type", int), ("args", ()), ("kwargs", {})):
        with pytest.raises(fx.GraphError, match="node relu was erased, so it has no place in the graph any more"):
            setattr(relu, name, value)
    with pytest.raises(
        fx.GraphError, match=r"node relu was erased, so it has no value to use[\s\S]*after its last use"
    ):
        graph.output(relu)
    assert list(graph.nodes) == [x]


def test_a_failed_creation_leaves_no_use() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.inserting_before(y)
    graph.erase_node(y)
    with pytest.raises(fx.GraphError, match="node y was erased"):
        graph.call_function(torch.relu, (x,))
    assert (list(graph.nodes), x.users) == ([x], {})


def test_a_graph_that_cannot_be_written_is_not_taken() -> None:
    module = fx.symbolic_trace(torch.nn.ReLU())
    before, wrong = module.graph, fx.Graph()
    wrong.output(wrong.placeholder("a b"))
    with pytest.raises(fx.CodegenError, match="cannot be the name of a parameter"):
        module.graph = wrong
    assert module.graph is before
    assert wrong.owning_module is None
    assert torch.equal(module(torch.ones(1)), torch.ones(1))
    with pytest.raises(fx.GraphError, match="graph must be a Graph, not a ReLU"):
        module.graph = torch.nn.ReLU()  # type: ignore[assignment]


def test_a_tracer_names_the_state_it_lacks() -> None:
    tracer = fx.Tracer()
    assert not hasattr(tracer, "graph")
    with pytest.raises(fx.GraphError, match=r"this Tracer has no root yet[\s\S]*tracer.trace\(root\) first"):
        tracer.path_of_module(torch.nn.ReLU())
    with pytest.raises(AttributeError, match="'Tracer' object has no attribute 'grph'"):
        _ = tracer.grph  # type: ignore[attr-defined]


def test_errors_show_the_argument_and_the_line() -> None:
    with pytest.raises(fx.PassError) as caught:
        expect([1] * 1000, (str, int), "this takes a name", error=fx.PassError, remedy="give one")
    lines = str(caught.value).splitlines()
    assert lines[0] == "this takes a name, not a list"
    assert lines[1].startswith(f"  where  {__file__}:")
    assert lines[2:] == ["  value  [1, 1, 1, 1, 1, 1, ...]", "  try    give one"]
    with pytest.raises(fx.GraphError, match=r"this takes names, not an int\n(.*\n)*  value  3"):
        expect_all(["a", 3], lambda element: isinstance(element, str), "this takes names")


def test_any_value_is_shown_in_one_short_line() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown(Silent()).startswith("<Silent")
    assert shown(10**5000) == "<int>"
    assert shown("a\nb") == "'a\\nb'"
    assert len(shown(torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(99))))) <= 200
    assert shown(fx.Graph().placeholder("x")) == "%x = placeholder[x]()"


@pytest.mark.parametrize(
    "made, expected",
    [
        (lambda: str(passes.Close(rtol=Fraction(1, 4), atol=np.int64(0))), "close(rtol=0.25, atol=0)"),
        (lambda: str(passes.approximate(Fraction(30))), "approximate(sqnr_db=30)"),
        (lambda: repr(Choice(percentile=np.float32(99.5)).percentile), "99.5"),
    ],
)
def test_numbers_are_kept_as_pythons_own(made: Callable[[], str], expected: str) -> None:
    assert made() == expected


@pytest.mark.parametrize("part", [torch.fx.Graph(), torch.fx.Tracer()])
def test_the_error_for_objects_of_torch_fx_names_the_conversion(part: object) -> None:
    with pytest.raises(fx.PassError, match=r"fx\.interop\.from_torch"):
        passes.FoldConstants()(part)  # type: ignore[arg-type]
