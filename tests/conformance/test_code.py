"""The text of generated code, node by node, and how to customize it."""

from __future__ import annotations

import math
import operator
from collections import OrderedDict, defaultdict
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from building import Point

from .libraries import neutral


def body(graph) -> list[str]:
    """The statements of the generated function, without indentation."""
    lines = graph.python_code("self").src.strip().splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("def "))
    return [line.strip() for line in lines[start + 1 :]]


def one(library: ModuleType, target, *args, op: str = "call_function", **kwargs) -> str:
    """The statement of a single node with these arguments, ``%x`` standing for a placeholder."""
    graph = library.Graph()
    x = graph.placeholder("x")
    substituted = library.node.map_aggregate(args, lambda leaf: x if isinstance(leaf, str) and leaf == "%x" else leaf)
    node = graph.create_node(op, target, substituted, kwargs)
    graph.output((x, node))
    return body(graph)[0].split(" = ", 1)[1]


BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "lshift": "<<", "rshift": ">>", "and_": "&", "or_": "|", "xor": "^",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip


@pytest.mark.parametrize("name, symbol", BINARY.items())
def test_operators_are_infix(library: ModuleType, name: str, symbol: str) -> None:
    assert one(library, getattr(operator, name), "%x", 2) == f"x {symbol} 2"
    assert one(library, getattr(operator, name), 2, "%x") == f"2 {symbol} x"


@pytest.mark.parametrize("name, symbol", [("neg", "-"), ("pos", "+"), ("invert", "~")])
def test_unary_operators_are_prefixes(library: ModuleType, name: str, symbol: str) -> None:
    assert one(library, getattr(operator, name), "%x") == f"{symbol}x"


IN_PLACE = ["iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor"]


@pytest.mark.parametrize("name", [*IN_PLACE, "ilshift", "irshift"])
def test_in_place_operators_stay_in_place(library: ModuleType, name: str) -> None:
    graph = library.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(getattr(operator, name), (x, 2)))
    symbol = (BINARY.get(name[1:]) or BINARY[name[1:] + "_"]) + "="
    assert body(graph)[0] == f"x {symbol} 2;  {name} = x;  x = None"


def test_items_are_read_and_written_with_brackets(library: ModuleType) -> None:
    assert one(library, operator.getitem, "%x", 0) == "x[0]"
    assert one(library, operator.getitem, "%x", (slice(None), slice(1, "%x", 2), ...)) == (
        "x[(slice(None, None, None), slice(1, x, 2), Ellipsis)]"
    )
    graph = library.Graph()
    x = graph.placeholder("x")
    graph.call_function(operator.setitem, (x, 0, 1.0))
    graph.output(x)
    assert body(graph) == ["x[0] = 1.0;  setitem = x;  setitem = None", "return x"]


def test_attributes_are_read_with_a_dot_where_possible(library: ModuleType) -> None:
    assert one(library, getattr, "%x", "shape") == "x.shape"
    assert one(library, getattr, "%x", "a b") == "getattr(x, 'a b')"
    assert one(library, getattr, "%x", "shape", None) == "getattr(x, 'shape', None)"


def test_calls_print_their_arguments(library: ModuleType) -> None:
    assert one(library, torch.add, "%x", 1, alpha=2) == "torch.add(x, 1, alpha = 2)"
    assert one(library, "view", "%x", -1, op="call_method") == "x.view(-1)"
    assert one(library, "add_", "%x", other=1, op="call_method") == "x.add_(other = 1)"
    assert one(library, "layer", "%x", op="call_module") == "self.layer(x)"
    assert one(library, "layer.0.weight", op="get_attr") == 'getattr(self.layer, "0").weight'
    assert one(library, "my layer", "%x", op="call_module") == 'getattr(self, "my layer")(x)'


@pytest.mark.parametrize(
    "function, spelled",
    [
        (torch.relu, "torch.relu"),
        (torch.nn.functional.relu, "torch.nn.functional.relu"),
        (torch.ops.aten.add.Tensor, "torch.ops.aten.add.Tensor"),
        (math.sqrt, "math_sqrt"),
        (operator.abs, "_operator_abs"),
        (operator.contains, "_operator_contains"),
        (len, "len"),
        (isinstance, "isinstance"),
        (torch.float32.__class__, "torch.dtype"),
    ],
)
def test_functions_are_spelled_so(library: ModuleType, function, spelled: str) -> None:
    assert one(library, function, "%x") == f"{spelled}(x)"


