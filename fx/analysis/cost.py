"""What a program costs: operations, bytes and parameters of each node, module and the whole (paper, section 6.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fx.analysis.kernel_calls import KernelRun, tensors_held
from fx.analysis.kernel_costs import NO_WORK, KernelCost, Work, cost_of_kernel
from fx.graph_module import GraphModule, expect_program
from fx.naming.tables import in_bytes, in_units, table_lines
from fx.node import Node

_SHOWN = 10


@dataclass(frozen=True, slots=True, eq=False)
class NodeCost:
    """What one node costs."""

    node: Node
    """The node."""
    module: str
    """The path of the module that it calls or is in; empty in the root."""
    forward: Work
    """The work of running it."""
    backward: Work
    """The work of its gradient; none where the backward run was not asked for."""
    kernels: tuple[KernelCost, ...]
    """The calls of kernels, forward and then backward."""
    parameters: int
    """Elements of the parameters that it holds or fetches."""

    @property
    def total(self) -> Work:
        """Forward and backward together."""
        return self.forward + self.backward


@dataclass(frozen=True, slots=True, eq=False)
class CostReport:
    """What a program costs. Operations count two a multiply-add; bytes are those that each kernel reads and writes."""

    nodes: tuple[NodeCost, ...]
    """Each node that does anything, in order."""
    beside: Work
    """Work of the backward run that belongs to no node, as that of making the first gradient."""
    parameters: int
    """Elements of the parameters that the program uses, each parameter once."""
    parameter_bytes: int
    """Their size in bytes."""
    followed: tuple[Node, ...] = ()
    """The calls that were followed: all, or with ``partial`` those up to where something was raised."""
    failure: Exception | None = None
    """With ``partial``, what was raised, or what should perhaps have been: fake tensors are multiplied whatever their
    dtypes are."""

    def multiply_adds_of(self) -> dict[Node, int]:
        """The multiply-adds of each call that was followed, forward."""
        known = {one.node: one.forward.multiply_adds for one in self.nodes}
        return {node: known.get(node, 0) for node in self.followed}

    @property
    def forward(self) -> Work:
        """The work of the forward run."""
        return sum((one.forward for one in self.nodes), NO_WORK)

    @property
    def backward(self) -> Work:
        """The work of the backward run."""
        return sum((one.backward for one in self.nodes), self.beside)

    @property
    def total(self) -> Work:
        """The work of both."""
        return self.forward + self.backward

    @property
    def unknown(self) -> dict[str, int]:
        """Operators without a formula, each with the number of its calls."""
        return dict(Counter(one.name for node in self.nodes for one in node.kernels if not one.is_known))

    def by_module(self, depth: int | None = None) -> dict[str, Work]:
        """The work of each module with all in it, by path; the whole program is the empty path.

        Args:
            depth: how many names of a path count; None: all.
        """
        found: dict[str, Work] = {"": self.beside}
        for one in self.nodes:
            names = one.module.split(".")[:depth] if one.module else []
            for count in range(len(names) + 1):
                path = ".".join(names[:count])
                found[path] = found.get(path, NO_WORK) + one.total
        return found

    def __str__(self) -> str:
        total = self.total
        lines = [
            f"{_operations(total)}, {in_units(total.multiply_adds)} multiply-adds, "
            f"{in_units(self.parameters)} parameters ({in_bytes(self.parameter_bytes)})",
            f"reads {in_bytes(total.read)}, writes {in_bytes(total.written)}: "
            f"{total.intensity:.3g} FLOP a byte, {total.kernels} kernels",
        ]
        if self.backward.kernels:
            lines.append(f"forward {_operations(self.forward)}, backward {_operations(self.backward)}")
        greatest = sorted(self.nodes, key=lambda one: -one.total.flops)[:_SHOWN]
        lines += ["", *table_lines(["node", "FLOP", "share", "moved", "FLOP a byte", "parameters"],
                                   [_row(one, total) for one in greatest])]  # fmt: skip
        if left := len(self.nodes) - len(greatest):
            lines.append(f"and {left} more")
        for name, count in self.unknown.items():
            lines.append(f"unknown: {name}, {count} time{'s' if count != 1 else ''}; its range is in the sum")
        if self.unknown:
            lines.append("  try torch.utils.flop_counter.register_flop_formula with its operator")
        return "\n".join(lines)


def estimate_cost(gm: GraphModule, *args: Any, backward: bool = False, partial: bool = False) -> CostReport:
    """Estimate operations, traffic and parameters of a program without running it (paper, section 6.3).

    The program runs on fake tensors, and each kernel that PyTorch would call is counted by its operator and its sizes,
    so that modules, functions, methods and exported programs count alike. Formulas are those of
    ``torch.utils.flop_counter``, with the ones that others register there, and of :mod:`fx.analysis.flop_formulas`.
    An operator without a formula is in ``unknown``, and widens ``flops`` to ``most_flops``. Bytes are those of eager
    PyTorch, where each kernel reads its operands from memory and writes its result to it.

    Args:
        gm: the program; only ``meta["tensor_meta"]`` and ``meta["type"]`` of its nodes change.
        args: its inputs, real or fake; of them only shapes, strides and dtypes count.
        backward: also count the gradients of the sum of all outputs. Without it, none are recorded.
        partial: count as far as the program can be followed; ``failure`` has what it raises then.

    Raises:
        PassError: the program takes another number of inputs, or no output requires a gradient.
        Exception: whatever an operation raises, with a note that names the node and the user's line.

    >>> import fx
    >>> report = estimate_cost(fx.symbolic_trace(torch.nn.Linear(100, 10)), torch.ones(8, 100))
    >>> report.total.flops, report.total.multiply_adds, report.parameters
    (16000, 8000, 1010)
    """
    expect_program(gm, "estimate_cost looks at a GraphModule")
    counting = _Counting(gm, backward=backward)
    failure: Exception | None = None
    try:
        counting.propagate(*args)
    except Exception as error:
        if not partial:
            raise
        failure = error
    costs = counting.costs
    held = {
        node: [one for one in tensors_held(gm, node) if isinstance(one, torch.nn.Parameter)] for node in gm.graph.nodes
    }
    unique = {id(parameter): parameter for parameters in held.values() for parameter in parameters}
    does_anything = [node for node in gm.graph.nodes if node in costs or held[node]]
    return CostReport(
        nodes=tuple(_node_cost(node, costs.get(node, []), held[node]) for node in does_anything),
        beside=sum((kernel.work for kernel, _ in costs.get(None, [])), NO_WORK),
        parameters=sum(parameter.numel() for parameter in unique.values()),
        parameter_bytes=sum(parameter.numel() * parameter.element_size() for parameter in unique.values()),
        followed=tuple(counting.done),
        failure=(counting.doubt if failure is None else failure) if partial else None,
    )


class _Counting(KernelRun):
    """A run that adds up."""

    def __init__(self, graph_module: GraphModule, *, backward: bool = False) -> None:
        super().__init__(graph_module, backward=backward)
        self.costs: dict[Node | None, list[tuple[KernelCost, bool]]] = {}
        """Calls of kernels by node, each with whether it is of the backward run."""
        self.done: list[Node] = []
        """The calls that were followed."""
        self.doubt: Exception | None = None
        """About the first product of different dtypes, which may be wrong."""

    def record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        cost = cost_of_kernel(func, args, kwargs, result)
        if cost is not None:
            self.costs.setdefault(self.node, []).append((cost, self.is_backward))

    def run_node(self, n: Node) -> Any:
        """Run one node, and look at the dtypes of its products."""
        result = super().run_node(n)
        if n.op in ("call_function", "call_method", "call_module"):
            self.done.append(n)
            multiplies = self.doubt is None and any(one.work.multiply_adds for one, _ in self.costs.get(n, ()))
            if multiplies and len(dtypes := self._dtypes(n)) > 1:
                self.doubt = TypeError(f"`%{n}` multiplies {' by '.join(sorted(map(str, dtypes)))}")
        return result

    def _dtypes(self, node: Node) -> set[torch.dtype]:
        """The dtypes of the numbers that an operation works on; booleans are masks."""
        values = pytree.tree_leaves(self.fetch_args_kwargs_from_env(node))
        if node.op == "call_module":
            values += self.submodules[str(node.target)].parameters()
        return {value.dtype for value in values if isinstance(value, torch.Tensor)} - {torch.bool}


def _node_cost(node: Node, costs: Sequence[tuple[KernelCost, bool]], held: Sequence[torch.Tensor]) -> NodeCost:
    forward = sum((kernel.work for kernel, is_backward in costs if not is_backward), NO_WORK)
    backward = sum((kernel.work for kernel, is_backward in costs if is_backward), NO_WORK)
    count = sum(parameter.numel() for parameter in {id(one): one for one in held}.values())
    return NodeCost(node, module_of(node), forward, backward, tuple(kernel for kernel, _ in costs), count)


def module_of(node: Node) -> str:
    """The path of the module that a node calls, or in whose forward it was made; empty in the root."""
    if node.op == "call_module":
        return str(node.target)
    if node.op == "get_attr":
        return str(node.target).rpartition(".")[0]
    stack: Any = (node.meta.get("nn_module_stack") or {}) if node._meta else {}
    paths = [str(entry[0]) for entry in stack.values()]
    return paths[-1] if paths else ""


def _operations(work: Work) -> str:
    """Operations, as a range where they are not known."""
    ends = dict.fromkeys((work.flops, work.most_flops))
    return " to ".join(in_units(end, "FLOP") for end in ends)


def _row(one: NodeCost, total: Work) -> list[str]:
    work, share = one.total, one.total.flops / total.flops if total.flops else 0.0
    numbers = [in_units(work.flops), f"{share:.1%}", in_bytes(work.moved), f"{work.intensity:.3g}"]
    return [one.node.name, *numbers, in_units(one.parameters)]
