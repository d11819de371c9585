"""Modules of torch.fx that use its public part: with ``fx`` in their text they give the same results."""

import operator
from typing import Any

import pytest
import torch
from conformance.libraries import neutral
from torch import nn

from .programs import FAKE, V, X, program, vector
from .sides import OFFERED, Side, Uses, assert_same

# of torch.jit, which these modules use, and of nodes for attributes that they set afterwards
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "UserWarning")]

USES = Uses()
use = USES.add


@use
def annotate_getitem_nodes(side: Side) -> Any:
    graph = side.library.Graph()
    pair = graph.placeholder("pair", tuple[torch.Tensor, int])
    item = graph.call_function(operator.getitem, (pair, 1))
    graph.output(item)
    side.client("torch.fx.passes.annotate_getitem_nodes").annotate_getitem_nodes(graph)
    return graph, item.type


@use
def common_subexpressions(side: Side) -> Any:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + torch.relu(x)

    traced = side.library.symbolic_trace(twice)
    result = side.client("torch.fx.passes.dialect.common.cse_pass").CSEPass()(traced)
    return result.graph_module, result.modified, result.graph_module(V)


@use
def fake_tensors(side: Side) -> Any:
    traced = program(side)
    side.client("torch.fx.passes.fake_tensor_prop").FakeTensorProp(traced, FAKE).propagate(X)
    return [(node.name, node.meta["val"].shape) for node in traced.graph.nodes]


@use
def sizes_of_nodes(side: Side) -> Any:
    traced = program(side)
    side.client("torch.fx.passes.graph_manipulation").get_size_of_all_nodes(traced, [X])
    return [(node.name, tuple(node.size_bytes)) for node in traced.graph.nodes if node.op != "output"]


@use
def targets_are_replaced(side: Side) -> Any:
    traced = vector(side)
    replace = side.client("torch.fx.passes.graph_manipulation").replace_target_nodes_with
    replace(traced, "call_function", torch.relu, "call_function", torch.nn.functional.gelu)
    traced.recompile()
    return traced, traced(V)


@use
def attributes_are_lifted(side: Side) -> Any:
    traced = side.library.symbolic_trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    side.client("torch.fx.passes.param_fetch").lift_lowering_attrs_to_nodes(traced)
    return [sorted(node.attrs_for_lowering) for node in traced.graph.nodes if node.op == "call_module"]


@use
def reinplace(side: Side) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        a = torch.ops.aten.clone.default(x)
        return torch.ops.aten.add.Tensor(a, 1)

    traced = side.library.symbolic_trace(function)
    changed = side.client("torch.fx.passes.reinplace").reinplace(traced, V.clone())
    return changed, changed(V)


@use
def split_by_tags(side: Side) -> Any:
    traced = vector(side)
    for number, node in enumerate(traced.graph.nodes):
        if node.op not in ("placeholder", "output"):
            node.tag = "first" if number < 3 else "second"
    divided = side.client("torch.fx.passes.split_utils").split_by_tags(traced, ["first", "second"])
    return divided, divided(V)


def supported(side: Side, *targets: str) -> Any:
    return side.client("torch.fx.passes.operator_support").OperatorSupport(dict.fromkeys(targets))


@use
def operators_that_are_supported(side: Side) -> Any:
    support = side.client("torch.fx.passes.operator_support")
    traced = program(side)
    side.library.passes.shape_prop.ShapeProp(traced).propagate(X)
    names = supported(side, "torch.relu", "torch.nn.modules.conv.Conv2d", "_operator.add")
    modules = dict(traced.named_modules())
    either = support.any_chain(names, support.create_op_support(lambda modules, node: node.name == "mean"))
    both = support.chain(either, support.OpSupports.decline_if_node_in_names({"convolution"}))
    floats = support.OpSupports.decline_if_input_dtype(torch.int64)
    typed = support.OperatorSupport(
        {"torch.relu": (([torch.float64],), {}), "_operator.add": ((None, [torch.float32]), {})}
    )
    nodes = [node for node in traced.graph.nodes if node.op.startswith("call")]
    return [[each.is_node_supported(modules, node) for node in nodes] for each in (names, either, both, floats, typed)]


@use
def capability_based_partitioner(side: Side) -> Any:
    support = side.client("torch.fx.passes.operator_support")
    calls = support.create_op_support(lambda modules, node: node.op == "call_function")
    support_of_calls = support.chain(calls, supported(side, "torch.relu", "_operator.add", "_operator.mul"))
    partitioner = side.client("torch.fx.passes.infra.partitioner").CapabilityBasedPartitioner(
        program(side), support_of_calls, allows_single_node_partition=True
    )
    partitions = partitioner.propose_partitions()
    names = sorted(sorted(node.name for node in partition.nodes) for partition in partitions)
    fused = partitioner.fuse_partitions(partitions)
    return (
        names,
        sorted(neutral(child.code) for _, child in _children(fused)),
        fused(X),
        fused is partitioner.graph_module,
    )


