import torch
import torch.fx

WRONG = (
    "does not see in-place writes between two equal reads, so a read after a write is replaced by the read before it"
)
LEVEL = "exported"


def _hashable(value):
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, tuple(_hashable(v) for v in value))
    if isinstance(value, dict):
        return tuple(sorted((k, _hashable(v)) for k, v in value.items()))
    if isinstance(value, torch.fx.Node):
        return ("node", value)
    return (type(value), value)


def cse_pure_ops(graph: torch.fx.Graph) -> None:
    """Common subexpression elimination over ATen calls without side effects."""
    visited = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags:
            continue
        if node.is_impure():
            continue
        key = (node.target, _hashable(node.args), _hashable(node.kwargs))
        try:
            first = visited.setdefault(key, node)
        except TypeError:
            continue
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
    graph.lint()


class CacheDrift(torch.nn.Module):
    """The change of the energy of a cache when its newest slot is written."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.arange(12.0).reshape(3, 4))

    def forward(self, x):
        before = self.cache.square().sum()
        self.cache[-1].copy_(x.mean(0))
        after = self.cache.square().sum()
        return after - before


def witness():
    torch.manual_seed(0)
    return CacheDrift().eval(), (torch.randn(3, 4),)
