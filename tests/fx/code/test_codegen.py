"""Generated functions: signatures, freeing, in-place operators, annotations, comments and transformers of the code."""

from __future__ import annotations

import ast
import inspect
import operator
import os
import re
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch

import fx
from fx.operators.python import OPERATORS, PythonOperator
from fx.provenance import SourceLocation


def body(module: fx.GraphModule) -> list[str]:
    return [line.strip() for line in module.code.strip().splitlines()[1:]]


def test_freed_values_are_gone_while_the_program_still_runs() -> None:
    recorded: list[weakref.ref[torch.Tensor]] = []

    def note(value: torch.Tensor) -> torch.Tensor:
        recorded.append(weakref.ref(value))
        return value + 1

    def alive(value: torch.Tensor) -> torch.Tensor:
        assert recorded[0]() is None
        return value

    graph = fx.Graph()
    x = graph.placeholder("x")
    doubled = graph.call_function(torch.mul, (x, 2))
    noted = graph.call_function(note, (doubled,))
    graph.output(graph.call_function(alive, (noted,)))
    assert torch.equal(fx.GraphModule({}, graph)(torch.ones(1)), torch.full((1,), 3.0))
    assert len(recorded) == 1


def test_values_are_freed_in_the_order_of_the_edited_graph() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    early = graph.call_function(torch.sin, (x,))
    late = graph.call_function(torch.cos, (x,))
    late.append(early)
    graph.output((early, late))
    assert body(fx.GraphModule({}, graph)) == [
        "cos = torch.cos(x)",
        "sin = torch.sin(x);  x = None",
        "return (sin, cos)",
    ]


@pytest.mark.parametrize("row", [row for row in OPERATORS if row.in_place and row.arity == 2], ids=lambda row: row.name)
def test_in_place_operators_write_to_the_callers_tensor(row: PythonOperator) -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output(graph.call_function(row.function, (x, y)))
    module = fx.GraphModule({}, graph)
    statement = row.template.format("x", "y")
    assert body(module)[0] == f"{statement};  {row.name} = x;  x = y = None"
    kind = torch.int64 if row.name in ("iand", "ior", "ixor", "ilshift", "irshift") else torch.float32
    value, other, expected = (torch.full((2, 2), number, dtype=kind) for number in (5, 2, 5))
    result = module(value, other)
    eager = {"x": expected, "y": other}
    exec(statement, eager)
    assert torch.equal(result, eager["x"])
    assert row.name == "imatmul" or result is value


def test_in_place_operators_on_constants_are_calls() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(operator.iadd, (1, x)), graph.call_function(operator.ior, ({1}, {2}))))
    module = fx.GraphModule({}, graph)
    assert body(module)[:2] == ["iadd = _operator_iadd(1, x);  x = None", "ior = _operator_ior(set([1]), set([2]))"]
    assert module(2) == (3, {1, 2})


def test_operators_keep_their_meaning_beside_negative_constants() -> None:
    def program(x: Any) -> Any:
        return (-2) ** x, x**-2, -(x**2), (-x) ** 2, 2 - (-3 - x), ~(x < -1)

    x = torch.tensor([3.0, -2.0])
    module = fx.symbolic_trace(program)
    assert all(map(torch.equal, module(x), program(x)))
    assert all(map(torch.equal, fx.symbolic_trace(module)(x), program(x)))


def test_starred_parameters_keep_their_stars() -> None:
    graph = fx.Graph()
    inputs = [
        graph.placeholder("x"),
        graph.placeholder("y", default_value=3),
        graph.placeholder("*args"),
        graph.placeholder("**kwargs"),
    ]
    graph.output(inputs)
    module = fx.GraphModule({}, graph)
    assert "def forward(self, x, y = 3, *args, **kwargs):" in module.code
    assert module(1) == [1, 3, (), {}]
    assert module(1, 2, 3, 4, k=5) == [1, 2, (3, 4), {"k": 5}]


def keyword_only(a: Any, b: Any = 1, *, c: Any, d: Any = 2) -> Any:
    return a, b, c, d


def keyword_only_behind_more(a: Any, b: Any = 1, *more: Any, c: Any, **named: Any) -> Any:
    return a, b, c


def test_required_inputs_behind_optional_ones_are_given_by_keyword() -> None:
    module = fx.symbolic_trace(keyword_only)
    assert list(inspect.signature(module.forward).parameters) == ["a", "b", "c", "d"]
    assert module(5, c=3) == keyword_only(5, c=3)
    assert module(5, 6, c=3, d=4) == keyword_only(5, 6, c=3, d=4)
    assert fx.symbolic_trace(module)(5, c=3) == (5, 1, 3, 2)
    more = fx.symbolic_trace(keyword_only_behind_more)
    assert more(5, 6, 7, 8, c=3, e=4) == keyword_only_behind_more(5, 6, 7, 8, c=3, e=4)
    assert more(5, c=3) == (5, 1, 3)


@fx.wrap
def keep(*values: Any) -> Any:
    return values


