"""The options of a Tracer, and what it refuses."""

from __future__ import annotations

import copy
import math
import operator
from queue import SimpleQueue
from types import ModuleType

import pytest
import torch
from torch import nn

from .libraries import THEIRS, refuses
from .test_tracer import Net, passing, targets


def area(radius):
    """A function of this module that is wrapped by its tracer only."""
    return radius * radius * math.pi


def test_functions_may_be_wrapped_for_one_tracer(library: ModuleType) -> None:
    def circles(x):
        return area(x) + area(2.0)

    assert "area" not in targets(library.Tracer().trace(circles))
    assert targets(library.Tracer(autowrap_functions=(area,)).trace(circles)) == ["x", "area", "add", "output"]


def test_functions_of_modules_are_wrapped(library: ModuleType) -> None:
    def root(x):
        return math.sqrt(x) + operator.concat(x, x)

    wrapping = library.Tracer(autowrap_modules=(math, operator))
    assert targets(wrapping.trace(root)) == ["x", "sqrt", "concat", "add", "output"]
    assert math.sqrt(4.0) == 2.0
    assert operator.concat([1], [2]) == [1, 2]


def test_math_is_restored_after_a_failing_trace(library: ModuleType) -> None:
    before = (math.sqrt, nn.Module.__call__, nn.Module.__getattr__, torch.nn.functional.relu)

    def fails(x):
        math.sqrt(x)
        raise KeyError

    with pytest.raises(KeyError):
        library.symbolic_trace(fails)
    assert (math.sqrt, nn.Module.__call__, nn.Module.__getattr__, torch.nn.functional.relu) == before


