"""Models of which little is compared, and passes that show it."""

import operator

import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, then):
        super().__init__()
        self.inner, self.then = nn.Linear(4, 4), then

    def forward(self, x):
        y = torch.relu(self.inner(x)).sigmoid()
        return self.then(x, y)


def head(then):
    torch.manual_seed(0)
    return Head(then).eval(), torch.ones(3, 4)


def detector():
    return head(lambda x, y: y[y[:, 0] > 2])


def lost_in_nan():
    return head(lambda x, y: torch.log(-1 - y))


def boxes_and_size():
    return head(lambda x, y: {"boxes": y[y[:, 0] > 2], "size": 640})


def usual():
    return head(lambda x, y: y)


class Checked(nn.Module):
    def forward(self, x):
        torch._assert(x[0, 0] == 1, "only ones")
        return torch.relu(x) * 2


def checked():
    return Checked(), torch.ones(2, 4)


class Rounded(nn.Module):
    def forward(self, x):
        return torch.floor(x / 41)


def rounded():
    return Rounded(), torch.arange(11.0, 75.0).reshape(8, 8)


class Halved(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(x.to(torch.bfloat16).to(torch.float32))


def halved():
    torch.manual_seed(0)
    return Halved().eval(), torch.randn(4, 8)


def tanh_for_relu(program):
    for node in program.graph.find_nodes(op="call_function", target=torch.relu):
        node.target = torch.tanh
    program.recompile()


def relu_by_name(program):
    for node in program.graph.find_nodes(op="call_function", target=torch.relu):
        node.op, node.target = "call_method", "relu"
    program.recompile()


def refusing(program):
    _refuse(program, lambda graph, x: graph.call_function(operator.getitem, (x, (0, 0))), 1)


def refusing_all(program):
    _refuse(program, lambda graph, x: graph.call_method("dim", (x,)), 7)


refusing_all.name = "refusing"


def _refuse(program, asked, value):
    graph = program.graph
    x, following = list(graph.nodes)[:2]
    with graph.inserting_before(following):
        holds = graph.call_function(operator.eq, (asked(graph, x), value))
        graph.call_function(torch._assert, (holds, "refusing takes other inputs"))
    relu_by_name(program)


def by_its_inverse(program):
    for node in program.graph.find_nodes(op="call_function", target=operator.truediv):
        node.target, node.args = operator.mul, (node.args[0], 1 / 41)
    program.recompile()


def keep_float32(program):
    for node in program.graph.find_nodes(op="call_method", target="to"):
        node.replace_all_uses_with(node.args[0])
        program.graph.erase_node(node)
    program.recompile()
