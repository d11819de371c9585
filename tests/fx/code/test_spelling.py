"""Arguments, targets and names in generated code: every kind comes back equal, and none injects code."""

from __future__ import annotations

import ast
import builtins
import cmath
import collections
import contextlib
import copy
import enum
import math
import operator
import pickle
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from building import PLAIN_VALUES, Point

import fx

HOSTILE = 'x; __import__("builtins").canary.append(1) #'


class Colour(enum.Enum):
    RED = 1


class Word(str, enum.Enum):
    GO = "go"


class Flags(enum.IntFlag):
    A = 1
    B = 2


def keep(value: Any, *more: Any, **named: Any) -> Any:
    return value


VALUES: dict[str, Any] = {
    **PLAIN_VALUES,
    "enum": Colour.RED,
    "true": True,
    "big_int": 10**40,
    "huge_range": range(0, 1 << 20000, 3),
    "complex_with_minus_zero": complex(1, -0.0),
    "complex_nan": complex(math.nan, 2),
    "bytes": b"\x00'\"\n",
    "tuple": (1,),
    "empty_tuple": (),
    "dict": {"a": [1], 2: {"b": None}, (1, "c"): torch.int8, None: 1},
    "named_tuple": Point(1, [Point(None, slice(2))]),
    "text_enum": Word.GO,
    "flags": Flags.A | Flags.B,
    "set": {1, "a"},
    "frozenset": frozenset({(1, 2)}),
    "type": dict,
    "torch_type": torch.Tensor,
    "function": operator.add,
    "torch_function": torch.nn.functional.relu,
    "builtin": len,
    "keyword_overload": getattr(torch.ops.aten.random_, "from"),
}


def same(left: Any, right: Any) -> bool:
    """Equal in value and type, with frozen containers as their plain kind."""
    kinds = {fx.immutable_list: list, fx.immutable_dict: dict}
    if kinds.get(type(left), type(left)) is not kinds.get(type(right), type(right)):
        return False
    if isinstance(left, float):
        return math.copysign(1, left) == math.copysign(1, right) and (
            left == right or (left != left and right != right)
        )
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, slice):
        return all(same(getattr(left, part), getattr(right, part)) for part in ("start", "stop", "step"))
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


def program_with(value: Any) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    call = graph.call_function(keep, ((value, x),), {"named": [value]})
    graph.output((call, graph.call_function(keep, (), {"value": {"k": value}}), value))
    return fx.GraphModule({}, graph)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize(
    "way",
    [
        lambda module: module,
        lambda module: fx.Interpreter(module).run,
        copy.deepcopy,
        lambda module: fx.Interpreter(copy.deepcopy(module)).run,
        lambda module: pickle.loads(pickle.dumps(module)),
        lambda module: fx.Interpreter(pickle.loads(pickle.dumps(module))).run,
    ],
    ids=["code", "interpreter", "copy", "copied_graph", "pickle", "pickled_graph"],
)
def test_every_kind_of_argument_comes_back_equal(way: Callable[[fx.GraphModule], Any], value: Any) -> None:
    (returned, x), inner, plain = way(program_with(value))(7)
    assert x == 7
    assert same(returned, value)
    assert same(inner["k"], value)
    assert same(plain, value)


@pytest.mark.parametrize(
    "value",
    [
        v
        for k, v in VALUES.items()
        if k not in ("huge_int", "huge_range") and not (callable(v) or isinstance(v, (set, frozenset)))
    ],
    ids=repr,
)
def test_every_kind_of_argument_that_capture_takes_is_traced_again(value: Any) -> None:
    (returned, _), inner, plain = fx.symbolic_trace(program_with(value))(7)
    assert same(returned, value)
    assert same(inner["k"], value)
    assert same(plain, value)


def test_objects_of_other_kinds_are_the_very_objects() -> None:
    thing = object()
    (returned, _), inner, plain = program_with(thing)(7)
    assert returned is thing
    assert inner["k"] is thing
    assert plain is thing


