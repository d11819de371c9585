"""Passes of the fourth round that are written for torch.fx."""

import operator

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from ..rows import fault


def _time_major(rnn):
    """The same layer over the same parameters with batch_first off."""
    new = type(rnn)(
        rnn.input_size,
        rnn.hidden_size,
        rnn.num_layers,
        bias=rnn.bias,
        batch_first=False,
        dropout=rnn.dropout,
        bidirectional=rnn.bidirectional,
    )
    new.mode = rnn.mode
    if hasattr(rnn, "nonlinearity"):
        new.nonlinearity = rnn.nonlinearity
    for name, parameter in rnn.named_parameters():
        setattr(new, name, parameter)
    return new.train(rnn.training)


def _candidates(graph_module):
    for node in list(graph_module.graph.nodes):
        if node.op != "call_module" or not node.args or not isinstance(node.args[0], torch.fx.Node):
            continue
        rnn = graph_module.get_submodule(node.target)
        if type(rnn) not in (nn.LSTM, nn.GRU, nn.RNN) or not rnn.batch_first or rnn.proj_size:
            continue
        if rnn._forward_hooks or rnn._forward_pre_hooks:
            continue
        if all(u.op == "call_function" and u.target is operator.getitem and u.args[1] in (0, 1) for u in node.users):
            yield node, rnn


def _rewrite(graph_module, swap):
    graph = graph_module.graph
    for node, rnn in _candidates(graph_module):
        name = f"{node.name}_time_major"
        graph_module.add_submodule(name, _time_major(rnn))
        with graph.inserting_before(node):
            node.args = (swap(graph, node.args[0]), *node.args[1:])
        node.target = name
        for user in list(node.users):
            if user.args[1] != 0:
                continue
            with graph.inserting_after(user):
                back = swap(graph, user)
            user.replace_all_uses_with(back, delete_user_cb=lambda other, back=back: other is not back)
    graph_module.delete_all_unused_submodules()
    graph_module.recompile()
    return graph_module


def _transpose(graph, node):
    return graph.call_method("transpose", (node, 0, 1))


