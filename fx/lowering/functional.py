"""Operations in place as ones that return a new value, in programs that are lowered: where the dtypes are known."""

from __future__ import annotations

from fx.graph_module import GraphModule
from fx.lowering.known_program import KnownProgram
from fx.node import Node
from fx.operators.families import is_one_of
from fx.passes import functional_form


def make_functional(graph_module: GraphModule) -> list[Node]:
    """Replace operations in place by what returns new values; see :func:`fx.passes.functional_form.make_functional`.

    Left as they are, besides, are those whose operands are not known to be of one floating-point dtype, activations
    aside, which keep any.

    Returns:
        The operations that return a new value now.

    >>> import fx, torch
    >>> from fx.canonical import canonical_form
    >>> program = canonical_form(fx.symbolic_trace(lambda x: torch.relu_(torch.neg(x)))).graph_module
    >>> make_functional(program)
    [relu_]
    """
    subject = KnownProgram(graph_module)
    return functional_form.make_functional(graph_module, lambda node: _keeps_dtype(subject, node))


def _keeps_dtype(subject: KnownProgram, node: Node) -> bool:
    """Return whether the value has the dtype of what is written to also if it is a new one."""
    if is_one_of(node.target, "activation", "dropout"):
        return True
    values = (*node.args, *node.kwargs.values())
    dtypes = {subject.dtype(one) for one in node.all_input_nodes}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    is_plain = all(one is None or isinstance(one, (Node, int, float, str)) for one in values)
    return is_plain and dtype is not None and dtype.is_floating_point
