"""A wrong pass of the thirtyfirst round."""

import torch.nn as nn
import torch.nn.functional as F

import fx

from ...rows import fault


def _of_root(flag):
    return isinstance(flag, fx.Node) and flag.op == "get_attr" and flag.target == "training"


def _layers(gm, follows_mode):
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not F.dropout:
            continue
        values = dict(zip(("input", "p", "training", "inplace"), node.args), **node.kwargs)
        p, flag = values.get("p", 0.5), values.get("training", True)
        if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0 <= p <= 1:
            continue
        if not isinstance(values.get("inplace", False), bool) or not follows_mode(flag):
            continue
        name, number = "dropout_layer", 0
        while hasattr(gm, name):
            number += 1
            name = f"dropout_layer_{number}"
        gm.add_submodule(name, nn.Dropout(p, values.get("inplace", False)).train(gm.training))
        with gm.graph.inserting_before(node):
            result = gm.graph.call_module(name, (values["input"],))
        node.replace_all_uses_with(result)
        gm.graph.erase_node(node)
        if isinstance(flag, fx.Node) and not flag.users:
            gm.graph.erase_node(flag)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    31,
    wrong="F.dropout becomes an nn.Dropout layer also where the program passes training=True (or leaves the "
    "default, which is true): Monte Carlo dropout is then off in evaluation mode.",
)
def dropout_to_layers(gm: fx.GraphModule):
    """Turn calls of F.dropout into nn.Dropout layers, which later passes know."""
    return _layers(gm, lambda flag: flag is True or _of_root(flag))