@fault(
    4,
    "rank",
    "structure",
    "contract",
    "refusal",
    wrong="A sequence without a batch dimension is two-dimensional, and transposing it swaps time and features.",
)
def time_major_rnn(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Turn batch_first recurrent layers into time-major ones between two transposes."""
    return _rewrite(graph_module, _transpose)


class LowerRnnCell(PassBase):
    def activation(self, cell):
        return torch.tanh

    def call(self, graph_module):
        graph, changed = graph_module.graph, False
        for node in list(graph.nodes):
            if node.op != "call_module" or len(node.args) + len(node.kwargs) != 2:
                continue
            cell = graph_module.get_submodule(node.target)
            if type(cell) is not nn.RNNCell or cell._forward_hooks or cell._forward_pre_hooks:
                continue
            x = node.args[0] if node.args else node.kwargs["input"]
            hidden = node.args[1] if len(node.args) > 1 else node.kwargs["hx"]
            if hidden is None:
                continue
            with graph.inserting_before(node):

                def read(name):
                    if getattr(cell, name) is None:
                        return None
                    return graph.get_attr(f"{node.target}.{name}")

                from_x = graph.call_function(F.linear, (x, read("weight_ih"), read("bias_ih")))
                from_h = graph.call_function(F.linear, (hidden, read("weight_hh"), read("bias_hh")))
                total = graph.call_function(torch.add, (from_x, from_h))
                new = graph.call_function(self.activation(cell), (total,))
            node.replace_all_uses_with(new)
            graph.erase_node(node)
            changed = True
        graph_module.recompile()
        return PassResult(graph_module, changed)


@fault(
    4,
    "dropped setting",
    "contract",
    "gradients",
    wrong="It takes every RNNCell to be a tanh one, though nonlinearity may be 'relu'.",
)
def lower_rnn_cell(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replace nn.RNNCell by linear, linear, add and its activation, keeping the parameters where they are."""
    return LowerRnnCell()(graph_module).graph_module


def _is_lookup(table):
    return (
        type(table) is nn.Embedding
        and table.max_norm is None
        and not table.scale_grad_by_freq
        and not table.sparse
        and not (table._forward_hooks or table._forward_pre_hooks or table._backward_hooks)
    )


def _lower(graph_module, node, table):
    graph, ids = graph_module.graph, node.args[0]
    with graph.inserting_before(node):
        weight = graph.get_attr(f"{node.target}.weight")
        shape = graph.call_function(getattr, (ids, "shape"))
        shape = graph.call_function(operator.add, (shape, (table.embedding_dim,)))
        flat = graph.call_method("reshape", (ids, -1))
        rows = graph.call_function(torch.index_select, (weight, 0, flat))
        new = graph.call_method("reshape", (rows, shape))
    node.replace_all_uses_with(new)
    graph.erase_node(node)


@fault(
    4,
    "dropped setting",
    "gradients",
    wrong="Padding_idx keeps the padding row out of the gradient; index_select gives that row one.",
)
def embedding_to_index_select(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Lower nn.Embedding to index_select on the flattened ids and a reshape."""
    for node in list(graph_module.graph.nodes):
        if node.op == "call_module" and len(node.args) == 1:
            table = graph_module.get_submodule(node.target)
            if _is_lookup(table):
                _lower(graph_module, node, table)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


_REDUCTIONS = {torch.max: torch.amax, torch.min: torch.amin, "max": torch.amax, "min": torch.amin}


def _settings(node):
    """The reduction, input, dim and keepdim of a max or min with a dim, or None."""
    if node.op not in ("call_function", "call_method") or node.target not in _REDUCTIONS:
        return None
    arguments = {**dict(zip(("input", "dim", "keepdim"), node.args)), **node.kwargs}
    if type(arguments.get("dim")) is not int or set(arguments) - {"input", "dim", "keepdim"}:
        return None
    if not isinstance(arguments.get("keepdim", False), bool):
        return None
    return _REDUCTIONS[node.target], arguments["input"], arguments["dim"], arguments.get("keepdim", False)


def _reads_values(user):
    if user.op != "call_function":
        return False
    return (user.target is operator.getitem and user.args[1] == 0) or (
        user.target is getattr and user.args[1] == "values"
    )


def _lower_extremes(graph, node, settings):
    reduction, source, dim, keepdim = settings
    with graph.inserting_before(node):
        new = graph.call_function(reduction, (source, dim), {"keepdim": keepdim})
    for user in list(node.users):
        user.replace_all_uses_with(new)
        graph.erase_node(user)
    graph.erase_node(node)


@fault(
    4,
    "ties",
    "gradients",
    wrong="Where several elements tie, max sends the gradient to one of them and amax shares it out among all.",
)
def extremes_to_amax(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Use amax and amin where the indices of max and min are not read."""
    for node in list(graph_module.graph.nodes):
        settings = _settings(node)
        if settings and node.users and all(map(_reads_values, node.users)):
            _lower_extremes(graph_module.graph, node, settings)
    graph_module.recompile()
    return graph_module


@fault(
    4,
    "precision lost",
    "contract",
    "gradients",
    wrong="It casts whatever the input's dtype is, so a float64 softmax is computed with the precision of float32.",
)
def softmax_by_float32(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Compute every softmax in float32 and cast back, as float16 exponentials lose too much."""

    def replacement(x, dim):
        return torch.softmax(x.to(torch.float32), dim).type_as(x)

    for pattern in _patterns():
        for match in torch.fx.replace_pattern(graph_module, pattern, replacement):
            assert match.anchor is not None
    graph_module.recompile()
    return graph_module


def _patterns():
    def functional(x, dim):
        return F.softmax(x, dim=dim)

    def method(x, dim):
        return x.softmax(dim)

    def method_by_name(x, dim):
        return x.softmax(dim=dim)

    return functional, method, method_by_name


def _is_dot(equation):
    """Return whether an equation sums the product of two equal shapes over the last dimension, as 'bd,bd->b'."""
    if not isinstance(equation, str):
        return False
    inputs, arrow, out = equation.replace(" ", "").partition("->")
    first, comma, second = inputs.partition(",")
    return (
        bool(arrow and comma)
        and first == second
        and out == first[:-1]
        and first.isalpha()
        and len(set(first)) == len(first)
    )


class OpenDots(torch.fx.Transformer):
    def dot(self, first, second):
        return (first * second).sum(-1)

    def call_function(self, target, args, kwargs):
        if target is torch.einsum and len(args) == 3 and not kwargs and _is_dot(args[0]):
            return self.dot(args[1], args[2])
        return super().call_function(target, args, kwargs)


@fault(4, "dtype", "dtype", "contract", wrong="Sum adds up small integers in int64, where einsum keeps their dtype.")
def einsum_dot_products(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replace einsum('bd,bd->b') and its kin, row-wise dot products, by a product and a sum."""
    return OpenDots(graph_module).transform()