def _children(graph_module: Any) -> list[Any]:
    return [(name, child) for name, child in graph_module.named_children() if name.startswith("fused_")]


@use
def partitions_of_one_call(side: Side) -> Any:
    make = side.client("torch.fx.passes.infra.partitioner").CapabilityBasedPartitioner
    support = side.client("torch.fx.passes.operator_support")
    calls = support.create_op_support(lambda modules, node: node.op == "call_function")
    support_of_calls = support.chain(calls, supported(side, "torch.relu"))
    proposed = [
        make(program(side), support_of_calls, **options).propose_partitions()
        for options in (
            {},
            {"allowed_single_node_partition_ops": ["torch.relu"]},
            {"allows_single_node_partition": True},
        )
    ]
    return [[sorted(node.name for node in partition.nodes) for partition in partitions] for partitions in proposed]


@use
def partitions_without_what_computes_nothing(side: Side) -> Any:
    def function(x):
        first, second = torch.chunk(x[0], 2)
        return (torch.relu(first) + second)[0]

    traced = side.library.symbolic_trace(function)
    support = side.client("torch.fx.passes.operator_support")
    calls = support.create_op_support(lambda modules, node: node.op == "call_function")
    make = side.client("torch.fx.passes.infra.partitioner").CapabilityBasedPartitioner
    partitioner = make(traced, calls, non_compute_ops=["_operator.getitem"])
    partitions = partitioner.propose_partitions()
    partitioner.remove_bookend_non_compute_ops(partitions)
    alone = make(traced, supported(side, "torch.relu"), allowed_single_node_partition_ops=["torch.relu"])
    return [
        sorted(node.name for node in partition.nodes) for partition in partitions
    ], alone.allows_single_node_partition


class Splitting:
    """The answers of a backend's splitter: the nodes that it takes, and their division into programs."""

    def __init__(self, side: Side) -> None:
        base = side.client("torch.fx.passes.splitter_base")
        settings = base._SplitterSettingBase(min_acc_module_size=1, skip_fusion=True)
        traced = vector(side)
        support_of_calls = supported(side, "torch.relu", "torch.sigmoid", "_operator.add", "torch.tanh")
        self.splitter = base._SplitterBase(traced, [V], support_of_calls, settings)


@use
def splitter_base(side: Side) -> Any:
    splitter = Splitting(side).splitter
    report = splitter.node_support_preview()
    divided = splitter()
    return divided, divided(V), report


@use
def splitter_results(side: Side) -> Any:
    result = Splitting(side).splitter.generate_split_results()
    return result.split_module, result.submodule_inputs


@use
def minimizer(side: Side) -> Any:
    base = side.client("torch.fx.passes.net_min_base")

    class Minimizer(base._MinimizerBase):
        """The second run is wrong where a program has a sigmoid."""

        def run_a(self, mod: Any, inputs: Any, report_idx: int = -1) -> Any:
            return mod(*inputs)

        def run_b(self, mod: Any, inputs: Any, report_idx: int = -1) -> Any:
            outcome = mod(*inputs)
            wrong = any(node.target is torch.sigmoid for node in mod.graph.nodes)
            return outcome + 1 if wrong else outcome

    def compare(a: Any, b: Any, names: Any) -> tuple[float, bool]:
        return float((a - b).abs().max()), bool(torch.allclose(a, b))

    settings = base._MinimizerSettingBase(traverse_method="sequential", find_all=True)
    return Minimizer(vector(side), [V], compare, settings).minimize()


@use
def pass_manager(side: Side) -> Any:
    manager = side.client("torch.fx.passes.pass_manager")
    wrapped = manager.inplace_wrapper(manager.log_hook(_negate))
    passes = manager.PassManager([manager.loop_pass(wrapped, n_iter=2)])
    passes.add_constraint(manager.these_before_those_pass_constraint(_negate, wrapped))
    changed = passes(vector(side))
    return changed, changed(V)


def _negate(graph_module: Any) -> None:
    """Negate the result of a program."""
    output = next(iter(reversed(graph_module.graph.nodes)))
    with graph_module.graph.inserting_before(output):
        output.args = (graph_module.graph.call_function(torch.neg, output.args),)
    graph_module.recompile()