@pytest.mark.parametrize(
    "name",
    (
        "torch device inf nan NoneType pytree fx_pytree getattr len slice range complex Ellipsis set list print "
        "operator keep wrap forward _torch _inf"
    ).split(),
)
def test_a_parameter_may_be_called_like_a_global(name: str) -> None:
    graph = fx.Graph()
    x = graph.placeholder(name)
    attribute = graph.call_function(getattr, (graph.get_attr("t.0"), "no identifier", None))
    values = [
        torch.float32,
        torch.device("cpu"),
        math.inf,
        -math.inf,
        complex(math.inf, 0),
        slice(1),
        range(2),
        ...,
        {3},
    ]
    size = graph.call_function(len, (values,))
    result = graph.call_function(torch.add, (x, 1.0))
    graph.output((graph.call_function(keep, (result,)), size, values, attribute, list))
    module = fx.GraphModule({"t.0": torch.ones(2)}, graph)
    added, count, got, missing, kind = module(torch.zeros(2))
    assert torch.equal(added, torch.ones(2))
    assert (count, missing, kind) == (len(values), None, list)
    assert same(got, values)
    assert list(module.forward.__code__.co_varnames[:2]) == ["self", name]
    assert torch.equal(module(**{name: torch.zeros(2)})[0], torch.ones(2))


@pytest.mark.parametrize("name", ["forward", "wrap", "x", "self", "torch", "keep"])
def test_a_function_may_have_the_name_of_anything(name: str) -> None:
    def function(value: torch.Tensor) -> torch.Tensor:
        return value + 1

    function.__name__ = function.__qualname__ = name
    function.__module__ = None  # type: ignore[assignment]
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(function, (graph.call_function(keep, (graph.call_function(torch.neg, (x,)),)),)))
    assert torch.equal(fx.GraphModule({}, graph)(torch.ones(1)), torch.zeros(1))


@pytest.mark.parametrize("key", ["lambda", "x y", "1", "", "__debug__", "ﬁ", "a\nb", "self", "None"])
def test_keyword_arguments_of_any_name_arrive(key: str) -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(dict, (), {key: graph.placeholder("x"), "plain": 1}))
    assert fx.GraphModule({}, graph)(5) == {key: 5, "plain": 1}


@pytest.mark.parametrize("name", ["0", "class", "a b", "ﬁ", "__private", "x;y", "'", '"', "\\", "é"])
def test_attributes_of_any_name_are_reached(name: str) -> None:
    class Owner(torch.nn.Module):
        pass

    root = Owner()
    root.add_module(name, torch.nn.Module())
    root.get_submodule(name).add_module("inner", torch.nn.ReLU())
    setattr(root.get_submodule(name), name, torch.nn.Parameter(torch.ones(2)))
    graph = fx.Graph()
    called = graph.call_module(f"{name}.inner", (graph.placeholder("x"),))
    graph.output(graph.call_function(torch.add, (called, graph.get_attr(f"{name}.{name}"))))
    module = fx.GraphModule(root, graph)
    assert torch.equal(module(torch.zeros(2)), torch.ones(2))
    assert torch.equal(fx.Interpreter(module).run(torch.zeros(2)), torch.ones(2))


@pytest.mark.parametrize("name", ["class", "two words", "ﬁ"])
def test_methods_and_attributes_of_values_of_any_name_are_reached(name: str) -> None:
    thing = type("Thing", (), {name: lambda self, value: value + 1})()
    graph = fx.Graph()
    x = graph.placeholder("x")
    called = graph.call_method(name, (x, 2))
    graph.output((called, graph.call_function(getattr, (x, name))))
    called, method = fx.GraphModule({}, graph)(thing)
    assert (called, method(4)) == (3, 5)


@pytest.mark.parametrize(
    "hint, spelled",
    [
        (int, "int"),
        (torch.Tensor, "torch.Tensor"),
        (type(None), "NoneType"),
        (list[int], "list[int]"),
        (typing.List[torch.Tensor], "typing_List[torch.Tensor]"),  # noqa: UP006
        (typing.Dict[str, typing.Tuple[int, ...]], "typing_Dict[str,typing_Tuple[int,...]]"),  # noqa: UP006
        (int | None, "int|NoneType"),
        ("int", "_int_"),
    ],
    ids=str,
)
def test_annotations_keep_their_meaning_in_the_code(hint: Any, spelled: str) -> None:
    graph = fx.Graph()
    graph.output(graph.placeholder("x", type_expr=hint), type_expr=hint)
    module = fx.GraphModule({}, graph)
    assert f"def forward(self, x : {spelled}) -> {spelled}:" in module.code
    assert module.forward.__annotations__ == {"x": hint, "return": hint}


