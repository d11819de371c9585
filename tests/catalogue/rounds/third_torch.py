"""Passes of the third round that are written for torch.fx."""

import operator

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from ..rows import fault

FUNCTIONS = {
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    torch.exp,
    torch.add,
    torch.sub,
    torch.mul,
    torch.matmul,
    torch.cat,
    torch.softmax,
    torch.flatten,
    torch.nn.functional.gelu,
    torch.nn.functional.silu,
}


METHODS = {
    "relu",
    "sigmoid",
    "tanh",
    "exp",
    "sum",
    "mean",
    "view",
    "reshape",
    "transpose",
    "permute",
    "flatten",
    "size",
    "dim",
}


RANDOM = (nn.modules.dropout._DropoutNd, nn.RNNBase, nn.RReLU)


def quiet(module):
    """Return whether the layer comes from torch.nn and an extra call of it would have no effect."""
    if not type(module).__module__.startswith("torch.nn") or list(module.children()):
        return False
    if module._forward_hooks or module._forward_pre_hooks:
        return False
    if getattr(module, "inplace", False) or isinstance(module, RANDOM):
        return False
    return getattr(module, "max_norm", None) is None


@fault(
    3,
    "training mode",
    "state",
    wrong="A batch norm in training updates its running statistics even where nobody reads its result.",
)
def drop_unused_layers(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Remove what nobody reads, last to first, so that whole unused heads go; layers that draw random numbers,
    write into their input or have hooks stay."""
    for node in reversed(list(graph_module.graph.nodes)):
        if node.users:
            continue
        if node.op == "call_module":
            dead = quiet(graph_module.get_submodule(node.target))
        elif node.op == "call_function":
            dead = node.target in FUNCTIONS and "out" not in node.kwargs
        elif node.op == "call_method":
            dead = node.target in METHODS
        else:
            dead = node.op == "get_attr"
        if dead:
            graph_module.graph.erase_node(node)
    graph_module.recompile()
    return graph_module


def select(node):
    """(mask, chosen, other) of a torch.where or Tensor.where with three operands, else None."""
    if not isinstance(node, torch.fx.Node):
        return None
    if node.op == "call_function" and node.target is torch.where:
        arguments = dict(zip(("condition", "input", "other"), node.args))
    elif node.op == "call_method" and node.target == "where":
        arguments = dict(zip(("input", "condition", "other"), node.args))
    else:
        return None
    arguments.update({"input" if name == "self" else name: value for name, value in node.kwargs.items()})
    if set(arguments) != {"condition", "input", "other"} or not isinstance(arguments["condition"], torch.fx.Node):
        return None
    return arguments["condition"], arguments["input"], arguments["other"]


@fault(
    3,
    "dtype",
    "dtype",
    "structure",
    "contract",
    wrong="The branch that is never taken has a say in the result's shape (broadcasting) and dtype (promotion) "
    "all the same.",
)
def simplify_selects(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """where(m, where(m, a, b), c) is where(m, a, c), and where(m, a, where(m, b, c)) is where(m, a, c): the branch that
    the mask has decided already is never taken. Programs that write in place, which may change the mask, are left."""
    graph = graph_module.graph
    if any(node.op == "call_method" and node.target.endswith("_") for node in graph.nodes):
        return graph_module
    for node in list(graph.nodes):
        outer = select(node)
        if outer is None:
            continue
        mask, chosen, other = outer
        inner = select(chosen)
        if inner is not None and inner[0] is mask:
            chosen = inner[1]
        inner = select(other)
        if inner is not None and inner[0] is mask:
            other = inner[2]
        if (chosen, other) == outer[1:]:
            continue
        with graph.inserting_before(node):
            simple = graph.call_function(torch.where, (mask, chosen, other))
        node.replace_all_uses_with(simple)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


class CollapseViews(PassBase):
    """x.view(a).view(b) is x.view(b): both have the elements of x in order."""

    def call(self, graph_module):
        changed = False
        for node in graph_module.graph.nodes:
            if not self.is_view(node):
                continue
            inner = node.args[0]
            while self.is_view(inner):
                inner = inner.args[0]
            if inner is not node.args[0]:
                node.args = (inner, *node.args[1:])
                changed = True
        return PassResult(graph_module, changed)

    def is_view(self, node):
        return (
            isinstance(node, torch.fx.Node) and node.op == "call_method" and node.target == "view" and not node.kwargs
        )

    def ensures(self, graph_module):
        for node in reversed(list(graph_module.graph.nodes)):
            if self.is_view(node) and not node.users:
                graph_module.graph.erase_node(node)
        graph_module.graph.lint()
        graph_module.recompile()


@fault(
    3,
    "unchecked operand",
    "refusal",
    "dtype",
    "contract",
    "structure",
    wrong="View also takes a dtype, x.view(torch.int32), and such a view is not undone by the next.",
)
def collapse_views(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Drop the views between a tensor and its last view."""
    return CollapseViews()(graph_module).graph_module


METHODS_CAST = {
    "float": torch.float32,
    "double": torch.float64,
    "int": torch.int32,
    "long": torch.int64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}


def cast_to(node):
    """The dtype of a plain cast, else None."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_method" or node.kwargs:
        return None
    if node.target in METHODS_CAST and len(node.args) == 1:
        return METHODS_CAST[node.target]
    if node.target == "to" and len(node.args) == 2 and isinstance(node.args[1], torch.dtype):
        return node.args[1]
    return None


def keeps(middle, final):
    """Return whether a cast to final loses all that a cast to middle loses."""
    return middle.itemsize >= final.itemsize and middle.itemsize >= 4


@fault(
    3,
    "precision lost",
    "contract",
    "dtype",
    "gradients",
    wrong="An integer is as wide as a float and still cuts off the fraction: x.to(torch.int32).float() truncates.",
)
def collapse_casts(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """x.to(middle).to(final) becomes x.to(final), which copies as the chain did, if middle is as wide as final."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        final = cast_to(node)
        middle = cast_to(node.args[0]) if final is not None else None
        if middle is None or middle == final or middle.is_complex or final.is_complex:
            continue
        if not keeps(middle, final):
            continue
        inner = node.args[0]
        with graph.inserting_before(node):
            direct = graph.call_method("to", (inner.args[0], final), {"copy": True})
        node.replace_all_uses_with(direct)
        graph.erase_node(node)
        if not inner.users:
            graph.erase_node(inner)
    graph.lint()
    graph_module.recompile()
    return graph_module


LAST = (slice(None, None, None), -1, slice(None, None, None))


def writes(graph_module):
    for node in graph_module.graph.nodes:
        if node.op == "call_method" and node.target.endswith("_") and not node.target.endswith("__"):
            return True
        if node.op == "call_function":
            name = getattr(node.target, "__name__", "")
            if name == "setitem" or name.endswith("_") or node.kwargs.get("inplace"):
                return True
        if node.op == "call_module" and getattr(graph_module.get_submodule(node.target), "inplace", False):
            return True
    return False


def is_last_step(graph_module, node):
    """Return whether the node is rnn(...)[0][:, -1, :] with the batch first."""
    if node.op != "call_function" or node.target is not operator.getitem or node.args[1] != LAST:
        return False
    output = node.args[0]
    if output.op != "call_function" or output.target is not operator.getitem or output.args[1] != 0:
        return False
    rnn = output.args[0]
    if rnn.op != "call_module" or len(output.users) != 1:
        return False
    module = graph_module.get_submodule(rnn.target)
    return type(module) in (nn.LSTM, nn.GRU, nn.RNN) and module.batch_first


def take_state(graph_module, node):
    graph = graph_module.graph
    output = node.args[0]
    rnn = output.args[0]
    with graph.inserting_before(node):
        state = graph.call_function(operator.getitem, (rnn, 1))
        if type(graph_module.get_submodule(rnn.target)) is nn.LSTM:
            state = graph.call_function(operator.getitem, (state, 0))
        last = graph.call_function(operator.getitem, (state, -1))
    node.replace_all_uses_with(last)
    graph.erase_node(node)
    graph.erase_node(output)


@fault(
    3,
    "dropped setting",
    "structure",
    "contract",
    wrong="A bidirectional network's last step holds both directions, and its last state is the backward one's.",
)
def last_step_from_state(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """output[:, -1, :] is the hidden state of the last layer, which the network returns anyway; a backend that runs the
    recurrence step by step then stores no sequence."""
    if writes(graph_module):
        return graph_module
    for node in list(graph_module.graph.nodes):
        if is_last_step(graph_module, node):
            take_state(graph_module, node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


class FunctionalActivations(torch.fx.Transformer):
    """Calls the function wherever the program calls the layer."""

    def call_module(self, target, args, kwargs):
        module = self.fetch_attr(target)
        if kwargs or len(args) != 1:
            return super().call_module(target, args, kwargs)
        if type(module) is nn.ReLU:
            return F.relu(args[0], inplace=module.inplace)
        if type(module) is nn.SiLU:
            return F.silu(args[0], inplace=module.inplace)
        if type(module) is nn.GELU:
            return F.gelu(args[0], approximate=module.approximate)
        if type(module) is nn.LeakyReLU:
            return F.leaky_relu(args[0], module.negative_slope, module.inplace)
        if type(module) is nn.Softmax and module.dim is not None:
            return F.softmax(args[0], module.dim)
        if type(module) in (nn.Tanh, nn.Sigmoid):
            return (torch.tanh if type(module) is nn.Tanh else torch.sigmoid)(args[0])
        return super().call_module(target, args, kwargs)


@fault(
    3, "hooks", "contract", "state", wrong="A layer with a forward hook (or pre-hook) computes what the hook returns."
)
def activations_as_functions(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same program with activations as functions."""
    return FunctionalActivations(graph_module).transform()


def clamp_function(x):
    return torch.clamp(x, min=0)


def clamp_method(x):
    return x.clamp(min=0)


def clamp_positional(x):
    return torch.clamp(x, 0)


def clamp_min_method(x):
    return x.clamp_min(0)


def relu(x):
    return torch.relu(x)


@fault(3, "ties", "gradients", wrong="At exactly zero the gradient of clamp is 1, that of relu is 0.")
def clamp_to_relu(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """clamp(x, min=0) in its four spellings becomes relu(x); NaN stays NaN in both, integers stay integers."""
    for pattern in (clamp_function, clamp_method, clamp_positional, clamp_min_method):
        torch.fx.replace_pattern(graph_module, pattern, relu)
    return graph_module
