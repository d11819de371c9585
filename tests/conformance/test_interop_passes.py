"""Passes that come with torch.fx have the same effect on our programs."""

# No postponed annotations: ``torch.fx`` would carry those of ``forward`` as strings.

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.passes.dialect.common.cse_pass import CSEPass
from torch.fx.passes.shape_prop import ShapeProp
from torch.fx.passes.split_module import split_module

import fx
from fx.interop import adapt
from fx.passes.shape_prop import TensorMetadata

from .libraries import describe_graph

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it uses a part of TorchScript that is going away
    from torch.fx.experimental import optimization


class ConvNet(nn.Module):
    """A convolution to fold, a dropout to remove, an expression that is computed twice."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.dropout = nn.Dropout()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        pooled = self.dropout(self.features(x)).mean((2, 3))
        return self.head(pooled) + torch.relu(pooled.sum()) + torch.relu(pooled.sum())


def settled() -> ConvNet:
    model = ConvNet()
    model.features[1].running_var.uniform_(0.5, 2.0)
    model.features[1].running_mean.normal_()
    return model.eval()


IMAGES = torch.linspace(-1, 1, 2 * 3 * 64).reshape(2, 3, 8, 8)


def both(pass_: Any) -> tuple[fx.GraphModule, fx.GraphModule, Any]:
    """Return our program, the adapted pass's result on it, and the pass's result on torch.fx's program."""
    model = settled()
    program = fx.symbolic_trace(model)
    theirs = torch.fx.symbolic_trace(model)
    adapted = adapt(pass_)(program)
    result = pass_(copy.deepcopy(theirs))
    expected = result if isinstance(result, torch.fx.GraphModule) else getattr(result, "graph_module", theirs)
    assert describe_graph(adapted.graph) == describe_graph(expected.graph)
    assert list(adapted.state_dict()) == list(expected.state_dict())
    torch.testing.assert_close(adapted(IMAGES), expected(IMAGES), rtol=0, atol=0)
    adapted.graph.lint()
    return program, adapted, expected


@pytest.mark.parametrize(
    "pass_", [optimization.fuse, optimization.remove_dropout, CSEPass()], ids=["fuse", "dropout", "cse"]
)
def test_passes_that_make_new_programs(pass_: Any) -> None:
    program, adapted, _ = both(pass_)
    before = program.code
    assert adapted is not program
    assert program.code == before
    assert len(adapted.graph.nodes) < len(program.graph.nodes)
    assert all(node.source is not None and node.origins for node in adapted.graph.nodes)
    torch.testing.assert_close(adapted(IMAGES), program(IMAGES))


def test_fused_layers_keep_the_lines_of_their_names() -> None:
    program, fused, _ = both(optimization.fuse)
    lines = {node.name: node.source for node in program.graph.nodes}
    assert all(lines[node.name] in (None, node.source) for node in fused.graph.nodes)
    assert "features_1" in lines
    assert "features_1" not in [node.name for node in fused.graph.nodes]


def test_shapes_are_noted_on_the_program_itself() -> None:
    def propagate(graph_module: torch.fx.GraphModule) -> None:
        ShapeProp(graph_module).propagate(IMAGES)

    program = fx.symbolic_trace(settled())
    nodes, revision = list(program.graph.nodes), program.graph.revision
    sources = [node.source for node in nodes]
    assert adapt(propagate)(program) is program
    assert all(node is same for node, same in zip(program.graph.nodes, nodes, strict=True))
    assert program.graph.revision == revision
    assert [node.source for node in nodes] == sources
    metadata = nodes[1].meta["tensor_meta"]
    assert type(metadata) is TensorMetadata
    assert tuple(metadata.shape) == (2, 4, 6, 6)
    assert "tensor_meta" in adapt(propagate)(program).graph.output_node().meta


def test_split_programs_hold_programs_of_ours() -> None:
    def split(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        before = {node: number < 5 for number, node in enumerate(graph_module.graph.nodes)}
        return split_module(graph_module, graph_module, lambda node: 0 if before[node] else 1)

    program, divided, _ = both(split)
    assert [type(child).__mro__[1] for child in divided.children()] == [fx.GraphModule, fx.GraphModule]
    inner = divided.submod_1
    assert all(node.source is not None for node in inner.graph.nodes if node.op.startswith("call"))
    assert inner.head.weight is program.head.weight
