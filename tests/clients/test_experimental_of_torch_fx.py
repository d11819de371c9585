"""Modules of ``torch.fx.experimental`` that use torch.fx: with ``fx`` in their text they give the same results."""

from typing import Any

import pytest
import torch
from torch import nn

from .programs import Network, V, X, program, vector
from .sides import Side, Uses, assert_same

# of torch.jit, which these modules use, and of nodes for attributes that they set afterwards
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "UserWarning")]

USES = Uses()
use = USES.add


@use
def optimization_fuses(side: Side) -> Any:
    fused = side.client("torch.fx.experimental.optimization").fuse(Network().eval())
    return fused, fused(X)


@use
def optimization_removes_dropout(side: Side) -> Any:
    removed = side.client("torch.fx.experimental.optimization").remove_dropout(Network())
    removed.norm.eval()
    return removed, removed(X)


@use
def optimization_for_inference(side: Side) -> Any:
    module = side.client("torch.fx.experimental.optimization")
    optimized = module.optimize_for_inference(
        Network().eval(), {"mkldnn_layout_optimize": {"heuristic": module.use_mkl_length}}
    )
    return optimized, optimized(X)


@use
def optimization_extracts_a_subgraph(side: Side) -> Any:
    whole = program(side)
    nodes = {node.name: node for node in whole.graph.nodes}
    extract = side.client("torch.fx.experimental.optimization").extract_subgraph
    part = extract(whole, [nodes["norm"], nodes["relu"]], [nodes["convolution"]], [nodes["relu"]])
    return part, part(torch.ones(1, 2, 2, 2))


@use
def merge_matmul(side: Side) -> Any:
    class Products(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return torch.matmul(x, weight) + torch.matmul(y, weight)

    merged = side.client("torch.fx.experimental.merge_matmul").merge_matmul(Products())
    return list(merged.graph.nodes), merged(V, 2 * V, torch.eye(2))


@use
def normalize_arguments(side: Side) -> Any:
    normalized = side.client("torch.fx.experimental.normalize").NormalizeArgs(program(side)).transform()
    return normalized, normalized(X)


@use
def normalize_operators(side: Side) -> Any:
    normalized = side.client("torch.fx.experimental.normalize").NormalizeOperators(vector(side)).transform()
    return normalized, normalized(V)


@use
def annotate_types_with_schemas(side: Side) -> Any:
    typed = side.client("torch.fx.experimental.schema_type_annotation").AnnotateTypesWithSchema(program(side))
    return [(node.name, node.type) for node in typed.transform().graph.nodes if node.op == "call_module"]


@use
def rewriter_of_asserts(side: Side) -> Any:
    rewriter = side.client("torch.fx.experimental.rewriter")
    tracer = rewriter.RewritingTracer()
    checked = side.library.GraphModule(Checked(), tracer.trace(Checked()))
    with pytest.raises(AssertionError, match="one row"):
        checked(torch.ones(2, 2))
    return [node.target for node in checked.graph.nodes if node.target is torch._assert], checked(V)


class Checked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.size(0) == 1, "one row"
        return x.neg()


@use
def meta_tracer(side: Side) -> Any:
    class Sizes(nn.Module):
        def forward(self, x):
            y = torch.relu(x)
            return y.neg() if y.size(1) == 2 else y

    trace = side.client("torch.fx.experimental.meta_tracer").symbolic_trace
    traced = trace(Sizes(), meta_args={"x": torch.empty(1, 2, device="meta")})
    return traced, traced(V)


@use
def accelerator_partitioner(side: Side) -> Any:
    utils = side.client("torch.fx.experimental.partitioner_utils")
    partitioner = side.client("torch.fx.experimental.accelerator_partitioner")
    manipulation = side.client("torch.fx.passes.graph_manipulation")
    traced = program(side)
    manipulation.get_size_of_all_nodes(traced, [X])
    devices = [utils.Device("dev_0", 4000, 0), utils.Device("dev_1", 4000, 1)]
    result = partitioner.Partitioner().partition_graph(traced, Network().eval(), utils.PartitionerConfig(devices))
    divided = result.module_with_submodules
    return divided, divided(X), [node.size_bytes for node in result.dag.nodes]


@use
def gradual_types(side: Side) -> Any:
    types, checker = side.client("torch.fx.tensor_type"), "torch.fx.experimental.graph_gradual_typechecker"
    traced = side.library.symbolic_trace(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()))
    next(iter(traced.graph.nodes)).type = types.TensorType((2, 1, 4, types.Dyn))
    side.client(checker).GraphTypeChecker({}, traced).type_check()
    side.client("torch.fx.experimental.unify_refinements").infer_symbolic_types(traced)
    return [(node.name, str(node.type)) for node in traced.graph.nodes]


@use
def annotate(side: Side) -> Any:
    mark = side.client("torch.fx.annotate").annotate
    return side.library.symbolic_trace(lambda x: mark(x + 1, torch.Tensor) * 2)


@pytest.mark.parametrize("name", USES)
def test_it_does_the_same_with_fx(name: str) -> None:
    assert_same(USES[name])
