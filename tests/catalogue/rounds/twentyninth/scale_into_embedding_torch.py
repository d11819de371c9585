"""A wrong pass of the twentyninth round."""

import copy
import operator

import torch
import torch.fx
import torch.nn as nn

from ...rows import fault
from .shared import _HOOKS


def _scaled_calls(gm):
    """(multiplication, call of an embedding, the embedding), where the call is only multiplied by a number."""
    for mul in list(gm.graph.nodes):
        if mul.op != "call_function" or mul.target is not operator.mul or type(mul.args[1]) not in (int, float):
            continue
        call = mul.args[0]
        if (
            getattr(call, "op", None) != "call_module"
            or list(call.users) != [mul]
            or len(call.args) != 1
            or call.kwargs
        ):
            continue
        table = gm.get_submodule(call.target)
        if type(table) is not nn.Embedding or table.max_norm is not None or not table.weight.is_floating_point():
            continue
        others = [n for n in gm.graph.nodes if n.op == "get_attr" and n.target.startswith(call.target + ".")]
        others += [n for n in gm.graph.nodes if n.op == "call_module" and gm.get_submodule(n.target) is table]
        if others == [call] and not any(getattr(table, h, None) for h in _HOOKS):
            yield mul, call, table


def _replace(gm, call, table, factor):
    new = nn.Embedding.from_pretrained(table.weight.detach() * factor, freeze=False, padding_idx=table.padding_idx)
    gm.delete_submodule(call.target)
    call.target = f"{call.name}_scaled"
    gm.add_submodule(call.target, new.eval())
    return new


def _replace_and_tie(gm, call, table, factor):
    new = _replace(gm, call, table, factor)
    for module in gm.modules():
        if type(module) is nn.Linear and module.weight is table.weight:
            module.weight = new.weight


def _fold(gm, replace, accepts):
    if gm.training:
        return gm
    gm = copy.deepcopy(gm)  # the layers of the caller's model stay as they are
    for mul, call, table in list(_scaled_calls(gm)):
        if not accepts(gm, table):
            continue
        replace(gm, call, table, mul.args[1])
        mul.replace_all_uses_with(call)
        gm.graph.erase_node(mul)
    gm.recompile()
    return gm


@fault(29, wrong="Ties an output layer that shared the table to the scaled one, which scales its results too.")
def scale_into_embedding(gm: torch.fx.GraphModule):
    """Fold the number that an embedding is multiplied by, sqrt(d) in transformers, into its table, for inference."""
    return _fold(gm, _replace_and_tie, lambda gm, table: True)
