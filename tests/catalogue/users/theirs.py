"""Passes for torch.fx."""

import torch
import torch.fx


def model():
    class Network(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x) + 1

    return Network(), torch.ones(3, 4)


def right(graph_module):
    assert isinstance(graph_module, torch.fx.GraphModule)
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
        node.target = torch.nn.functional.relu
    graph_module.recompile()


def wrong(graph_module):
    assert isinstance(graph_module, torch.fx.GraphModule)
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.nn.functional.relu):
        node.target = torch.nn.functional.gelu
    graph_module.recompile()


def right_again(graph_module: torch.fx.GraphModule):
    return right(graph_module)
