"""Five passes with faults that engineers make, each with a model that it gets right all but once.

A factory and a pass of each kind can be named on the command line: ``faults:normed`` and so on.
"""

import torch
from torch import nn

from fx.passes import Edit, RewritingPass
from model_zoo import ZooModel


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, eps=1e-3)
        self.conv3, self.bn3 = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return self.bn3(self.conv3(x)).mean((2, 3))


class FoldWithAnyEpsilon(RewritingPass):
    """Fold batch norms into convolutions, as if all of them had PyTorch's default epsilon."""

    def rewrites(self, graph_module):
        modules = dict(graph_module.named_modules())
        for node in graph_module.graph.find_nodes(op="call_module"):
            norm = modules[node.target]
            if not isinstance(norm, nn.BatchNorm2d):
                continue
            before = node.args[0]
            conv = modules[before.target]
            yield Edit(f"{node.target} into {before.target}", node.source)
            scale = norm.weight * torch.rsqrt(norm.running_var + 1e-5)
            folded = nn.Conv2d(conv.in_channels, conv.out_channels, conv.kernel_size)
            folded.weight = nn.Parameter(conv.weight.detach() * scale.reshape(-1, 1, 1, 1))
            folded.bias = nn.Parameter((conv.bias - norm.running_mean) * scale + norm.bias)
            graph_module.add_submodule(before.target, folded)
            node.replace_all_uses_with(before)
            graph_module.graph.erase_node(node)


class Gated(nn.Module):
    def forward(self, x, y):
        gate = torch.sigmoid(x)
        gated = torch.mul(gate, x)
        rest = torch.rsub(gate, y)
        return torch.add(gated, torch.tanh(rest))


class OperatorsForFunctions(RewritingPass):
    """Replace functions of torch by operators, ``torch.rsub(x, y)`` by ``x - y``, which is ``y - x``."""

    def rewrites(self, graph_module):
        operators = {torch.mul: torch.Tensor.mul, torch.rsub: torch.Tensor.sub, torch.add: torch.Tensor.add}
        for node in graph_module.graph.find_nodes(op="call_function", sort=True):
            if node.target in operators:
                yield Edit(f"{node.name} becomes an operator", node.source)
                node.target = operators[node.target]


class Projected(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.out = nn.Linear(6, 4)

    def forward(self, x):
        return self.out(torch.softmax(self.query(x) * self.key(x), -1))


class LinearToMatmul(RewritingPass):
    """Replace linear layers by products of matrices, and forget that layers may have a bias."""

    def rewrites(self, graph_module):
        graph = graph_module.graph
        for node in graph.find_nodes(op="call_module"):
            yield Edit(f"{node.target} becomes a product", node.source)
            with graph.inserting_before(node):
                weight = graph.get_attr(f"{node.target}.weight")
                product = graph.call_function(torch.matmul, (node.args[0], graph.call_method("t", (weight,))))
            node.replace_all_uses_with(product)
            graph.erase_node(node)


class Flattened(nn.Module):
    def forward(self, x):
        x = torch.relu(x + 1)
        x = x.view(x.size(0), -1)
        return x * 2


class OneSample(RewritingPass):
    """Replace sizes by numbers for a device that takes one sample at a time."""

    def rewrites(self, graph_module):
        for node in graph_module.graph.find_nodes(op="call_method", target="size"):
            yield Edit(f"{node.name} becomes 1", node.source)
            for user in list(node.users):
                user.args = tuple(1 if arg is node else arg for arg in user.args)
            graph_module.graph.erase_node(node)


class Shifted(nn.Module):
    def forward(self, x):
        x = torch.relu(x * x)
        return torch.relu(x + 0.5) - torch.relu(x - 0.5)


class IdleRelus(RewritingPass):
    """Take ReLUs away that change nothing, to judge by ten numbers between 0.5 and 1."""

    def rewrites(self, graph_module):
        graph, values = graph_module.graph, {}
        for node in list(graph.nodes):
            args = [values.get(arg, arg) for arg in node.args]
            values[node] = torch.linspace(0.75, 1, 10) if node.op == "placeholder" else None
            if node.op == "call_function":
                values[node] = node.target(*args)
            if node.target is torch.relu and torch.equal(values[node], args[0]):
                yield Edit(f"{node.name} is idle", node.source)
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)


def _zoo(name, module, *shapes):
    def build():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            instance = module()
            with torch.no_grad():
                for part in instance.modules():
                    if isinstance(part, nn.BatchNorm2d):
                        part.running_mean.uniform_(-1, 1)
                        part.running_var.uniform_(0.01, 0.1)
        return instance.eval()

    def inputs(batch=1, seed=0):
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.randn(batch, *shape, generator=generator) for shape in shapes)

    return ZooModel(name, build, inputs, "a test")


def normed():
    return _zoo("normed", Normed, (3, 12, 12))


def gated():
    return _zoo("gated", Gated, (8,), (8,))


def projected():
    return _zoo("projected", Projected, (6,))


def flattened():
    return _zoo("flattened", Flattened, (3, 4, 4))


def shifted():
    return _zoo("shifted", Shifted, (64,))
