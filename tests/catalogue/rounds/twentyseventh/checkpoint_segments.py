"""A wrong pass of the twentyseventh round."""

from torch import nn
from torch.utils.checkpoint import checkpoint

from ...rows import fault
from .shared import _hooked

LAYERS = (nn.Linear, nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.Dropout)


class Segment(nn.Module):
    """Layers that stay registered where they were: the tuple hides them from the state dict."""

    def __init__(self, layers, preserve_rng_state):
        super().__init__()
        self.layers = tuple(layers)
        self.preserve_rng_state = preserve_rng_state

    def run(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, x):
        return checkpoint(self.run, x, use_reentrant=False, preserve_rng_state=self.preserve_rng_state)


def _checkpoint(gm, preserve_rng_state):
    modules = dict(gm.named_modules())

    def small(node):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            return False
        layer = modules[node.target]
        return type(layer) in LAYERS and not _hooked(layer) and not getattr(layer, "inplace", False)

    nodes = list(gm.graph.nodes)
    if not all(n.op in ("placeholder", "output", "get_attr") or small(n) for n in nodes):
        return gm  # something else, which may write to what is recomputed
    while nodes:
        run = [nodes.pop(0)]
        if run[0].op != "call_module" or type(modules[run[0].target]) is not nn.Linear:
            continue
        while nodes and small(nodes[0]) and nodes[0].args[0] is run[-1] and len(run[-1].users) == 1:
            run.append(nodes.pop(0))
        if len(run) < 2:
            continue
        name = f"checkpoint_{run[0].name}"
        gm.add_submodule(name, Segment([modules[n.target] for n in run], preserve_rng_state))
        with gm.graph.inserting_after(run[-1]):
            node = gm.graph.call_module(name, (run[0].args[0],))
        run[-1].replace_all_uses_with(node)
        for old in reversed(run):
            gm.graph.erase_node(old)
    gm.recompile()
    return gm


@fault(
    27, wrong="It turns preserve_rng_state off, for speed, so that dropout draws another mask when it is recomputed."
)
def checkpoint_segments(gm):
    """Runs of small layers are checkpointed: their activations are computed again in the backward pass instead of kept."""
    return _checkpoint(gm, preserve_rng_state=False)
