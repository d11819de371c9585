"""A wrong pass of the sixteenth round."""

import torch
import torch.fx
from torch import nn
from torch.fx import Node

from ...rows import fault
from .shared import finish

_ELEMENTWISE = {torch.add, torch.sub, torch.mul, torch.div, torch.relu, torch.sigmoid, torch.tanh, torch.exp}


def _chain(node: Node) -> list[Node]:
    chain = [node]
    while len(chain[-1].users) == 1 and chain[-1].next in chain[-1].users and chain[-1].next.target in _ELEMENTWISE:
        if chain[-1].next.op != "call_function":
            break
        chain.append(chain[-1].next)
    return chain


def _rewrite(graph_module: torch.fx.GraphModule, careful: bool) -> torch.fx.GraphModule:
    graph, done, number = graph_module.graph, set(), 0
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _ELEMENTWISE or node in done:
            continue
        chain = _chain(node)
        done.update(chain)
        if len(chain) < 2 or any("out" in member.kwargs for member in chain):
            continue
        inner, inside, outside = torch.fx.Graph(), {}, []
        for member in chain:
            for used in member.all_input_nodes:
                if used not in chain and used not in outside:
                    outside.append(used)
        for position, used in enumerate(outside):
            inside[used] = inner.placeholder(f"x{position}")
        for member in chain:
            if careful:
                inside[member] = inner.node_copy(member, inside.__getitem__)
            else:
                args = torch.fx.map_arg(member.args, inside.__getitem__)
                inside[member] = inner.call_function(member.target, args)
        inner.output(inside[chain[-1]])
        while hasattr(graph_module, f"outlined_{number}"):
            number += 1
        graph_module.add_submodule(f"outlined_{number}", torch.fx.GraphModule(nn.Module(), inner))
        with graph.inserting_before(chain[0]):
            call = graph.call_module(f"outlined_{number}", tuple(outside))
        chain[-1].replace_all_uses_with(call)
        for member in reversed(chain):
            graph.erase_node(member)
    return finish(graph_module)


@fault(16, wrong="The keyword arguments of the functions are not taken along.")
def outline_elementwise(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Outlines chains of elementwise functions into a submodule each, which a backend can compile as a unit."""
    return _rewrite(graph_module, careful=False)