class ParameterShapes(nn.Module):
    """Branches on the shape of a parameter."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3))

    def forward(self, x):
        if self.weight.shape[0] == 2 and self.weight.dim() == 2 and self.weight.ndim == 2:
            x = x + self.weight.numel() + self.weight.nelement() + self.weight.size()[1]
        return x * self.weight


def test_parameter_shapes_may_be_constant(library: ModuleType) -> None:
    with refuses(library, library.proxy.TraceError):
        library.Tracer().trace(ParameterShapes())
    graph = library.Tracer(param_shapes_constant=True).trace(ParameterShapes())
    additions = graph.find_nodes(op="call_function", target=operator.add)
    assert [node.args[1] for node in additions] == [6, 6, 3]


def test_buffers_may_become_proxies(library: ModuleType) -> None:
    class Buffers(Net):
        def forward(self, x):
            return x + self.offset.neg() + self.offset

    graph = library.Tracer().trace(Buffers())
    frozen = ["_tensor_constant0", "add"] if library is THEIRS else ["offset", "neg", "add"]
    assert targets(graph) == ["x", *frozen, "offset", "add", "output"]

    class Proxied(library.Tracer):
        proxy_buffer_attributes = True

    assert targets(Proxied().trace(Buffers())) == ["x", "offset", "neg", "add", "add", "output"]


def test_mutable_operations_may_be_refused(library: ModuleType) -> None:
    class Careful(library.Tracer):
        check_mutable_operations = True

    def mutates(x):
        torch.sigmoid(x, out=x)
        return x

    library.Tracer().trace(mutates)
    with refuses(library, RuntimeError, match="sigmoid"):
        Careful().trace(mutates)
    assert targets(Careful().trace(lambda x: x + torch.sigmoid(x))) == ["x", "sigmoid", "add", "output"]


def test_stack_traces_may_be_recorded(library: ModuleType) -> None:
    class Recording(library.Tracer):
        record_stack_traces = True

    graph = Recording().trace(Net())
    for node in graph.nodes:
        if node.op not in ("placeholder", "output"):
            assert "test_tracer.py" in node.stack_trace
            assert "return self.head(self.block(x)) * self.scale + self.offset" in node.stack_trace


def test_module_stack_counts_repeated_calls(library: ModuleType) -> None:
    class Repeated(Net):
        def forward(self, x):
            return self.block(self.block(x))

    graph = library.Tracer().trace(Repeated())
    stacks = [list(node.meta["nn_module_stack"]) for node in graph.find_nodes(op="call_module", target="block.0")]
    assert stacks == [["block", "block.0"], ["block@1", "block.0@1"]]


def test_scope_of_each_node_is_recorded(library: ModuleType) -> None:
    tracer = library.Tracer()
    tracer.trace(Net())
    scopes = tracer.node_name_to_scope
    assert scopes["block_0"][0] == "block.0"
    assert scopes["block_0"][1] is nn.Linear
    assert scopes["mul"][0] == ""


def test_another_method_may_be_traced(library: ModuleType) -> None:
    class Named(library.Tracer):
        traced_func_name = "backwards"

    class Reversible(Net):
        def backwards(self, y):
            return self.head(y)

    assert targets(Named().trace(Reversible())) == ["y", "head", "output"]


def test_tracer_is_copied(library: ModuleType) -> None:
    tracer = library.Tracer()
    tracer.trace(Net())
    copied = copy.deepcopy(tracer)
    assert copied is not tracer
    assert type(copied) is type(tracer)


def test_root_must_be_a_module_or_a_function(library: ModuleType) -> None:
    with refuses(library, AssertionError):
        library.Tracer().trace(torch.relu)


def test_module_without_self_is_refused(library: ModuleType) -> None:
    class Selfless(nn.Module):
        def forward(*args):
            return args[1]

    with refuses(library, RuntimeError, match="self"):
        library.Tracer().trace(Selfless())


def test_concrete_arguments_by_position_must_match_in_number(library: ModuleType) -> None:
    def two(x, y):
        return x + y

    with refuses(library, RuntimeError, match="2"):
        library.symbolic_trace(two, concrete_args=(1,))


def test_tracing_is_visible_while_it_lasts(library: ModuleType) -> None:
    is_tracing = library._symbolic_trace.is_fx_tracing if library is THEIRS else library.is_fx_tracing
    recorded: SimpleQueue[bool] = SimpleQueue()  # a list of an outer function would be restored

    def root(x):
        recorded.put(is_tracing())
        return x

    library.symbolic_trace(root)
    assert recorded.get_nowait() is True
    assert is_tracing() is False


def test_traces_may_be_nested(library: ModuleType) -> None:
    def inner(x):
        return math.sqrt(x) + 1

    def outer(x):
        inside.put(targets(library.symbolic_trace(inner).graph))
        return inner(x) * math.sqrt(x)

    inside: SimpleQueue[list[str]] = SimpleQueue()
    graph = library.symbolic_trace(outer).graph
    assert inside.get_nowait() == ["x", "sqrt", "add", "output"]
    assert targets(graph) == ["x", "sqrt", "add", "sqrt", "mul", "output"]


def test_proxyable_classes_are_built_in_the_graph(library: ModuleType) -> None:
    metaclass = library.ProxyableClassMeta
    Made = metaclass("Made", (), {"__init__": lambda self, left, right: setattr(self, "pair", (left, right))})
    Made.__module__ = __name__

    def builds(x):
        instance = Made(x, 2)
        return instance

    graph = library.symbolic_trace(builds).graph
    assert targets(graph) == ["x", "Made", "output"]
    outside = Made(1, 2)
    interned = library.Tracer()
    graph = interned.trace(passing(outside))
    assert targets(graph) == ["x", "_Made_constant_0", "method", "output"]
    assert library.GraphModule(interned.root, graph)._Made_constant_0 is outside


def test_wrap_works_at_module_scope_only(library: ModuleType) -> None:
    with refuses(library, NotImplementedError):
        library.wrap("area")
    namespace = {"library": library, "__name__": "scratch", "area": area}
    exec("library.wrap('area'); wrapped = library.wrap(area)", namespace)
    assert namespace["wrapped"] is area
    with refuses(library, RuntimeError):
        exec("library.wrap(3)", namespace)
