"""Programs that transform graphs as libraries on torch.fx do, written for this test: the same with ``fx``."""

import copy
import operator
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from .sides import Side, Uses, assert_same

USES = Uses()
use = USES.add


class Attention(nn.Module):
    """Three linear layers of one input, a division, and a norm behind a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.out, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        scores = (self.query(x) @ self.key(x).transpose(-2, -1)) / 2.0
        return self.norm(self.out(torch.softmax(scores, -1) @ self.value(x)))


X = torch.linspace(-1, 1, 12).reshape(3, 4)


def attention(side: Side) -> Any:
    return side.library.symbolic_trace(Attention().eval())


# Transformations as objects, which declare whether they keep the numbers, and can be undone.


def transformations(side: Side) -> Any:
    fx = side.library

    class Transformation:
        preserves_computation = False

        def __call__(self, graph_module: fx.GraphModule, lint_and_recompile: bool = True) -> fx.GraphModule:
            graph_module = self.transform(graph_module)
            if lint_and_recompile:
                graph_module.graph.lint()
                graph_module.recompile()
            return graph_module

        def mark(self, node: fx.Node) -> fx.Node:
            node.transformations = {*getattr(node, "transformations", ()), type(self).__name__}
            return node

        def marked(self, graph_module: fx.GraphModule) -> list[fx.Node]:
            wanted = type(self).__name__
            return [node for node in graph_module.graph.nodes if wanted in getattr(node, "transformations", ())]

    class MultiplyByInverse(Transformation):
        preserves_computation = True

        def transform(self, graph_module: fx.GraphModule) -> fx.GraphModule:
            for node in graph_module.graph.nodes:
                if node.op == "call_function" and node.target is operator.truediv:
                    node.target = operator.mul
                    node.args = (node.args[0], 1 / node.args[1])
                    self.mark(node)
            return graph_module

        def reverse(self, graph_module: fx.GraphModule) -> fx.GraphModule:
            for node in self.marked(graph_module):
                node.target = operator.truediv
                node.update_arg(1, 1 / node.args[1])
            graph_module.recompile()
            return graph_module

    class MergeLinears(Transformation):
        def transform(self, graph_module: fx.GraphModule) -> fx.GraphModule:
            by_input = defaultdict(list)
            for node in graph_module.graph.nodes:
                if node.op == "call_module" and isinstance(graph_module.get_submodule(node.target), nn.Linear):
                    by_input[node.args[0]].append(node)
            for source, nodes in by_input.items():
                if len(nodes) > 1:
                    self.merge(graph_module, source, nodes)
            graph_module.delete_all_unused_submodules()
            return graph_module

        def merge(self, graph_module: fx.GraphModule, given: fx.Node, nodes: list[fx.Node]) -> None:
            layers = [graph_module.get_submodule(node.target) for node in nodes]
            merged = nn.Linear(4, 4 * len(layers))
            with torch.no_grad():
                merged.weight.copy_(torch.cat([layer.weight for layer in layers]))
                merged.bias.copy_(torch.cat([layer.bias for layer in layers]))
            graph_module.add_module("merged", merged)
            with graph_module.graph.inserting_before(nodes[0]):
                whole = self.mark(graph_module.graph.call_module("merged", (given,)))
                for number, node in enumerate(nodes):
                    cut = (Ellipsis, slice(4 * number, 4 * number + 4))
                    part = graph_module.graph.call_function(operator.getitem, args=(whole, cut))
                    node.replace_all_uses_with(part)
            for node in nodes:
                graph_module.graph.erase_node(node)

    return MultiplyByInverse(), MergeLinears()


@use
def transformation_that_is_taken_back(side: Side) -> Any:
    by_inverse, _ = transformations(side)
    changed = by_inverse(attention(side))
    code = changed.code
    return code, changed(X), by_inverse.reverse(changed)


@use
def transformation_that_merges_layers(side: Side) -> Any:
    _, merge = transformations(side)
    changed = merge(attention(side))
    return changed, changed(X), [name for name, _ in changed.named_parameters()]


@use
def transformations_composed(side: Side) -> Any:
    changed = attention(side)
    for transformation in transformations(side):
        changed = transformation(changed, lint_and_recompile=False)
    changed.graph.lint()
    changed.recompile()
    return changed, changed(X)


@use
def module_replaced_by_its_path(side: Side) -> Any:
    traced = attention(side)
    modules = dict(traced.named_modules())
    for node in traced.graph.nodes:
        if node.op == "call_module" and isinstance(modules[node.target], nn.BatchNorm1d):
            before, norm = modules[node.args[0].target], modules[node.target]
            parent, _, name = node.args[0].target.rpartition(".")
            setattr(modules[parent], name, torch.nn.utils.fusion.fuse_linear_bn_eval(before, norm))
            node.replace_all_uses_with(node.args[0])
            traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced, traced(X)


# A model cut into shards with about as many parameters each.


@use
def shards(side: Side) -> Any:
    fx = side.library
    traced = attention(side)
    sizes = {name: sum(p.numel() for p in module.parameters()) for name, module in traced.named_children()}
    shard_of: dict[Any, int] = {}
    total = 0
    for node in traced.graph.nodes:
        total += sizes.get(node.target, 0) if node.op == "call_module" else 0
        shard_of[node] = min(2, total * 3 // (sum(sizes.values()) + 1))
    programs, x = [], X
    carried = next(iter(traced.graph.nodes))
    for number in range(3):
        graph = fx.Graph()
        inputs = [node for node in shard_of if shard_of[node] < number and _used_from(node, shard_of, number)]
        environment = {node: graph.placeholder(node.name) for node in inputs or [carried]}
        for node, shard in shard_of.items():
            if shard == number and node.op not in ("placeholder", "output"):
                environment[node] = graph.node_copy(node, lambda used, known=environment: known[used])
        results = [node for node in environment if _used_from(node, shard_of, number + 1)]
        last = next(node for node in shard_of if node.op == "output").args[0]
        graph.output(tuple(environment[node] for node in results or [last]))
        graph.lint()
        programs.append(fx.GraphModule(traced, graph))
        x = programs[-1](*x) if isinstance(x, tuple) else programs[-1](x)
    return *programs, x


def _used_from(node: Any, shard_of: dict[Any, int], number: int) -> bool:
    return any(shard_of[user] >= number for user in node.users if user.op != "output")


# A converter: an interpreter with a table of conversions by node.


@use
def converter_by_table(side: Side) -> Any:
    fx, created = side.library, []
    table: dict[str, Callable[..., Any]] = {
        "torch.nn.modules.linear.Linear": lambda layer, x: layer(x),
        "torch.softmax": torch.softmax,
        "_operator.matmul": operator.matmul,
        "_operator.truediv": operator.truediv,
    }

    class Converter(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            self.current = str(n)
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            assert isinstance(args, tuple) and isinstance(kwargs, dict)
            return super().run_node(n)

        def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
            layer = self.fetch_attr(target)
            name = f"{type(layer).__module__}.{type(layer).__qualname__}"
            created.append((self.current, name))
            return table[name](layer, *args) if name in table else super().call_module(target, args, kwargs)

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            created.append((self.current, fx.node._get_qualified_name(target)))
            return table[created[-1][1]](*args, **kwargs)

    return Converter(attention(side)).run(X), created


@use
def bias_is_a_node_of_its_own(side: Side) -> Any:
    fx = side.library

    class Decompose(fx.Transformer):
        def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
            if not isinstance(self.submodules[target], nn.Linear):
                return super().call_module(target, args, kwargs)
            weight, bias = (
                fx.Proxy(self.new_graph.get_attr(f"{target}.{name}"), self.tracer) for name in ("weight", "bias")
            )
            return torch.matmul(args[0], weight.t()) + bias

    changed = Decompose(attention(side)).transform()
    return changed, changed(X)


# A joint graph taken apart into one for the forward and one for the backward pass.


@use
def joint_graph_taken_apart(side: Side) -> Any:
    fx = side.library

    def joint(primal: torch.Tensor, tangent: torch.Tensor) -> Any:
        hidden = torch.tanh(primal)
        return hidden.sin(), tangent * hidden.cos() * (1 - hidden * hidden)

    traced = fx.symbolic_trace(joint)
    nodes = {node.name: node for node in traced.graph.nodes}
    output = next(node for node in reversed(traced.graph.nodes) if node.op == "output")

    def extract(inputs: list[Any], outputs: list[Any]) -> Any:
        graph, environment = fx.Graph(), {}
        for node in inputs:
            new = graph.placeholder(node.name)
            new.meta = node.meta
            environment[node] = new
        for node in traced.graph.nodes:
            needed = all(used in environment for used in node.all_input_nodes)
            if node in environment or node.op in ("placeholder", "output") or not needed:
                continue
            environment[node] = graph.node_copy(node, lambda used: environment[used])
        graph.output(fx.map_arg(outputs, lambda used: environment[used]))
        graph.eliminate_dead_code()
        graph.lint()
        return fx.GraphModule(traced, graph)

    forward = extract([nodes["primal"]], [output.args[0][0], nodes["tanh"]])
    backward = extract([nodes["tanh"], nodes["tangent"]], [output.args[0][1]])
    value, saved = forward(X)
    for node in traced.graph.nodes:
        node.distance = 1 + max((user.distance for user in node.users if hasattr(user, "distance")), default=0)
    return forward, backward, value, *backward(saved, torch.ones(3, 4))


# Observers inserted after nodes, and counted.


@use
def observers_behind_nodes(side: Side) -> Any:
    traced = copy.deepcopy(attention(side))
    for number, node in enumerate(list(traced.graph.nodes)):
        if node.op == "call_module":
            traced.add_submodule(f"observer_{number}", nn.Identity())
            users = list(node.users)
            with traced.graph.inserting_after(node):
                observed = traced.graph.create_node("call_module", f"observer_{number}", (node,), {})
            for user in users:
                user.replace_input_with(node, observed)
    traced.graph.lint()
    traced.recompile()
    return traced, traced(X), [len(node.users) for node in traced.graph.nodes]


@use
def constants_put_beside_a_program(side: Side) -> Any:
    module, traced = side.library.graph_module, attention(side)
    module._assign_attr(torch.ones(4), traced, "constants.shift")
    module._copy_attr(nn.Sequential(nn.Linear(2, 2)), traced, "0.weight")
    graph = traced.graph
    output = next(iter(graph.find_nodes(op="output")))
    with graph.inserting_before(output):
        shifted = graph.call_function(torch.add, (output.args[0], graph.get_attr("constants.shift")))
    output.update_arg(0, shifted)
    traced.recompile()
    there = [module._has_attr(traced, name) for name in ("constants", "other")]
    module._del_attr(traced, "0.weight")
    return (
        traced,
        traced(X),
        there,
        module._get_attr(traced, "constants.shift"),
        hasattr(traced.get_submodule("0"), "weight"),
    )


@pytest.mark.parametrize("name", USES)
def test_it_does_the_same_with_fx(name: str) -> None:
    assert_same(USES[name])