def test_functions_become_globals_of_the_code(library: ModuleType) -> None:
    graph = library.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(math.sqrt, (graph.call_function(one, (x,)),)))
    code = graph.python_code("self")
    assert code.globals["math_sqrt"] is math.sqrt
    assert one in code.globals.values()
    assert code.globals["torch"] is torch
    assert {"inf", "nan", "device", "NoneType"} <= set(code.globals)


@pytest.mark.parametrize(
    "value, spelled",
    [
        (1, "1"),
        (-1.5, "-1.5"),
        (True, "True"),
        (None, "None"),
        ('it\'s "quoted"\n', "'it\\'s \"quoted\"\\n'"),
        (b"\x00a", "b'\\x00a'"),
        (1e-30, "1e-30"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (float("nan"), "nan"),
        (1j, "1j"),
        (2 - 3j, "(2-3j)"),
        (..., "Ellipsis"),
        (torch.float16, "torch.float16"),
        (torch.device("cpu"), "device(type='cpu')"),
        (torch.device("cuda:1"), "device(type='cuda', index=1)"),
        (torch.channels_last, "torch.channels_last"),
        (torch.strided, "torch.strided"),
        (range(1, 9, 2), "range(1, 9, 2)"),
        (slice(None, 3), "slice(None, 3, None)"),
        ((), "()"),
        ((1,), "(1,)"),
        ((1, [2, (3,)]), "(1, [2, (3,)])"),
        ({"a": [1], 2: (None,)}, "{'a': [1], 2: (None,)}"),
        (["%x", {"k": "%x"}], "[x, {'k': x}]"),
        (slice("%x", ("%x", 1)), "slice(x, (x, 1), None)"),
        (torch.ops.aten.add.Tensor, "torch.ops.aten.add.Tensor"),
    ],
)
def test_arguments_are_spelled_so(library: ModuleType, value, spelled: str) -> None:
    assert one(library, torch.sum, value) == f"torch.sum({spelled})"


def test_named_tuples_are_built_from_a_global(library: ModuleType) -> None:
    text = one(library, torch.sum, Point(1, "%x"))
    assert text.endswith("_Point(1, x))")
    assert text.startswith("torch.sum(")


def test_values_are_freed_after_their_last_use(library: ModuleType) -> None:
    graph = library.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    add = graph.call_function(operator.add, (x, y))
    relu = graph.call_function(torch.relu, (add,))
    unused = graph.call_function(torch.neg, (x,))
    graph.call_function(torch._assert, (unused, "m"))
    graph.output((add, graph.call_function(torch.cat, ([relu, relu],))))
    assert body(graph) == [
        "add = x + y;  y = None",
        "relu = torch.relu(add)",
        "neg = torch.neg(x);  x = None",
        "_assert = torch._assert(neg, 'm');  neg = _assert = None",
        "cat = torch.cat([relu, relu]);  relu = None",
        "return (add, cat)",
    ]


def test_layout_of_the_source(library: ModuleType) -> None:
    def double(x):
        return x + x

    module = library.symbolic_trace(double)
    assert module.code == "\n\n\ndef forward(self, x):\n    add = x + x;  x = None\n    return add\n    "
    empty = library.Graph()
    assert empty.python_code("self").src == "\n\n\ndef forward(self):\n    pass\n    "


def test_annotations_of_nodes_are_printed(library: ModuleType) -> None:
    graph = library.Graph()
    x = graph.placeholder("x", type_expr=torch.Tensor, default_value=None)
    add = graph.call_function(torch.add, (x, 1), type_expr=torch.Tensor)
    graph.output(graph.call_method("item", (add,), type_expr=float), type_expr=dict[str, int])
    source = graph.python_code("self").src
    assert "def forward(self, x : torch.Tensor = None) -> dict[str,int]:" in source
    assert "add : torch.Tensor = torch.add(x, 1);  x = None" in source
    assert "item : float = add.item();  add = None" in source


def test_root_name_may_be_chosen(library: ModuleType) -> None:
    graph = library.Graph()
    graph.output(graph.call_module("layer", (graph.get_attr("layer.weight"),)))
    source = graph.python_code(root_module="model").src
    assert "layer_weight = model.layer.weight" in source
    assert "model.layer(layer_weight)" in source


def test_wrapped_functions_are_wrapped_again_in_the_code(library: ModuleType) -> None:
    graph = library.Graph()
    node = graph.call_function(len, (graph.placeholder("x"),))
    node.meta["is_wrapped"] = True
    graph.output(node)
    source = graph.python_code("self").src.strip().splitlines()
    assert neutral(source[0]) == 'wrap("len")'


def test_body_may_be_transformed(library: ModuleType) -> None:
    module = library.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))
    before = module.code

    def insert(lines: list[str]) -> list[str]:
        return ["marker = 1\n", *lines]

    with module.graph.on_generate_code(lambda current: insert):
        module.recompile()
        assert "    marker = 1\n" in module.code
        nested = module.graph.on_generate_code(lambda current: lambda lines: ["other = 2\n", *current(lines)])
        with nested:
            module.recompile()
            assert "other = 2\n    marker = 1\n" in module.code
    assert torch.equal(module(torch.tensor([-1.0, 1.0])), torch.tensor([0.0, 1.0]))
    module.recompile()
    assert module.code == before


