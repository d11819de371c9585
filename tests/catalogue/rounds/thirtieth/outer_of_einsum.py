"""A right pass of the thirtieth round."""

import torch

import fx

from ...rows import sound


@sound(30)
def outer_of_einsum(gm: fx.GraphModule):
    """Spell einsum('i,j->ij', a, b), the angles of rotary embeddings, as an outer product."""
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not torch.einsum or node.kwargs or not node.args:
            continue
        equation, *operands = node.args
        if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
            operands = list(operands[0])
        if not isinstance(equation, str) or len(operands) != 2:
            continue
        if not all(isinstance(operand, fx.Node) for operand in operands):
            continue
        text = equation.replace(" ", "")
        if len(text) != 7 or text[1] != "," or text[3:5] != "->" or not (text[0] + text[2]).isalpha():
            continue
        if text[0] == text[2] or text[5:] != text[0] + text[2]:
            continue
        with gm.graph.inserting_before(node):
            outer = gm.graph.call_function(torch.outer, tuple(operands))
        node.replace_all_uses_with(outer)
        gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm
