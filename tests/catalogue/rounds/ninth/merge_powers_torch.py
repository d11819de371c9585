"""A wrong pass of the ninth round."""

import operator

import torch

from ...rows import fault


def _power(node):
    if not isinstance(node, torch.fx.Node) or node.kwargs or len(node.args) != 2:
        return None
    is_method = node.op == "call_method" and node.target == "pow"
    is_function = node.op == "call_function" and node.target in (torch.pow, operator.pow)
    if not (is_method or is_function) or not isinstance(node.args[0], torch.fx.Node):
        return None
    exponent = node.args[1]
    return exponent if type(exponent) in (int, float) and exponent > 0 else None


def _run(module, right):
    graph = module.graph
    for outer in list(graph.nodes):
        second = _power(outer)
        inner = outer.args[0] if second is not None else None
        first = _power(inner)
        if first is None or list(inner.users) != [outer]:
            continue
        if right and not (type(first) is int and type(second) is int):
            continue
        # where the inner one stands: nothing writes to its operand before it
        inner.args = (inner.args[0], first * second)
        outer.replace_all_uses_with(inner)
        graph.erase_node(outer)
    graph.lint()
    module.recompile()
    return module


@fault(9, wrong="Takes fractional exponents too: (x**2)**0.5 is |x|, not x.")
def merge_powers(module):
    """Compute (x**a)**b as x**(a*b), for positive exponents."""
    return _run(module, False)