def test_any_object_may_be_an_annotation() -> None:
    odd = typing.Callable[[torch.Tensor], "torch.Tensor"]
    graph = fx.Graph()
    graph.output(graph.placeholder("x", type_expr=odd))
    assert fx.GraphModule({}, graph).forward.__annotations__ == {"x": odd}


def test_defaults_arrive() -> None:
    graph = fx.Graph()
    graph.output([graph.placeholder(f"x{i}", default_value=value) for i, value in enumerate(VALUES.values())])
    assert all(map(same, fx.GraphModule({}, graph)(), VALUES.values()))


# Nothing may bring text of its own.


class EvilText(str):
    """A string whose methods misreport its text."""

    __slots__ = ()

    def _lie(self, *args: Any) -> Any:
        return HOSTILE

    __repr__ = __str__ = __format__ = lower = strip = lstrip = replace = removeprefix = _lie  # type: ignore[assignment]

    def _yes(self) -> bool:
        return True

    isidentifier = isprintable = isascii = _yes  # type: ignore[assignment]

    def partition(self, separator: str) -> Any:
        return (HOSTILE, "", "")

    def rpartition(self, separator: str) -> Any:
        return ("", "", HOSTILE)

    def split(self, *args: Any, **kwargs: Any) -> Any:
        return [HOSTILE]


def lying(kind: type) -> type:
    lie = lambda self, *args: HOSTILE  # noqa: E731
    return type(f"Lying{kind.__name__.title()}", (kind,), {"__repr__": lie, "__str__": lie, "__format__": lie})


def named(name: Any, module: Any = "tests") -> Callable[..., Any]:
    def function(value: Any, *args: Any, **kwargs: Any) -> Any:
        return value

    if type(name) is not str:  # functions take plain names only
        holder = type("Callable", (), {"__call__": lambda self, value, *args, **kwargs: value})()
        holder.__name__ = holder.__qualname__ = name
        holder.__module__ = module
        return holder
    function.__name__ = function.__qualname__ = name
    function.__module__ = module
    return function


def hostile_enum() -> Any:
    members = enum.Enum(HOSTILE, {HOSTILE: 1, "OK": 2})
    members.OK._name_ = EvilText("OK")
    return members


def renamed(node: fx.Node, name: str) -> fx.Node:
    node.name = name
    return node


def typed(node: fx.Node, hint: Any) -> fx.Node:
    node.type = hint
    return node


def wrapped(node: fx.Node) -> fx.Node:
    node.meta["is_wrapped"] = True
    return node


def keeping(value: Any) -> Callable[[fx.Graph, fx.Node], Any]:
    return lambda graph, x: graph.call_function(keep, (x, value, [value], {"k": (value, value)}), {"kw": value})


