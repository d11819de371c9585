"""Right passes of the second round that are written for torch.fx."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ..rows import sound


def _permutation(node):
    """(x, non-negative permutation) of a call of permute, or None."""
    if (
        node.op == "call_method"
        and node.target == "permute"
        or node.op == "call_function"
        and node.target is torch.permute
    ):
        args, kwargs = list(node.args), dict(node.kwargs)
        if "input" in kwargs and node.op == "call_function" and not args:
            args = [kwargs.pop("input")]
        if len(args) == 1 and set(kwargs) == {"dims"}:
            dims = kwargs["dims"]
        elif len(args) == 2 and isinstance(args[1], (tuple, list)) and not kwargs:
            dims = args[1]
        elif len(args) > 1 and not kwargs and node.op == "call_method":
            dims = args[1:]
        else:
            return None
        if not isinstance(dims, (tuple, list)) or not dims or not all(type(d) is int for d in dims):
            return None
        rank = len(dims)
        if sorted(d % rank for d in dims) != list(range(rank)) or not all(-rank <= d < rank for d in dims):
            return None
        if isinstance(args[0], torch.fx.Node):
            return args[0], [d % rank for d in dims]
    return None


@sound(2)
def compose_two_permutes(graph_module: torch.fx.GraphModule):
    """Make one permute of two in a row.

    Conversions between layouts (channels first and last, heads before and after positions) meet at the borders of
    blocks.
    """
    graph = graph_module.graph
    changed = True
    while changed:
        changed = False
        for node in graph.nodes:
            outer = _permutation(node)
            if outer is None or outer[0] is not node.prev:
                continue
            inner = _permutation(outer[0])
            if inner is None or len(inner[1]) != len(outer[1]):
                continue
            dims = tuple(inner[1][d] for d in outer[1])
            with graph.inserting_before(node):
                both = graph.call_method("permute", (inner[0], *dims))
            node.replace_all_uses_with(both)
            graph.erase_node(node)
            if not outer[0].users:
                graph.erase_node(outer[0])
            changed = True
            break
    graph.lint()
    graph_module.recompile()
    return graph_module


FUNCTIONS = {
    nn.ReLU: (F.relu, ("inplace",)),
    nn.ReLU6: (F.relu6, ("inplace",)),
    nn.LeakyReLU: (F.leaky_relu, ("negative_slope", "inplace")),
    nn.ELU: (F.elu, ("alpha", "inplace")),
    nn.GELU: (F.gelu, ("approximate",)),
    nn.SiLU: (F.silu, ("inplace",)),
    nn.Hardswish: (F.hardswish, ("inplace",)),
    nn.Softplus: (F.softplus, ("beta", "threshold")),
    nn.Sigmoid: (torch.sigmoid, ()),
    nn.Tanh: (torch.tanh, ()),
    nn.Softmax: (F.softmax, ("dim",)),
}


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _Functional(torch.fx.Transformer):
    def call_module(self, target, args, kwargs):
        module = self.fetch_attr(target)
        plain = (
            type(module) in FUNCTIONS
            and "forward" not in vars(module)
            and not any(getattr(module, h, None) for h in HOOKS)
        )
        if plain and len(args) == 1 and not kwargs:
            function, names = FUNCTIONS[type(module)]
            settings = {name: getattr(module, name) for name in names}
            if type(module) is not nn.Softmax or type(module.dim) is int:
                proxy = self.tracer.create_proxy("call_function", function, args, settings)
                return proxy
        return super().call_module(target, args, kwargs)


@sound(2)
def functional_activations(graph_module: torch.fx.GraphModule):
    """Write activations as calls of torch.nn.functional, so that fusions have one form to match."""
    if any(getattr(graph_module, name, None) for name in HOOKS):
        return graph_module
    return _Functional(graph_module).transform()