def test_wrapped_functions_are_declared_above_the_function() -> None:
    module = fx.symbolic_trace(lambda x: keep(x, 1))
    name = f"{__name__}_keep"
    assert module.code.lstrip().splitlines()[0] == f'wrap("{name}")'
    assert [node.target for node in fx.symbolic_trace(module).graph.nodes if node.op == "call_function"] == [keep]


def test_verbose_code_shows_the_users_lines_and_still_runs() -> None:
    def program(x: Any) -> Any:
        y = x + 1  # first
        return y * 2

    graph = fx.symbolic_trace(program).graph
    first = next(node for node in graph.nodes if node.name == "add")
    first.meta["tensor_meta"] = torch.empty(2, 3, device="meta")
    code = graph.python_code("self", verbose=True, include_stride=True, include_device=True)
    assert re.search(
        r"# File: .*test_codegen.py:\d+ in .*program, code: y = x \+ 1  # first\n    add = x \+ 1", code.src
    )
    assert "# torch.float32[2, 3], stride [3, 1], device meta" in code.src
    namespace = dict(code.globals)
    exec(code.src, namespace)
    assert namespace["forward"](None, 3) == 8


def test_comments_of_verbose_code_cannot_become_code() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(torch.neg, (x,))
    node.source = SourceLocation.of("a.py\nimport os", 1, "f\rimport os", "text\n    import os\0\nimport os")
    node.meta["note"] = "a\nimport os"
    graph.output(node)
    source = graph.python_code("self", verbose=True, additional_meta=["note"]).src
    assert "import os" in source
    assert not any(isinstance(part, (ast.Import, ast.ImportFrom)) for part in ast.walk(ast.parse(source)))


def test_profiler_ranges_are_put_around_each_operation() -> None:
    module = fx.symbolic_trace(lambda x: torch.relu(x + 1))
    code = module.graph.python_code("self", record_func=True)
    namespace = dict(code.globals)
    exec(code.src, namespace)
    with torch.autograd.profiler.profile() as profile:
        result = namespace["forward"](None, torch.ones(1))
    assert torch.equal(result, torch.full((1,), 2.0))
    assert {"add", "relu"} <= {event.name for event in profile.function_events}


def test_expanded_definitions_have_a_line_a_parameter() -> None:
    graph = fx.symbolic_trace(lambda x, y=1: x).graph
    assert "def forward(\n    self,\n    x,\n    y = 1,\n):" in graph.python_code("self", expanded_def=True).src


def test_source_that_is_no_python_names_the_line() -> None:
    module = fx.symbolic_trace(lambda x: x + 1)
    module.graph.on_generate_code(lambda current: lambda lines: ["x = = 1\n", *lines])
    module.recompile()
    with pytest.raises(fx.CodegenError, match="the generated source is not Python") as caught:
        module(1)
    assert "x = = 1" in str(caught.value)
    assert "on_generate_code" in str(caught.value)


def test_a_body_of_many_lines_a_statement_keeps_tracebacks_right() -> None:
    def program(x: Any) -> Any:
        y = torch.relu(x)
        return y + torch.ones(3, 4)

    module = fx.symbolic_trace(program)
    module.graph.on_generate_code(lambda current: lambda lines: ["# one\n    # two\n", *lines])
    module.recompile()
    with pytest.raises(RuntimeError) as caught:
        module(torch.ones(7))
    assert any("return y + torch.ones(3, 4)" in note for note in caught.value.__notes__)


SETS = """
import torch, fx
def program(x, **named):
    return torch.nn.functional.conv2d(x, x) + torch.tensor([1.0]) - len({"a", "b"}), x[1:, ...], {"p": x, "q": [x]}
graph = fx.Graph()
graph.output(graph.call_function(len, (graph.placeholder("x"), {"s", "t", "u", "v"}, frozenset({1, "a", "b"}))))
printed = fx.symbolic_trace(program).code + fx.GraphModule({}, graph).code
"""


def test_code_is_the_same_in_every_process() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(SETS, namespace)
    other = subprocess.run(
        [sys.executable, "-c", f"{SETS}\nprint(printed, end='')"],
        env={**os.environ, "PYTHONHASHSEED": "1"}, capture_output=True, check=True, text=True,
    )  # fmt: skip
    assert other.stdout == namespace["printed"]


@pytest.mark.parametrize("count", [20_000])
def test_long_programs_have_no_limit(count: int) -> None:
    graph = fx.Graph()
    node = graph.placeholder("x")
    for _ in range(count):
        node = graph.call_function(torch.add, (node, 1))
    graph.output(node)
    module = fx.GraphModule({}, graph)
    assert torch.equal(module(torch.zeros(1)), torch.full((1,), float(count)))


def test_an_overridden_output_may_call_the_one_it_overrides() -> None:
    class Wrapped(fx.CodeGen):
        def generate_output(self, output_args, *, descs=None, repr_fn=None):  # type: ignore[no-untyped-def]
            return super().generate_output({"a": output_args}, repr_fn=repr_fn)

    program = fx.symbolic_trace(lambda x: x + 1)
    program.graph.set_codegen(Wrapped())
    program.recompile()
    assert "return {'a': add}" in program.code
    assert program(1) == {"a": 2}