@use
def pass_manager_of_infra(side: Side) -> Any:
    base, manager = (side.client(f"torch.fx.passes.infra.{name}") for name in ("pass_base", "pass_manager"))

    class Negate(base.PassBase):
        def call(self, graph_module: Any) -> Any:
            _negate(graph_module)
            return base.PassResult(graph_module, True)

    def remove(graph_module: Any) -> None:
        graph_module.graph.eliminate_dead_code()

    first, second = manager.pass_result_wrapper(remove), Negate()
    passes = manager.PassManager([first, second], [manager.this_before_that_pass_constraint(second, first)], steps=2)
    result = passes(vector(side))
    return result.graph_module, result.modified, [pass_ is second for pass_ in passes.passes], result.graph_module(V)


@use
def cudagraphs_partitioner(side: Side) -> Any:
    traced = vector(side)
    return side.client("torch.fx.passes.backends.cudagraphs").partition_cudagraphs(traced, [V])


@use
def graphs_are_put_in_order(side: Side) -> Any:
    traced = vector(side)
    nodes = {node.name: node for node in traced.graph.nodes}
    nodes["cat"].append(nodes["tanh"])  # after its user
    tools = side.client("torch.fx.passes.tools_common")
    return tools.stable_topological_sort(traced), traced(V), tools.legalize_graph(traced)(V)


@use
def targets_of_nodes(side: Side) -> Any:
    tools = side.client("torch.fx.passes.tools_common")
    traced = program(side)
    side.library.passes.shape_prop.ShapeProp(traced).propagate(X)
    modules = dict(traced.named_modules())
    called = [node for node in traced.graph.nodes if node.op in tools.CALLABLE_NODE_OPS]
    return [(tools.get_node_target(modules, node), tools.is_node_output_tensor(node)) for node in called]


@use
def fusions_that_backends_keep_together(side: Side) -> Any:
    traced = program(side)
    side.library.passes.shape_prop.ShapeProp(traced).propagate(X)
    tools = side.client("torch.fx.passes.tools_common")
    nodes = {node for node in traced.graph.nodes if node.op.startswith("call")}
    modules = dict(traced.named_modules())
    return tools.FxNetAccFusionsFinder(traced, nodes)(), [
        tools.get_node_target(modules, node) for node in traced.graph.nodes if node in nodes
    ]


@use
def partitions_are_fused(side: Side) -> Any:
    traced = vector(side)
    fuse = side.client("torch.fx.passes.utils.fuser_utils").fuse_by_partitions
    fused = fuse(traced, [{node: None for node in traced.graph.nodes if node.name in ("relu", "sigmoid")}])
    return fused, fused(V)


@use
def subgraphs_become_modules(side: Side) -> Any:
    traced = program(side)
    utils = side.client("torch.fx.passes.utils")
    graph = side.library.Graph()
    graph.output(graph.call_module("linear", (graph.placeholder("x"),)))
    lifted, names = utils.lift_subgraph_as_module(traced, graph)
    return lifted, names, lifted(V)


@use
def subgraph_matcher(side: Side) -> Any:
    pattern = side.library.symbolic_trace(lambda x: torch.sigmoid(torch.relu(x)))
    matcher = side.client("torch.fx.passes.utils.matcher_utils").SubgraphMatcher(pattern.graph)
    return [
        {key.name: value.name for key, value in match.nodes_map.items()} for match in matcher.match(vector(side).graph)
    ]


@use
def partitions_by_source(side: Side) -> Any:
    traced = program(side)
    modules = dict(traced.named_modules())
    for node in traced.graph.nodes:
        if node.op == "call_module":
            node.meta["source_fn_stack"] = [(node.name, type(modules[node.target]))]
    find = side.client("torch.fx.passes.utils.source_matcher_utils").get_source_partitions
    match = find(traced.graph, [nn.Conv2d, nn.Linear])
    return {
        kind.__name__: [(part.nodes, part.input_nodes, part.output_nodes) for part in match[kind]] for kind in match
    }


@use
def graphs_are_compared(side: Side) -> Any:
    compare = side.client("torch.fx.passes.utils.common").compare_graphs
    return compare(vector(side).graph, vector(side).graph), compare(vector(side).graph, program(side).graph)


@pytest.mark.parametrize("name", USES)
def test_it_does_the_same_with_fx(name: str) -> None:
    assert_same(USES[name])


@pytest.mark.parametrize(
    "name",
    [
        "pass_manager",
        "pass_manager_of_infra",
        "operators_that_are_supported",
        "capability_based_partitioner",
        "partitions_of_one_call",
        "partitions_without_what_computes_nothing",
        "graphs_are_put_in_order",
        "targets_of_nodes",
    ],
)
def test_modules_of_fx_do_the_same(name: str) -> None:
    assert_same(USES[name], OFFERED)
