"""Transforms as the documentation of torch.fx shows them, and a model for them."""

import torch
import torch.fx as fx
import torch.nn.functional as F


def transform(m: torch.nn.Module, tracer_class: type = fx.Tracer) -> torch.nn.Module:
    graph: fx.Graph = tracer_class().trace(m)
    for node in graph.nodes:
        if node.op == "call_function":  # noqa: SIM102 - as documented
            if node.target == torch.add:
                node.target = torch.mul
    graph.lint()
    return fx.GraphModule(m, graph)


def relu_decomposition(x):
    return (x > 0) * x


decomposition_rules = {}
decomposition_rules[F.relu] = relu_decomposition


def decompose(model: torch.nn.Module, tracer_class: type = fx.Tracer) -> torch.nn.Module:
    graph: fx.Graph = tracer_class().trace(model)
    new_graph = fx.Graph()
    env = {}
    tracer = fx.proxy.GraphAppendingTracer(new_graph)
    for node in graph.nodes:
        if node.op == "call_function" and node.target in decomposition_rules:
            proxy_args = [fx.Proxy(env[x.name], tracer) if isinstance(x, fx.Node) else x for x in node.args]
            output_proxy = decomposition_rules[node.target](*proxy_args)
            new_node = output_proxy.node
            env[node.name] = new_node
        else:
            new_node = new_graph.node_copy(node, lambda x: env[x.name])
            env[node.name] = new_node
    return fx.GraphModule(model, new_graph)


class M(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 5)

    def forward(self, x, y):
        z = self.linear(torch.add(x, y))
        return F.relu(z, inplace=False).clamp(max=1.0)


def model():
    return M(), (torch.linspace(-1, 1, 12).reshape(3, 4), torch.linspace(2, -1, 12).reshape(3, 4))
