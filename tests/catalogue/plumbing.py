"""The handling of programs by passes: stale code, broken graphs, errors that are none, answers that vary."""

from __future__ import annotations

import operator
import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.interop import adapt
from fx.passes import exact

from .rows import BOTH, calls, layers, of, replace, retarget, substitute, wrong

_sum = of(lambda m, x, y: torch.relu(x + y) + torch.sigmoid(x) + 1, (2, 3), (3,))


# Code and graph.


@wrong("stale code", "code and graph agree", on=_sum, contract=exact, modes=BOTH)
def without_recompile(gm: fx.GraphModule) -> None:
    """The graph is edited and the code is not generated again."""
    for node in calls(gm, torch.relu):
        replace(node, F.relu, node.args[0])
    for node in calls(gm, operator.add):
        node.target = torch.add if all(isinstance(arg, fx.Node) for arg in node.args) else operator.add


@wrong("stale code", "code and graph agree", on=_sum)
def recompiled_too_early(gm: fx.GraphModule) -> None:
    """The code is generated before the last edit."""
    gm.recompile()
    for node in calls(gm, operator.add, operator.mul):
        if isinstance(node.args[1], (int, float)):
            node.args = (node.args[1], node.args[0])


@wrong("result dropped", "changes", on=_sum)
def new_program_not_returned(gm: fx.GraphModule) -> None:
    """The new program is built and not returned, so nothing happens."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(gm.graph, copies)
    for node in graph.find_nodes(op="call_function", target=torch.relu):
        node.target = F.relu
    graph.output(result)
    fx.GraphModule(gm, graph)


@wrong("result dropped", "returns a program", "contract", on=_sum)
def graph_returned(gm: fx.GraphModule) -> Any:
    """The graph is returned in the place of the program."""
    retarget(gm, torch.relu, F.relu)
    return gm.graph


@wrong("broken graph", "well formed", "refusal", on=_sum)
def inserted_at_the_end(gm: fx.GraphModule) -> None:
    """The new node is appended behind those that use it, since no insertion point was set."""
    for node in calls(gm, torch.relu, torch.sigmoid, torch.tanh):
        call = gm.graph.call_method(node.target.__name__, node.args)
        substitute(node, call)
    gm.recompile()


@wrong("broken graph", "refusal", on=_sum)
def erased_before_replaced(gm: fx.GraphModule) -> None:
    """A node is erased before its users have another input."""
    for node in calls(gm, torch.relu):
        with gm.graph.inserting_before(node):
            call = gm.graph.call_function(F.relu, node.args)
        gm.graph.erase_node(node)
        node.replace_all_uses_with(call)
    gm.recompile()


# Errors.


@wrong("crash instead of refusal", "refusal", on=of(
    lambda m, x: m.net(x), (2, 3), net=nn.Sequential(nn.Linear(3, 4), nn.ReLU())
))  # fmt: skip
def modules_by_name(gm: fx.GraphModule) -> None:
    """A module is looked up by its whole path among the direct children."""
    for node in gm.graph.find_nodes(op="call_module"):
        module = gm._modules[node.target]
        if type(module) is nn.ReLU and not module.inplace:
            replace(node, torch.relu, *node.args)
    gm.recompile()


@wrong("crash instead of refusal", "refusal", on=of(lambda m, x: torch.sum(x, 1), (2, 3)))
def arguments_by_keyword(gm: fx.GraphModule) -> None:
    """An argument is expected by keyword that may be given by position."""
    for node in calls(gm, F.softmax, torch.softmax, torch.sum, torch.cat):
        node.kwargs = {**node.kwargs, "dim": int(node.kwargs["dim"])}
    gm.recompile()


@wrong("crash instead of refusal", "refusal", on=of(lambda m, x: torch.flatten(x, start_dim=1), (2, 3, 2)))
@adapt
def arguments_by_position(gm: torch.fx.GraphModule) -> None:
    """An argument is expected by position that may be given by keyword, or left out."""
    for node in list(gm.graph.nodes):
        if node.target in (torch.flatten, torch.sum, torch.mean, "sum", "mean", "flatten"):
            x, dim = node.args
            with gm.graph.inserting_before(node):
                call = gm.graph.call_function(torch.flatten if "flatten" in str(node.target) else torch.sum, (x, dim))
            if "flatten" in str(node.target):
                node.replace_all_uses_with(call)
    gm.graph.eliminate_dead_code()
    gm.recompile()


@wrong("crash instead of refusal", "refusal", on=of(lambda m, x: m.fc(x), (2, 3), fc=nn.Linear(3, 4, bias=False)))
def bias_taken_for_granted(gm: fx.GraphModule) -> None:
    """That a layer may have no bias is forgotten."""
    for node, layer in layers(gm, nn.Linear):
        fused = nn.Linear(layer.in_features, layer.out_features, dtype=layer.weight.dtype)
        fused.weight, fused.bias = layer.weight, nn.Parameter(layer.bias.detach().clone(), layer.bias.requires_grad)
        gm.add_submodule(f"{node.name}_copy", fused)
        node.target = f"{node.name}_copy"
    gm.recompile()


@wrong("non-terminating", "terminates", on=_sum)
def until_nothing_changes(gm: fx.GraphModule) -> None:
    """Operands are exchanged until nothing changes, which never happens."""
    changed = True
    while changed:
        changed = False
        for node in calls(gm, operator.add):
            if len(node.args) == 2:
                node.args = node.args[::-1]
                changed = True
    gm.recompile()


# Answers that vary, programs that do not travel.


@wrong("nondeterministic", "deterministic", on=_sum)
def in_the_order_of_a_set(gm: fx.GraphModule) -> None:
    """Nodes are renamed in the order of a set, which is that of their addresses."""
    for number, node in enumerate(set(gm.graph.nodes)):
        if node.op.startswith("call"):
            node.name = f"value_{number}"
    gm.recompile()


@wrong("nondeterministic", "deterministic", on=_sum)
def by_lot(gm: fx.GraphModule) -> None:
    """A random choice decides which calls are rewritten."""
    for node in calls(gm, torch.relu, torch.sigmoid, operator.add):
        if random.random() < 0.5:
            node.meta["chosen"] = True
            name = f"{node.name}_{random.randrange(1000)}"
            node.name = name
    gm.recompile()


@wrong("closure as a target", "round trips", on=_sum, modes=BOTH)
def fused_by_closure(gm: fx.GraphModule) -> None:
    """A program that calls a function without a name can be neither pickled nor saved."""
    for node in calls(gm, torch.relu, nn.ReLU):
        replace(node, lambda x: torch.clamp_min(x, 0) + 0, node.args[0])
    gm.recompile()


@wrong("meta data lost", "metadata kept", on=_sum, contract=exact, modes=BOTH)
def graph_made_anew(gm: fx.GraphModule) -> fx.GraphModule:
    """Nodes are created again from their targets and arguments, and lose the user's lines and notes."""
    graph = fx.Graph()
    cache: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        args, kwargs = fx.map_arg(node.args, cache.__getitem__), fx.map_arg(node.kwargs, cache.__getitem__)
        cache[node] = graph.create_node(node.op, node.target, args, dict(kwargs), node.name, node.type)
    return fx.GraphModule(gm, graph)


@wrong("meta data lost", "metadata kept", on=_sum, contract=exact)
def notes_cleared(gm: fx.GraphModule) -> None:
    """Notes that others made are thrown away with one's own."""
    for node in gm.graph.nodes:
        node.meta = {}
        node.name = f"{node.name}_" if node.op.startswith("call") else node.name
    gm.recompile()
