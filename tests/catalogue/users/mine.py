"""Models and passes of a user, right and wrong ones."""

import torch
import torch.fx
from torch import nn

from fx.passes import Edit, RewritingPass


def pair():
    return nn.Linear(4, 4), torch.ones(3, 4)


def odd():
    class Odd(nn.Module):
        def forward(self, x, y):
            return x.sum() + y.sum()

    return Odd(), (torch.ones(3, 4), torch.ones(2, 4))


def broken():
    raise ValueError("no weights today")


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def branching():
    return Branching(), torch.ones(3, 4)


def nothing(graph_module):
    return None


def raising(graph_module):
    return {}["no such key"]


class Halved(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        h = torch.relu(self.a(x))
        h.mul_(0.5)
        return torch.relu(self.b(h))


def halved():
    return Halved(), torch.randn(3, 4)


def to_gelu(graph_module: torch.fx.GraphModule):
    for node in graph_module.graph.nodes:
        if node.target is torch.relu:
            node.target = torch.nn.functional.gelu
    graph_module.graph.eliminate_dead_code()
    graph_module.recompile()
    return graph_module


def quiet(graph_module):
    torch.set_grad_enabled(False)
    torch.relu = torch.nn.functional.gelu
    torch.set_default_dtype(torch.float64)


class Cut(RewritingPass):
    def rewrites(self, graph_module):
        output = graph_module.graph.output_node()
        yield Edit("the output is cut off", output.source)
        with graph_module.graph.inserting_before(output):
            output.args = (graph_module.graph.call_function(torch.detach, (output.args[0],)),)


def written_over(graph_module):
    output = graph_module.graph.output_node()
    with graph_module.graph.inserting_before(output):
        call = graph_module.graph.call_method("exp", (output.args[0],))
        squared = graph_module.graph.call_function(torch.mul, (call, call))
        logarithm = graph_module.graph.call_function(torch.log, (squared,))
        graph_module.graph.call_method("mul_", (call, 1.0))
        output.args = (graph_module.graph.call_function(torch.div, (logarithm, 2.0)),)
    graph_module.recompile()
