"""The methods and options of a Tracer that can be overridden and chosen."""

from __future__ import annotations

import operator
from types import ModuleType

import pytest
import torch
from torch import nn

import fx

from .libraries import refuses


class Net(nn.Module):
    """A convolution-free net with a traced-through block."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("offset", torch.zeros(2))

    def forward(self, x):
        return self.head(self.block(x)) * self.scale + self.offset


def targets(graph) -> list[str]:
    return [node.target if isinstance(node.target, str) else node.target.__name__ for node in graph.nodes]


def test_trace_returns_a_graph_and_keeps_the_root(library: ModuleType) -> None:
    tracer, root = library.Tracer(), Net()
    graph = tracer.trace(root)
    assert isinstance(graph, library.Graph)
    assert tracer.root is root
    assert tracer.graph is graph
    assert tracer.root_module_name == "Net"
    free = library.Tracer()
    free.trace(lambda x: x + torch.ones(1))
    assert isinstance(free.root, nn.Module)


def test_leaves_are_chosen_by_is_leaf_module(library: ModuleType) -> None:
    recorded = []

    class WholeBlocks(library.Tracer):
        def is_leaf_module(self, module, module_qualified_name):
            recorded.append((type(module).__name__, module_qualified_name))
            return isinstance(module, nn.Sequential)

    graph = WholeBlocks().trace(Net())
    assert recorded == [("Linear", "head"), ("Sequential", "block")] or recorded[0] == ("Sequential", "block")
    assert targets(graph)[:2] == ["x", "block"]
    assert "linear" in targets(graph)


def test_default_leaves_are_modules_of_torch(library: ModuleType) -> None:
    tracer = library.Tracer()
    assert tracer.is_leaf_module(nn.Linear(1, 1), "linear")
    assert not tracer.is_leaf_module(nn.Sequential(), "block")
    assert not tracer.is_leaf_module(Net(), "net")
    assert tracer.is_leaf_module(nn.ModuleList(), "list")


def test_call_module_may_be_overridden(library: ModuleType) -> None:
    calls = []

    class Recording(library.Tracer):
        def call_module(self, module, forward, args, kwargs):
            calls.append((self.path_of_module(module), len(args), kwargs))
            return super().call_module(module, forward, args, kwargs)

    Recording().trace(Net())
    assert calls == [("block", 1, {}), ("block.0", 1, {}), ("block.1", 1, {}), ("head", 1, {})]


def test_call_module_may_call_forward_itself(library: ModuleType) -> None:
    class Inline(library.Tracer):
        def call_module(self, module, forward, args, kwargs):
            return forward(*args, **kwargs)

    assert "call_module" not in {node.op for node in Inline().trace(Net()).nodes}


def test_path_of_module_names_modules_of_the_root(library: ModuleType) -> None:
    root, tracer = Net(), library.Tracer()
    tracer.trace(root)
    assert tracer.path_of_module(root.block[0]) == "block.0"
    assert tracer.path_of_module(root) == ""
    with refuses(library, NameError, ours=fx.TraceError):
        tracer.path_of_module(nn.Linear(1, 1))


def test_nodes_go_through_create_node_and_create_proxy(library: ModuleType) -> None:
    nodes, proxies = [], []

    class Recording(library.Tracer):
        def create_node(self, kind, target, args, kwargs, name=None, type_expr=None):
            nodes.append(kind)
            node = super().create_node(kind, target, args, kwargs, name, type_expr)
            node.meta["seen"] = True
            return node

        def create_proxy(self, kind, target, args, kwargs, name=None, type_expr=None, *rest, **more):
            proxies.append(kind)
            return super().create_proxy(kind, target, args, kwargs, name, type_expr, *rest, **more)

    graph = Recording().trace(Net())
    assert nodes == [node.op for node in graph.nodes]
    assert " ".join(proxies) == "placeholder call_module call_module call_module get_attr call_function call_function"
    assert all(node.meta["seen"] for node in graph.nodes)


def test_create_node_of_the_old_signature_is_enough(library: ModuleType) -> None:
    class Refusing(library.Tracer):
        def create_node(self, kind, target, args, kwargs, name=None, type_expr=None):
            if kind == "call_function" and target is operator.add:
                raise KeyError("no additions")
            return super().create_node(kind, target, args, kwargs, name, type_expr)

    with pytest.raises(KeyError, match="no additions"):
        Refusing().trace(Net())


def test_values_become_arguments_in_create_arg(library: ModuleType) -> None:
    class Meters:
        def __init__(self, length):
            self.length = length

    class Converting(library.Tracer):
        def create_arg(self, a):
            if isinstance(a, Meters):
                return self.create_arg((a.length, "m"))
            return super().create_arg(a)

    def passes(x):
        return x.method({"k": [Meters(x)]}, Meters(3))

    x, method, _ = Converting().trace(passes).nodes
    assert method.args == (x, {"k": [(x, "m")]}, (3, "m"))


def test_objects_may_convert_themselves(library: ModuleType) -> None:
    class Pair:
        def __init__(self, left, right):
            self.left, self.right = left, right

        def __fx_create_arg__(self, tracer):
            return tracer.create_node(
                "call_function", tuple, args=(tracer.create_arg([self.left, self.right]),), kwargs={}
            )

    assert targets(library.Tracer().trace(lambda x: x.method(Pair(x, 2)))) == ["x", "tuple", "method", "output"]


def test_unknown_objects_are_refused_as_arguments(library: ModuleType) -> None:
    class Unknown:
        pass

    for value in (Unknown(), {1, 2}, frozenset([1])):
        with refuses(library, NotImplementedError, match=type(value).__name__):
            library.Tracer().trace(passing(value))


def passing(value):
    """A function that hands ``value`` to a traced method."""

    def passes(x):
        return x.method(value)

    return passes


def test_nodes_as_dict_keys_are_refused(library: ModuleType) -> None:
    def keyed(x):
        return x.method({(x, 1): 2})

    with refuses(library, RuntimeError):
        library.Tracer().trace(keyed)


def test_proxies_may_be_of_another_class(library: ModuleType) -> None:
    class Shaped(library.Proxy):
        @property
        def shape(self):
            return (2, 3)

    class Shaping(library.Tracer):
        def proxy(self, node):
            return Shaped(node, self)

    def reshape(x):
        return x.reshape(x.shape[1], x.shape[0]).neg()

    graph = Shaping().trace(reshape)
    assert targets(graph) == ["x", "reshape", "neg", "output"]
    assert list(graph.nodes)[1].args[1:] == (3, 2)


def test_parameters_become_nodes_in_getattr(library: ModuleType) -> None:
    recorded = []

    class Recording(library.Tracer):
        def getattr(self, attr, attr_val, parameter_proxy_cache):
            recorded.append(attr)
            return super().getattr(attr, attr_val, parameter_proxy_cache)

    Recording().trace(Net())
    assert {"block", "head", "scale", "offset"} <= set(recorded)

    class Real(library.Tracer):
        def getattr(self, attr, attr_val, parameter_proxy_cache):
            return attr_val

    graph = Real().trace(Net())
    assert [node.target for node in graph.find_nodes(op="get_attr")] == ["scale", "offset"]


def test_each_parameter_is_fetched_once(library: ModuleType) -> None:
    class Twice(Net):
        def forward(self, x):
            return x * self.scale + self.scale * self.scale

    assert len(library.Tracer().trace(Twice()).find_nodes(op="get_attr")) == 1


def test_truth_may_be_decided_in_to_bool(library: ModuleType) -> None:
    class Optimistic(library.Tracer):
        def to_bool(self, obj):
            return True

    def branch(x):
        return x.neg() if x.sum() > 0 else x

    assert targets(Optimistic().trace(branch)) == ["x", "sum", "gt", "neg", "output"]


def test_iteration_may_be_decided_in_iter(library: ModuleType) -> None:
    class Pairs(library.Tracer):
        def iter(self, obj):
            return (obj[index] for index in range(2))

    def loop(x):
        return [part + 1 for part in x]

    assert targets(Pairs().trace(loop)) == ["x", "getitem", "add", "getitem", "add", "output"]


def test_keys_may_be_decided_in_keys(library: ModuleType) -> None:
    class Known(library.Tracer):
        def keys(self, obj):
            return ["a", "b"]

    def inner(a, b):
        return a + b

    def expand(options):
        return inner(**options)

    assert targets(Known().trace(expand)) == ["options", "getitem", "getitem", "add", "output"]


def test_fresh_names_avoid_attributes_of_the_root(library: ModuleType) -> None:
    tracer = library.Tracer()
    tracer.trace(Net())
    assert tracer.get_fresh_qualname("extra") == "extra0"
    tracer.root.extra0 = 1
    tracer.root.extra1 = 1
    assert tracer.get_fresh_qualname("extra") == "extra2"


def test_constants_become_attributes_of_the_module(library: ModuleType) -> None:
    constant = torch.ones(2)

    class Constants(Net):
        def forward(self, x):
            return self.head(x) + constant - constant + torch.zeros(2)

    module = library.symbolic_trace(Constants())
    assert module._tensor_constant0 is constant
    read = [node.target for node in module.graph.find_nodes(op="get_attr")]
    assert read == ["_tensor_constant0", "_tensor_constant0", "_tensor_constant1"]
