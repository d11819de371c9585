"""Tracers, proxies and graphs as libraries on torch.fx extend them, written for this test: the same with ``fx``."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from .sides import Side, Uses, assert_same

USES = Uses()
use = USES.add


X = torch.linspace(-1, 1, 6).reshape(2, 3)


def attribute(root: nn.Module, path: str) -> torch.Tensor:
    """A buffer or parameter, read without the trace's hook on attributes."""
    return {**dict(root.named_buffers()), **dict(root.named_parameters())}[path]


# A tracer that knows shapes: it runs each operation on meta tensors, and answers the program's questions.


def shape_tracer(side: Side) -> Any:
    fx = side.library

    class ShapeProxy(fx.Proxy):
        def install_metadata(self, metadata: Any) -> None:
            self._metadata = metadata

        @property
        def shape(self) -> Any:
            return self.size()

        @property
        def dtype(self) -> Any:
            return (
                self._metadata.dtype
                if hasattr(self, "_metadata")
                else self.tracer.create_proxy("call_function", getattr, (self, "dtype"), {})
            )

        def size(self, dim: Any = None) -> Any:
            return self._metadata.size() if dim is None else self._metadata.size(dim)

        def __len__(self) -> int:
            return len(self._metadata)

        def __bool__(self) -> bool:
            return bool(self._metadata) if isinstance(getattr(self, "_metadata", None), bool) else super().__bool__()

        def __getattr__(self, name: str) -> Any:
            if name == "_metadata":
                return self.__getattribute__(name)
            return ShapeAttribute(self, name)

        def __contains__(self, key: Any) -> bool:
            return key in self._metadata if isinstance(self._metadata, dict) else False

    class ShapeAttribute(ShapeProxy):
        def __init__(self, root: Any, attr: str) -> None:
            self.root, self.attr, self.tracer, self._node = root, attr, root.tracer, None
            if hasattr(root, "_metadata"):
                self.install_metadata(getattr(root._metadata, attr))

        @property
        def node(self) -> Any:
            if self._node is None:
                self._node = self.tracer.create_proxy("call_function", getattr, (self.root, self.attr), {}).node
            return self._node

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)

    class ShapeTracer(fx.Tracer):
        proxy_buffer_attributes = True

        def __init__(self) -> None:
            super().__init__(autowrap_modules=(), autowrap_functions=())
            self.read: list[str] = []

        def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, name: Any = None,
                         type_expr: Any = None, proxy_factory_fn: Any = None) -> Any:  # fmt: skip
            proxy = super().create_proxy(kind, target, args, kwargs, name, type_expr, proxy_factory_fn)
            if kind == "placeholder":
                proxy.install_metadata(self.meta_args[target])
                return proxy
            flat = pytree.tree_map(lambda value: getattr(value, "_metadata", value), (args, kwargs))
            if kind == "call_function":
                proxy.install_metadata(target(*flat[0], **flat[1]))
            elif kind == "call_method":
                proxy.install_metadata(getattr(flat[0][0], target)(*flat[0][1:], **flat[1]))
            elif kind == "get_attr":
                proxy.install_metadata(torch.empty_like(attribute(self.root, target), device="meta"))
            elif kind == "call_module":
                leaf = self.root.get_submodule(target)
                proxy.install_metadata(torch.empty(2, 4, device="meta") if isinstance(leaf, nn.Linear) else flat[0][0])
            return proxy

        def proxy(self, node: Any) -> Any:
            return ShapeProxy(node, self)

        def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
            return self._module_getattr(attr, attr_val, parameter_proxy_cache)

        def _module_getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
            self.read.append(attr)
            return super().getattr(attr, attr_val, parameter_proxy_cache)

        def call_module(self, m: Any, forward: Any, args: Any, kwargs: Any) -> Any:
            self.forward = forward
            return super().call_module(m, forward, args, kwargs)

        def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
            return super().is_leaf_module(m, module_qualified_name)

        def path_of_module(self, mod: Any) -> str:
            try:
                return super().path_of_module(mod)
            except NameError:
                return self._insert_module_as_submodule(mod)

        def _insert_module_as_submodule(self, mod: Any) -> str:
            path = f"{type(mod).__name__.lower()}_0"
            self.root.add_module(path, mod)
            self.submodule_paths = {mod: name for name, mod in self.root.named_modules()}
            return path

        def keys(self, obj: Any) -> Any:
            return list(obj._metadata) if hasattr(obj, "_metadata") else super().keys(obj)

        def trace(self, root: Any, concrete_args: Any = None, meta_args: Any = None) -> Any:
            self.meta_args = meta_args
            self.graph = super().trace(root, concrete_args=concrete_args)
            for node in self.graph.nodes:
                if node.op == "placeholder" and node.type is Any:
                    node.type = None
            return self.graph

    return ShapeTracer()


class AsksForShapes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x, scale):
        y = self.linear(x) + self.shift
        if y.size(1) == 4 and len(y) == 2:
            y = y.view(y.shape[0], 2, -1)
        return y * scale if y.dtype == torch.float32 else y


@use
def tracer_that_knows_shapes(side: Side) -> Any:
    root, tracer = AsksForShapes(), shape_tracer(side)
    graph = tracer.trace(root, {"scale": 2}, {"x": X.to("meta"), "scale": 2, "scale_1": 2})
    traced = side.library.GraphModule(root, graph)
    return [node.name for node in graph.nodes], traced(X, 2), "linear" in tracer.read, callable(tracer.forward)


