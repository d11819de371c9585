"""Random small programs full of views, writes, containers, modules and unknown functions, and the results of a run."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn
from torch.utils._pytree import tree_leaves

import fx

_torch: Any = torch

KEPT: list[Any] = []


def keeping(x: Any) -> Any:
    """Keep the argument, write to it, and return the argument before; a function without a schema."""
    KEPT.append(x)
    for pattern in KEPT:
        for leaf in tree_leaves(pattern):
            if isinstance(leaf, torch.Tensor):
                leaf.add_(1)
    return KEPT[0]


@fx.operators.effects.declare_pure
def first_or_copy(x: Any, y: Any) -> Any:
    """A function that is declared pure, and may return its argument."""
    return x if x.sum() > 3 else y + 1


class UserModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(3, 3))

    def forward(self, x: Any) -> Any:
        self.kept += 1
        return self.kept


class Root(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("a", torch.arange(9.0).reshape(3, 3) / 9)
        self.register_buffer("view_of_a", self.a.t())
        self.register_buffer("b", torch.ones(3, 3))
        self.weight = nn.Parameter(torch.eye(3), requires_grad=False)
        self.linear = nn.Linear(3, 3)
        self.linear.weight = self.weight
        self.norm = nn.BatchNorm1d(3)
        self.evaluated = nn.BatchNorm1d(3).eval()
        self.evaluated.running_mean = self.norm.running_mean
        self.relu = nn.ReLU(inplace=True)
        self.identity = nn.Identity()
        self.dropout = nn.Dropout(0.5)
        self.inplace_dropout = nn.Dropout(0.5, inplace=True)
        self.sequence = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True), nn.Dropout(0.5))
        self.user = UserModule()
        self.inner = inner_program()
        self.requires_grad_(False)


def inner_program() -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    attribute = graph.get_attr("c")
    graph.call_method("add_", (x, attribute))
    graph.output(graph.call_method("view", (attribute, 3, 3)))
    return fx.GraphModule({"c": torch.ones(3, 3)}, graph)


Step = Callable[[fx.Graph, fx.Node, fx.Node, fx.Node], Any]


def function(target: Callable[..., Any], *rest: Any, **kwargs: Any) -> Step:
    return lambda graph, x, y, z: graph.call_function(target, (x, *rest), kwargs)


def binary(target: Callable[..., Any]) -> Step:
    return lambda graph, x, y, z: graph.call_function(target, (x, y))


def method(name: str, *rest: Any) -> Step:
    return lambda graph, x, y, z: graph.call_method(name, (x, *rest))


def module(path: str) -> Step:
    return lambda graph, x, y, z: graph.call_module(path, (x,))


def attribute(path: str) -> Step:
    return lambda graph, x, y, z: graph.get_attr(path)


def element(graph: fx.Graph, container: fx.Node, key: Any) -> fx.Node:
    return graph.call_function(operator.getitem, (container, key))


def of_joined_tuples(graph: fx.Graph, x: Any, y: Any, z: Any) -> fx.Node:
    first, second = (graph.call_function(tuple, ((value,),)) for value in (x, y))
    return element(graph, graph.call_function(operator.add, (first, second)), 1)


def of_dict(graph: fx.Graph, x: Any, y: Any, z: Any) -> fx.Node:
    call = graph.call_function(dict, (), {"a": x})
    graph.call_function(operator.setitem, (call, "b", y))
    return element(graph, call, "b")


def of_list(graph: fx.Graph, x: Any, y: Any, z: Any) -> fx.Node:
    call = graph.call_function(list, ((x,),))
    graph.call_method("append", (call, y))
    return element(graph, call, -1)


def of_iterator(graph: fx.Graph, x: Any, y: Any, z: Any) -> fx.Node:
    call = graph.call_function(zip, ((x, y),))
    used = graph.call_function(list, (call,))
    length = graph.call_function(len, (graph.call_function(list, (call,)),))
    graph.call_function(list, (call,))
    return graph.call_function(operator.add, (element(graph, element(graph, used, 1), 0), length))


def scaled_by_size(graph: fx.Graph, x: Any, y: Any, z: Any) -> fx.Node:
    size = element(graph, graph.call_function(getattr, (x, "shape")), 0)
    return graph.call_function(operator.mul, (x, graph.call_function(operator.add, (size, 1))))


def checked(graph: fx.Graph, x: Any, y: Any, z: Any) -> fx.Node:
    total = graph.call_function(torch.sum, (x,))
    graph.call_function(_torch._assert, (graph.call_function(operator.lt, (total, 60)), "too large"))
    return x


def without_gradients(graph: fx.Graph, x: Any, y: Any, z: Any) -> fx.Node:
    graph.call_function(_torch._C._set_grad_enabled, (False,))
    call = graph.call_function(torch.relu, (x,))
    graph.call_function(_torch._C._set_grad_enabled, (True,))
    return call


# Arithmetic; views and possible views; writes; random numbers, checks, modes, unknown calls; modules and their state.
STEPS: list[Step] = [
    function(torch.relu), binary(operator.add), binary(torch.mul), binary(torch.matmul), function(operator.mul, 2),
    function(operator.add, 1.5), lambda graph, x, y, z: graph.call_function(torch.ones, (3, 3)), method("t"),
    method("view", 3, 3), method("reshape", 3, 3), method("contiguous"), method("float"), method("detach"),
    method("clone"), function(operator.getitem, slice(0, 3)), function(torch.flatten, 0, 0),
    function(F.dropout, 0.5, False), lambda graph, x, y, z: graph.call_method("type_as", (x, y)),
    lambda graph, x, y, z: graph.call_function(torch.einsum, ("ij->ji", x)),
    lambda graph, x, y, z: graph.call_function(torch.einsum, ("ij,jk->ik", x, y)),
    lambda graph, x, y, z: element(graph, graph.call_function(torch.broadcast_tensors, (x, y)), 1),
    lambda graph, x, y, z: element(graph, graph.call_method("chunk", (x, 1)), 0),
    lambda graph, x, y, z: graph.call_function(
        torch.cat, ([element(graph, x, slice(0, 1)), element(graph, y, slice(0, 2))],)
    ),
    lambda graph, x, y, z: element(graph, graph.call_function(tuple, ((x, y),)), 1), of_joined_tuples, of_dict,
    of_list, of_iterator, scaled_by_size, method("add_", 1), method("relu_"), method("t_"), method("normal_"),
    lambda graph, x, y, z: graph.call_method("mul_", (x, y)),
    lambda graph, x, y, z: graph.call_method("copy_", (x, y)),
    lambda graph, x, y, z: graph.call_method("set_", (x, y)),
    lambda graph, x, y, z: graph.call_function(F.relu, (x,), {"inplace": True}),
    lambda graph, x, y, z: graph.call_function(F.dropout, (x,), {"inplace": True}),
    lambda graph, x, y, z: graph.call_function(torch.add, (x, y), {"out": z}),
    lambda graph, x, y, z: graph.call_function(operator.iadd, (x, y)),
    lambda graph, x, y, z: (graph.call_function(operator.setitem, (x, 0, 7.0)), x)[1],
    lambda graph, x, y, z: (graph.call_function(operator.setitem, (x, 1, element(graph, y, 0))), x)[1],
    function(torch.rand_like), function(F.dropout), checked, without_gradients, function(keeping),
    binary(first_or_copy), module("linear"), module("norm"), module("evaluated"), module("relu"), module("identity"),
    module("dropout"), module("inplace_dropout"), module("sequence"), module("user"), module("inner"), attribute("a"),
    attribute("view_of_a"), attribute("b"), attribute("weight"), attribute("norm.running_mean"),
    attribute("norm.running_var"),
    lambda graph, x, y, z: graph.call_function(
        F.batch_norm, (x, graph.get_attr("norm.running_mean"), graph.get_attr("norm.running_var")), {"training": True}
    ),
]  # fmt: skip

Recipe = tuple[tuple[tuple[int, int, int, int], ...], tuple[int, ...]]
"""The steps, each with the numbers of the values it takes, and the numbers of the values that are returned."""

numbers = st.integers(0, 1000)
recipes: st.SearchStrategy[Recipe] = st.tuples(
    st.lists(st.tuples(st.integers(0, len(STEPS) - 1), numbers, numbers, numbers), min_size=1, max_size=8).map(tuple),
    st.lists(numbers, min_size=1, max_size=3).map(tuple),
)


def build(recipe: Recipe) -> fx.GraphModule:
    """The program of a recipe, with fresh state. The same recipe gives the same nodes."""
    steps, returned = recipe
    graph = fx.Graph()
    values = [graph.placeholder("p"), graph.placeholder("q")]
    for step, first, second, third in steps:
        x, y, z = (values[-1 - number % len(values)] for number in (first, second, third))
        new = STEPS[step](graph, x, y, z)
        if new.op == "get_attr" and "running" in new.target:
            new = graph.call_method("expand", (new, 3, 3))
            new = new if third % 2 else graph.call_method("clone", (new,))
        values.append(new)
    graph.output(tuple(values[-1 - number % len(values)] for number in returned))
    return fx.GraphModule(Root(), graph)


def storage(value: Any) -> int | None:
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else None


def inputs_of(shared: int) -> list[torch.Tensor]:
    """Two inputs: apart, the same one twice, or one a view of the other."""
    p = torch.linspace(-1, 1, 9).reshape(3, 3)
    return [p, (p.flip(0) + 0.5, p, p.t())[shared]]


def run(program: fx.GraphModule, shared: int, values: dict[fx.Node, Any] | None = None) -> dict[str, Any]:
    """Run every node in order, and return all that can be seen from outside: results, inputs, state, random numbers."""
    torch.manual_seed(0)
    KEPT.clear()
    arguments = iter(inputs := inputs_of(shared))
    env: dict[fx.Node, Any] = {} if values is None else values
    record: dict[str, Any] = {"raised": None, "results": ()}
    grad = torch.is_grad_enabled()
    try:
        for node in program.graph.nodes:
            args, kwargs = (fx.map_arg(part, env.__getitem__) for part in (node.args, node.kwargs))
            kwargs = dict(kwargs)
            match node.op:
                case "placeholder":
                    env[node] = next(arguments)
                case "get_attr":
                    env[node] = operator.attrgetter(node.target)(program)
                case "call_function":
                    env[node] = node.target(*thawed(args), **kwargs)
                case "call_method":
                    env[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
                case "call_module":
                    env[node] = program.get_submodule(node.target)(*args)
                case _:
                    record["results"] = args[0]
    except (AssertionError, RuntimeError, TypeError, IndexError) as error:
        record["raised"] = type(error)
    finally:
        torch.set_grad_enabled(grad)
    objects = [value for value in (*tree_leaves(list(record["results"])), *inputs) if isinstance(value, torch.Tensor)]
    record["same"] = [a is b for a in objects for b in objects]
    state = dict(program.named_buffers())
    state = {key: value for key, value in state.items() if "_folded" not in key}
    record["storages"] = [storage(a) == storage(b) for a in (*objects, *state.values()) for b in objects]
    record |= {"given": inputs, "state": state, "kept": KEPT}
    record["random"] = None if record["raised"] else torch.get_rng_state()
    return copy.deepcopy(record)


def thawed(args: Any) -> Any:
    return tuple(list(arg) if isinstance(arg, list) else arg for arg in args)


def same(one: Any, two: Any) -> bool:
    """Return whether two runs look the same, not-a-numbers included."""
    if isinstance(one, torch.Tensor):
        return one.shape == two.shape and torch.equal(one.nan_to_num(0.1, 0.2, 0.3), two.nan_to_num(0.1, 0.2, 0.3))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    return type(one) is type(two) and one == two
