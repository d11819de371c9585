"""Run passes of this library inside ``torch.compile``.

Dynamo captures a function as a ``torch.fx.GraphModule`` and passes it to a backend. This backend converts it, edits it
with our passes, and returns the resulting program.
"""

import operator
from collections.abc import Iterator

import torch

import fx
from fx.interop import compile_backend
from fx.passes import Edit, RemoveDeadCode, RewritingPass


class MultiplyInsteadOfPow(RewritingPass):
    """Rewrite ``x ** 2`` as ``x * x``, which is cheaper and gives the same bits."""

    name = "multiply-instead-of-pow"
    contract = fx.passes.exact

    def rewrites(self, graph_module: fx.GraphModule) -> Iterator[Edit]:
        for node in graph_module.graph.find_nodes(op="call_function", target=operator.pow):
            base, exponent = node.args
            if exponent == 2:
                yield Edit(f"{node} becomes a product", node.source)
                node.target, node.args = operator.mul, (base, base)


backend = compile_backend(MultiplyInsteadOfPow(), RemoveDeadCode())


@torch.compile(backend=backend)
def distance(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch.sin(x)  # dead code, which is dropped
    return ((x - y) ** 2).sum().sqrt()


if __name__ == "__main__":
    print(distance(torch.zeros(4), torch.ones(4)))