@use
def module_made_while_tracing(side: Side) -> Any:
    class MakesLayers(nn.Module):
        def forward(self, x):
            return nn.ReLU()(x) + 1

    root, tracer = MakesLayers(), shape_tracer(side)
    graph = tracer.trace(root, None, {"x": X.to("meta")})
    traced = side.library.GraphModule(root, graph)
    return traced, traced(X)


# Tracers with their own leaves, arguments and inputs.


@use
def leaves_by_name(side: Side) -> Any:
    class Leaves(side.library.Tracer):
        def __init__(self, leaves: list[str]) -> None:
            super().__init__()
            self.leaves = leaves

        def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
            return type(m).__name__ in self.leaves or super().is_leaf_module(m, module_qualified_name)

    root = nn.Sequential(AsksForShapes(), nn.Sequential(nn.ReLU()))
    tracer = Leaves(["AsksForShapes"])

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = root

        def forward(self, x):
            return self.inner[1](self.inner[0](x, 2))

    graph = tracer.trace(Twice())
    scopes = {name: (path, str(kind)) for name, (path, kind) in tracer.node_name_to_scope.items()}
    return graph, scopes, [list(node.meta.get("nn_module_stack", {})) for node in graph.nodes]


class Quantity:
    """A value with a unit, which a tracer turns into one node."""

    def __init__(self, amount: Any, unit: str) -> None:
        self.amount, self.unit = amount, unit


@use
def arguments_of_other_classes(side: Side) -> Any:
    class Units(side.library.Tracer):
        def create_arg(self, a: Any) -> Any:
            if isinstance(a, Quantity):
                return self.create_node("call_function", Quantity, (self.create_arg(a.amount), a.unit), {})
            return super().create_arg(a)

    def function(x):
        return x.add_(1), Quantity(x * 2, "m")

    graph = Units().trace(function)
    return graph, side.library.GraphModule(nn.Module(), graph)(X.clone())[1].amount


@use
def values_that_make_their_own_arguments(side: Side) -> Any:
    class Lazy:
        def __init__(self, value: Any) -> None:
            self.value = value

        def __fx_create_arg__(self, tracer: Any) -> Any:
            return tracer.create_arg(self.value)

    return side.library.symbolic_trace(lambda x: torch.cat([x, Lazy(x * 2)]) if False else (x, Lazy(x * 2)))


@use
def inputs_by_another_rule(side: Side) -> Any:
    class Renamed(side.library.Tracer):
        def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
            function, args = super().create_args_for_root(root_fn, is_module, concrete_args)
            args[-1].node.type = torch.Tensor
            return function, args

    return Renamed().trace(lambda x, y: x + y)


@use
def proxies_that_answer(side: Side) -> Any:
    fx = side.library

    class Answering(fx.Proxy):
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Any:
            return (self[number] for number in range(2))

    class Tracer(fx.Tracer):
        def proxy(self, node: Any) -> Any:
            return Answering(node, self)

        def to_bool(self, obj: Any) -> bool:
            return True

        def iter(self, obj: Any) -> Any:
            return iter([obj[0]])

    def function(x):
        total = sum(part for part in x)
        return total * len(x) if total > 0 else x

    return Tracer().trace(function)


def held(value: Any, name: str) -> Any:
    """Return an attribute of a client's proxy, read in the traced program and not by a method of a tracer."""
    return getattr(value, name, None) if hasattr(value, name) else "not there"


@use
def proxies_with_attributes_of_their_own(side: Side) -> Any:
    class Noted(side.library.Proxy):
        def __init__(self, node: Any, tracer: Any) -> None:
            super().__init__(node, tracer)
            self.note = node.name

    class Closed(Noted):
        def __getattr__(self, name: str) -> Any:
            if name == "depth":
                return 3
            raise AttributeError(name)

    def trace(kind: Any) -> Any:
        class Tracer(side.library.Tracer):
            def proxy(self, node: Any) -> Any:
                return kind(node, self)

        return Tracer().trace(lambda x: [x + 1, *(held(x, name) for name in questions[kind])])

    questions = {Noted: ["note"], Closed: ["note", "depth", "width"]}
    return trace(Noted), trace(Closed)


@use
def functions_and_classes_that_stay_whole(side: Side) -> Any:
    class Pair(metaclass=side.library.ProxyableClassMeta):
        def __init__(self, left: Any, right: Any) -> None:
            self.left, self.right = left, right

        def total(self) -> Any:
            return self.left + self.right

    traced = side.library.symbolic_trace(lambda x: Pair(x, x * 2).total())
    return [(node.op, node.name) for node in traced.graph.nodes], traced(X)


@use
def parameters_with_shapes(side: Side) -> Any:
    class ReadsShapes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 2))

        def forward(self, x):
            return x @ self.weight if self.weight.shape[0] == 3 and self.weight.dim() == 2 else x

    root = ReadsShapes()
    return side.library.GraphModule(root, side.library.Tracer(param_shapes_constant=True).trace(root))


@use
def tensors_of_the_root(side: Side) -> Any:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.arange(3.0)

        def forward(self, x):
            return x + self.table

    tracer, root = side.library.Tracer(), Holds()
    tracer.trace(root)
    return {path: value.shape for value, path in tracer.tensor_attrs.items()}, tracer.tensor_attrs[root.table]


@pytest.mark.parametrize("name", USES)
def test_it_does_the_same_with_fx(name: str) -> None:
    assert_same(USES[name])
