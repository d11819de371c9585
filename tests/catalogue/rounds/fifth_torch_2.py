"""Wrong passes of the fifth round for torch.fx, part 2."""

import torch
import torch.fx
import torch.nn.functional as F
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from ..rows import fault


def maximum_w16(node):
    """The input and the dimension of x.gather(dim, x.argmax(dim, keepdim=True)), or None."""
    if node.target is not torch.gather and not (node.op == "call_method" and node.target == "gather"):
        return None
    if len(node.args) != 3 or node.kwargs:
        return None
    source, dim, index = node.args
    if not isinstance(index, torch.fx.Node) or not index.args or index.args[0] is not source:
        return None
    if index.target is not torch.argmax and not (index.op == "call_method" and index.target == "argmax"):
        return None
    arguments = dict(zip(("input", "dim", "keepdim"), index.args), **index.kwargs)
    if arguments.get("dim") != dim or arguments.get("keepdim") is not True or not isinstance(dim, int):
        return None
    return (source, dim) if index.next is node else None


class ToAmax_w16(PassBase):
    def call(self, graph_module):
        changed = False
        for node in list(graph_module.graph.nodes):
            value_and_dim = maximum_w16(node)
            if value_and_dim is None:
                continue
            with graph_module.graph.inserting_before(node):
                new = graph_module.graph.call_function(torch.amax, value_and_dim, {"keepdim": True})
            node.replace_all_uses_with(new)
            graph_module.graph.erase_node(node)
            changed = True
        graph_module.graph.eliminate_dead_code()
        graph_module.recompile()
        return PassResult(graph_module, changed)


@fault(
    5,
    wrong="It forgot the gradient at ties: amax shares it between all that are largest, gather gives it to the chosen one.",
)
def gather_argmax_to_amax(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Reads the largest entry by amax instead of gathering at the argmax."""
    return ToAmax_w16()(graph_module).graph_module


def arguments_w17(args, kwargs):
    return dict(zip(("input", "repeats", "dim"), args), **kwargs)


class Stack_w17(torch.fx.Transformer):
    def call_function(self, target, args, kwargs):
        if target is torch.repeat_interleave:
            new = self.expand(arguments_w17(args, kwargs))
            if new is not None:
                return new
        return super().call_function(target, args, kwargs)

    def call_method(self, target, args, kwargs):
        if target == "repeat_interleave":
            new = self.expand(arguments_w17(args, kwargs))
            if new is not None:
                return new
        return super().call_method(target, args, kwargs)

    def expand(self, arguments):
        repeats, dim = arguments.get("repeats"), arguments.get("dim")
        if (
            type(repeats) is not int
            or repeats < 1
            or type(dim) is not int
            or set(arguments) != {"input", "repeats", "dim"}
        ):
            return None
        return torch.stack([arguments["input"]] * repeats, dim + 1).flatten(dim, dim + 1)


@fault(5, wrong="It forgot dimensions counted from the end: the new axis lands in the wrong place.")
def repeat_interleave_to_stack(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Writes repeat_interleave (of the key heads in grouped attention) by stack and flatten, which every exporter knows."""
    return Stack_w17(graph_module).transform()


LOG_SOFTMAX_W19 = (F.log_softmax, torch.log_softmax)


def log_softmax_w19(node):
    """The logits and the dimension of a log_softmax, or None."""
    if not isinstance(node, torch.fx.Node) or len(node.users) != 1:
        return None
    if node.target not in LOG_SOFTMAX_W19 and not (node.op == "call_method" and node.target == "log_softmax"):
        return None
    if len(node.args) > 2 or node.kwargs.get("dtype") is not None or not node.args:
        return None
    return node.args[0], node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")


def replace_w19(graph, node, logits):
    with graph.inserting_before(node):
        new = graph.call_function(F.cross_entropy, (logits, *node.args[1:]), dict(node.kwargs))
    node.replace_all_uses_with(new)
    first = node.args[0]
    graph.erase_node(node)
    graph.erase_node(first)


@fault(
    5,
    wrong="It took the last dimension for the classes: with (N, C, L) the classes are dimension 1, log_softmax over -1 is another thing.",
)
def fuse_cross_entropy_fifth(graph_module: torch.fx.GraphModule):
    """Fuses log_softmax and nll_loss into cross_entropy."""
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or node.target is not F.nll_loss or not node.args:
            continue
        scores_and_dim = log_softmax_w19(node.args[0])
        if scores_and_dim is None or scores_and_dim[1] not in (1, -1):
            continue
        replace_w19(graph_module.graph, node, scores_and_dim[0])
    graph_module.recompile()
    return graph_module