def test_body_transformer_stays_without_with(library: ModuleType) -> None:
    module = library.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))
    received = []

    def keep(lines: list[str]) -> list[str]:
        received.extend(lines)
        return lines

    module.graph.on_generate_code(lambda current: keep)
    module.recompile()
    assert any("getattr(self" in line for line in received)
    assert any(line.startswith("return") for line in received)


def make_codegen(library: ModuleType):
    """A code generator in the old style: overrides without the newer keyword arguments."""

    class ListCodeGen(library.graph.CodeGen):
        def gen_fn_def(self, free_vars, maybe_return_annotation):
            names = ", ".join(name.split(":")[0].strip() for name in free_vars)
            return (
                f"def forward(self, args_list: List[torch.Tensor]){maybe_return_annotation}:\n    {names}, = args_list"
            )

        def generate_output(self, output_args):
            return f"return [{output_args!r}]"

        def additional_globals(self):
            return [("List", list)]

        def process_inputs(self, *inputs):
            assert len(inputs) == 1
            return inputs[0]

        def process_outputs(self, outputs):
            return [outputs]

    return ListCodeGen()


def test_old_style_code_generators_work(library: ModuleType) -> None:
    def subtract(x, y):
        return x - y

    module = library.symbolic_trace(subtract)
    module.graph.set_codegen(make_codegen(library))
    module.recompile()
    x, y = torch.ones(2), torch.full((2,), 3.0)
    assert torch.equal(module([x, y])[0], x - y)
    assert "args_list" in module.code
    assert "return [sub]" in module.code
    assert module.graph.process_inputs([x, y]) == [x, y]
    assert module.graph.process_outputs(x) == [x]
    interpreted = library.Interpreter(module).run([x, y])
    assert isinstance(interpreted, list)
    assert torch.equal(interpreted[0], x - y)
    raw = library.Interpreter(module).run(x, y, enable_io_processing=False)
    assert torch.equal(raw, x - y)


def test_code_generator_survives_copies_and_transformers(library: ModuleType) -> None:
    import copy

    module = library.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))
    module.graph.set_codegen(make_codegen(library))
    module.recompile()
    x = torch.tensor([-1.0, 1.0])
    for other in (copy.deepcopy(module), library.Transformer(module).transform()):
        assert "args_list" in other.code
        assert torch.equal(other([x])[0], x.relu())


def test_default_code_generator_leaves_values_alone(library: ModuleType) -> None:
    graph = library.Graph()
    assert graph.process_inputs(1, 2) == (1, 2)
    assert graph.process_outputs([1]) == [1]
    generator = library.graph.CodeGen()
    assert generator.gen_fn_def(["a", "b"], "") == "def forward(self, a, b):"
    assert generator.gen_fn_def(["self", "a"], " -> int") == "def forward(self, a) -> int:"
    assert generator.generate_output(("a", 1)) == "return ('a', 1)"
    assert generator.additional_globals() == []


def test_flattened_inputs_are_written_with_pytrees(library: ModuleType) -> None:
    def total(tree, x):
        return [tree["a"] + tree["b"] + x]

    module = library.symbolic_trace(total, concrete_args={"tree": {"a": library.PH, "b": library.PH}})
    assert "tree_1, tree_2, x, = fx_pytree.tree_flatten_spec([tree, x], self._in_spec)" in module.code
    assert "return pytree.tree_unflatten([add_1], self._out_spec)" in module.code
    assert module({"a": 1, "b": 2}, 3) == [6]
    assert list(module.graph.process_inputs({"a": 1, "b": 2}, 3)) == [1, 2, 3]
    assert module.graph.process_outputs([6]) == [6]


@pytest.mark.parametrize("kind", [dict, OrderedDict, partial(defaultdict, int)])
def test_inputs_are_flattened_by_the_keys_of_mappings_of_any_kind(library: ModuleType, kind: Any) -> None:
    concrete = {"tree": kind({"a": library.PH, "b": [library.PH]})}
    module = library.symbolic_trace(lambda tree: tree["a"] - tree["b"][0], concrete_args=concrete)
    assert module(kind({"a": 5, "b": [2]})) == 3