PROGRAMS: dict[str, Callable[[fx.Graph, fx.Node], Any]] = {
    "keyword": lambda graph, x: graph.call_function(keep, (x,), {HOSTILE: x}),
    "keyword of many lines": lambda graph, x: graph.call_function(keep, (x,), {f"a=1)\n{HOSTILE}\n(": x}),
    "lying keyword": lambda graph, x: graph.call_function(keep, (x,), {EvilText("k"): x}),
    "attribute": lambda graph, x: graph.call_function(getattr, (x, HOSTILE, None)),
    "attribute without default": lambda graph, x: graph.call_function(getattr, (x, HOSTILE)),
    "lying attribute": lambda graph, x: graph.call_function(getattr, (x, EvilText("shape"))),
    "method": lambda graph, x: graph.call_method(HOSTILE, (x,)),
    "lying method": lambda graph, x: graph.call_method(EvilText("neg"), (x,)),
    "module": lambda graph, x: graph.call_module(f"child.{HOSTILE.replace('.', ' ')}", (x,)),
    "lying module": lambda graph, x: graph.call_module(EvilText("child"), (x,)),
    "get_attr": lambda graph, x: graph.get_attr(HOSTILE.replace(".", " ")),
    "lying get_attr": lambda graph, x: graph.get_attr(EvilText("weight")),
    "placeholder": lambda graph, x: graph.placeholder(HOSTILE),
    "starred placeholder": lambda graph, x: graph.placeholder(f"*{HOSTILE}"),
    "lying placeholder": lambda graph, x: graph.placeholder(EvilText("y")),
    "default": lambda graph, x: graph.placeholder("y", default_value=lying(object)()),
    "name": lambda graph, x: renamed(graph.call_function(torch.neg, (x,)), HOSTILE),
    "lying name": lambda graph, x: renamed(graph.call_function(torch.neg, (x,)), EvilText("y")),
    "wished name": lambda graph, x: graph.create_node("call_function", torch.neg, (x,), name=HOSTILE),
    "annotation": lambda graph, x: typed(graph.call_function(torch.neg, (x,)), HOSTILE),
    "lying annotation": lambda graph, x: typed(graph.call_function(torch.neg, (x,)), EvilText("int")),
    "annotation by an object": lambda graph, x: typed(graph.call_function(torch.neg, (x,)), lying(object)()),
    "annotation by a class": lambda graph, x: typed(graph.call_function(torch.neg, (x,)), type(HOSTILE, (), {})),
    "annotation by a generic": lambda graph, x: typed(graph.call_method("neg", (x,)), list[type(HOSTILE, (), {})]),
    "literal annotation": lambda graph, x: typed(graph.call_function(torch.neg, (x,)), typing.Literal[HOSTILE]),
    "type variable": lambda graph, x: typed(graph.call_function(torch.neg, (x,)), typing.TypeVar(HOSTILE)),
    "function": lambda graph, x: graph.call_function(named(HOSTILE), (x,)),
    "function's module": lambda graph, x: graph.call_function(named("f", HOSTILE), (x,)),
    "function without module": lambda graph, x: graph.call_function(named(HOSTILE, None), (x,)),
    "function said to be torch's": lambda graph, x: graph.call_function(named(f"relu; {HOSTILE}", "torch"), (x,)),
    "function said to be an operator": lambda graph, x: graph.call_function(named(HOSTILE, "_operator"), (x, x)),
    "lying callable": lambda graph, x: graph.call_function(named(EvilText("len"), EvilText("torch")), (x,)),
    "wrapped function": lambda graph, x: wrapped(graph.call_function(named(f'"){HOSTILE}'), (x,))),
    "named tuple class": keeping(collections.namedtuple("P", ["x"])(lying(object)())),
    "enum": keeping(hostile_enum()[HOSTILE]),
    "enum of lying name": keeping(hostile_enum()(2)),
    "object": keeping(lying(object)()),
    "text": keeping(HOSTILE),
    "lying text": keeping(EvilText("a")),
    "lying int": keeping(lying(int)(1)),
    "lying float": keeping(lying(float)(1)),
    "lying complex": keeping(lying(complex)(1)),
    "lying bytes": keeping(lying(bytes)(b"a")),
    "lying tuple": keeping(lying(tuple)((1,))),
    "lying list": keeping(lying(list)([1])),
    "lying dict": keeping(lying(dict)({1: 1})),
    "lying set": keeping({lying(int)(1)}),
    "lying size": keeping(torch.Size([lying(int)(1)])),
    "lying range": keeping(range(lying(int)(3))),
    "lying slice": keeping(slice(lying(int)(3))),
    "lying key": keeping({lying(int)(3): 1}),
    "class": keeping(type(HOSTILE, (), {})),
}  # fmt: skip

ALLOWED = (
    ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Assign, ast.AnnAssign, ast.Return, ast.Expr, ast.Call,
    ast.keyword, ast.Name, ast.Attribute, ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Subscript, ast.UnaryOp,
    ast.BinOp, ast.USub, ast.Load, ast.Store,
)  # fmt: skip


