"""A wrong pass of the twentyfifth round."""

import torch
import torch.utils.checkpoint

import fx

from ...rows import fault
from .shared import writes

LAYERS = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.ReLU, torch.nn.Tanh, torch.nn.GELU)


NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)


def through(x, *modules):
    for module in modules:
        x = module(x)
    return x


def run_checkpointed(x, *modules):
    if isinstance(x, (fx.Proxy, torch.fx.Proxy)):  # captured again
        return through(x, *modules)
    return torch.utils.checkpoint.checkpoint(through, x, *modules, use_reentrant=False)


def wrap_chains(gm, accepts):
    if writes(gm):
        return gm

    def links(node):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            return False
        module = gm.get_submodule(node.target)
        return type(module) in LAYERS + NORMS and accepts(module)

    for node in list(gm.graph.nodes):
        chain = []
        while links(node) and (not chain or node.args[0] is chain[-1]):
            chain.append(node)
            if len(node.users) != 1:
                break
            (node,) = node.users
        if len(chain) < 2 or len({link.target for link in chain}) != len(chain):
            continue
        with gm.graph.inserting_before(chain[-1]):
            modules = [gm.graph.get_attr(link.target) for link in chain]
            wrapped = gm.graph.call_function(run_checkpointed, (chain[0].args[0], *modules))
        chain[-1].replace_all_uses_with(wrapped)
        for link in reversed(chain):
            gm.graph.erase_node(link)
    gm.recompile()
    return gm


@fault(
    25,
    wrong="A batch norm in training is run twice, forward and again in backward, and moves its running statistics twice.",
)
def checkpoint_runs(gm):
    """Save memory of activations: run chains of layers under torch.utils.checkpoint, which computes them again in backward."""
    return wrap_chains(gm, lambda module: True)