@pytest.fixture
def canary(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Non-empty once injected text has run."""
    caught: list[int] = []
    monkeypatch.setattr(builtins, "canary", caught, raising=False)
    return caught


@pytest.mark.parametrize("build", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("verbose", [False, True], ids=["plain", "verbose"])
def test_nothing_puts_its_own_text_into_the_source(
    build: Callable[[fx.Graph, fx.Node], Any], verbose: bool, canary: list[int]
) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    new = build(graph, x)
    graph.output((x, new))
    try:
        code = graph.python_code("self", verbose=verbose)
    except fx.CodegenError:
        assert canary == []
        return
    for part in ast.walk(ast.parse(code.src)):
        assert isinstance(part, ALLOWED), ast.dump(part)
        if isinstance(part, (ast.Name, ast.Attribute)):
            assert (part.id if isinstance(part, ast.Name) else part.attr) not in ("canary", "__import__", "append")
    values: dict[str, Any] = {**code.globals, "wrap": lambda name: None}
    exec(compile(code.src, "generated", "exec"), values)
    owner = torch.nn.Module()
    owner.child = torch.nn.Identity()
    owner.weight = torch.ones(1)
    with contextlib.suppress(AttributeError, TypeError):  # objects with hostile names need not exist
        values["forward"](owner, torch.ones(1))
    assert canary == []


@pytest.mark.parametrize("name", ["1x", "x y", "class", "***x", "x.y", "__debug__"])
def test_a_placeholder_that_cannot_be_a_parameter_is_refused(name: str) -> None:
    graph = fx.Graph()
    graph.output(graph.placeholder(name))
    with pytest.raises(fx.CodegenError, match="cannot be the name of a parameter") as caught:
        graph.python_code("self")
    assert 'try    rename the input: node.target = "x"' in str(caught.value)


def test_two_placeholders_of_one_name_are_refused() -> None:
    graph = fx.Graph()
    graph.output((graph.placeholder("x"), graph.placeholder("x")))
    with pytest.raises(fx.CodegenError, match="two inputs are called 'x'"):
        graph.python_code("self")


def test_a_use_of_an_erased_node_is_refused() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    relu = graph.call_function(torch.relu, (x,))
    graph.erase_node(relu)
    with pytest.raises(fx.GraphError, match="node relu was erased, so it has no value to use"):
        graph.call_function(torch.neg, (relu,))
    graph.call_function(torch.neg)._args = (relu,)
    with pytest.raises(fx.CodegenError, match="relu is used but never computed"):
        graph.python_code("self")


def test_keyword_arguments_are_named_by_strings() -> None:
    graph = fx.Graph()
    with pytest.raises(fx.GraphError, match="arguments of a node are named by strings, not an int"):
        graph.call_function(keep, (), {3: 1})  # type: ignore[dict-item]
    graph.call_function(keep)._kwargs = {3: 1}  # type: ignore[dict-item]
    with pytest.raises(fx.CodegenError, match="named by 3, an int"):
        graph.python_code("self")


def test_complex_arguments_keep_their_signs() -> None:
    for value in (complex(a, b) for a in (0.0, -0.0, 1.0, -1.0) for b in (0.0, -0.0, 2.0, -2.0)):
        got = program_with(value)(1)[2]
        assert cmath.polar(got) == cmath.polar(value)
        assert same(got, value)


@pytest.mark.parametrize("hold", [lambda node: {node}, lambda node: frozenset([(1, node)]), lambda node: [{node: 1}]])
def test_traced_values_in_sets_and_keys_are_refused(hold: Callable[[fx.Node], Any]) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((x, hold(graph.call_function(torch.neg, (x,)))))
    with pytest.raises(fx.CodegenError, match="a traced value, is an element of a set or a key of a dict"):
        graph.python_code("self")


def test_a_default_cannot_be_a_traced_value() -> None:
    graph = fx.Graph()
    graph.output(graph.placeholder("y", default_value=[graph.placeholder("x")]))
    with pytest.raises(fx.CodegenError, match="the default of 'y' depends on a traced value"):
        graph.python_code("self")


def test_an_input_called_self_is_refused_unless_it_is_the_first() -> None:
    with pytest.raises(
        fx.CodegenError, match=r"two inputs are called 'self'[\s\S]*the function's first input is 'self'"
    ):
        _ = fx.symbolic_trace(lambda x, self: x + self).code
    assert "def forward(self, x):" in fx.symbolic_trace(lambda self, x: x + 1).code
