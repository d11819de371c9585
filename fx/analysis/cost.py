"""Cost of a program: operations, bytes and parameters, per node, per module and in total (paper, section 6.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fx.analysis.kernel_calls import KernelRun, tensors_held
from fx.analysis.kernel_costs import NO_WORK, KernelCost, Work, cost_of_kernel
from fx.argument_types import checked
from fx.errors import PassError
from fx.graph_module import GraphModule
from fx.naming.tables import in_bytes, in_units, table_lines
from fx.node import Node

_SHOWN = 10


@dataclass(frozen=True, slots=True, eq=False)
class NodeCost:
    """The cost of one node."""

    node: Node
    """The node."""
    module: str
    """The path of the module that the node calls or belongs to; empty for the root."""
    forward: Work
    """The work of its forward run."""
    backward: Work
    """The work of its gradient; zero if no backward run was requested."""
    kernels: tuple[KernelCost, ...]
    """The kernel calls, forward before backward."""
    parameters: int
    """Elements of the parameters that its module holds or that it fetches."""

    @property
    def total(self) -> Work:
        """The sum of the forward and the backward work."""
        return self.forward + self.backward


@dataclass(frozen=True, slots=True, eq=False)
class CostReport:
    """The cost of a program. A multiply-add counts as two operations; bytes are summed over all kernels."""

    nodes: tuple[NodeCost, ...]
    """The nodes that call kernels or hold parameters, in order."""
    beside: Work
    """Work of the backward run that belongs to no node, such as creating the first gradient."""
    parameters: int
    """Elements of the parameters that the program uses; each parameter counts once."""
    parameter_bytes: int
    """Bytes of those parameters."""
    followed: tuple[Node, ...] = ()
    """The calls that were run on fake tensors: all, or with ``partial`` those before the first exception."""
    failure: Exception | None = None
    """With ``partial``, the exception raised. If none was, a ``TypeError`` about the first product of different dtypes:
    fake tensors accept any dtypes, real ones may not."""

    def multiply_adds_of(self) -> dict[Node, int]:
        """Return the multiply-adds of each followed call in the forward run."""
        multiply_adds = {cost.node: cost.forward.multiply_adds for cost in self.nodes}
        return {node: multiply_adds.get(node, 0) for node in self.followed}

    @property
    def forward(self) -> Work:
        """The work of the forward run."""
        return sum((cost.forward for cost in self.nodes), NO_WORK)

    @property
    def backward(self) -> Work:
        """The work of the backward run."""
        return sum((cost.backward for cost in self.nodes), self.beside)

    @property
    def total(self) -> Work:
        """The work of the forward and the backward run."""
        return self.forward + self.backward

    @property
    def unknown(self) -> dict[str, int]:
        """The operators without a formula, each with its number of calls."""
        return dict(Counter(kernel.name for node in self.nodes for kernel in node.kernels if not kernel.is_known))

    def by_module(self, depth: int | None = None) -> dict[str, Work]:
        """Return the work of each module with its submodules, by path; the empty path is the whole program.

        Args:
            depth: the number of names of a path to group by; None for all.
        """
        totals: dict[str, Work] = {"": self.beside}
        for cost in self.nodes:
            names = cost.module.split(".")[:depth] if cost.module else []
            for count in range(len(names) + 1):
                path = ".".join(names[:count])
                totals[path] = totals.get(path, NO_WORK) + cost.total
        return totals

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
        greatest = sorted(self.nodes, key=lambda cost: -cost.total.flops)[:_SHOWN]
        lines += ["", *table_lines(["node", "FLOP", "share", "moved", "FLOP a byte", "parameters"],
                                   [_row(cost, total) for cost in greatest])]  # fmt: skip
        if hidden := len(self.nodes) - len(greatest):
            lines.append(f"and {hidden} more")
        for name, count in self.unknown.items():
            lines.append(f"unknown: {name}, {count} time{'s' if count != 1 else ''}; its range is in the sum")
        if self.unknown:
            lines.append("  try torch.utils.flop_counter.register_flop_formula with its operator")
        return "\n".join(lines)


@checked(PassError)
def estimate_cost(gm: GraphModule, *args: Any, backward: bool = False, partial: bool = False) -> CostReport:
    """Estimate operations, traffic and parameters of a program without running it (paper, section 6.3).

    The program runs on fake tensors. Each kernel that PyTorch would call is counted by its operator and sizes, so
    modules, functions, methods and exported programs count alike. The formulas are those registered with
    ``torch.utils.flop_counter``, by anyone, and those of :mod:`fx.analysis.flop_formulas`. An operator without a
    formula is in ``unknown``, and widens the range from ``flops`` to ``most_flops``. Bytes are those of eager PyTorch,
    where each kernel reads its operands from memory and writes its result to it.

    Args:
        gm: the program; only ``meta["tensor_meta"]`` and ``meta["type"]`` of its nodes change.
        args: its inputs, real or fake; only their shapes, strides and dtypes matter.
        backward: also count the gradients of the sum of all outputs. Without it, gradients are off.
        partial: if the program raises, count the calls before, and return the exception as ``failure``.

    Raises:
        PassError: the program takes another number of inputs, or no output requires a gradient.
        Exception: whatever an operation raises, with a note that names the node and the user's line.

    >>> import fx
    >>> report = estimate_cost(fx.symbolic_trace(torch.nn.Linear(100, 10)), torch.ones(8, 100))
    >>> report.total.flops, report.total.multiply_adds, report.parameters
    (16000, 8000, 1010)
    """
    counting = _Counting(gm, backward=backward)
    failure: Exception | None = None
    try:
        counting.propagate(*args)
    except Exception as error:
        if not partial:
            raise
        failure = error
    costs = counting.costs
    parameters_of = {
        node: [tensor for tensor in tensors_held(gm, node) if isinstance(tensor, torch.nn.Parameter)]
        for node in gm.graph.nodes
    }
    unique = {id(parameter): parameter for parameters in parameters_of.values() for parameter in parameters}
    does_anything = [node for node in gm.graph.nodes if node in costs or parameters_of[node]]
    return CostReport(
        nodes=tuple(_node_cost(node, costs.get(node, []), parameters_of[node]) for node in does_anything),
        beside=sum((kernel.work for kernel, _ in costs.get(None, [])), NO_WORK),
        parameters=sum(parameter.numel() for parameter in unique.values()),
        parameter_bytes=sum(parameter.numel() * parameter.element_size() for parameter in unique.values()),
        followed=tuple(counting.done),
        failure=(counting.doubt if failure is None else failure) if partial else None,
    )


class _Counting(KernelRun):
    """A run that collects the cost of each kernel call."""

    def __init__(self, graph_module: GraphModule, *, backward: bool = False) -> None:
        super().__init__(graph_module, backward=backward)
        self.costs: dict[Node | None, list[tuple[KernelCost, bool]]] = {}
        """Kernel calls by node, each with a flag that is True for the backward run."""
        self.done: list[Node] = []
        """The nodes of calls that have run, in order."""
        self.doubt: Exception | None = None
        """An error about the first product of different dtypes, which real tensors may not allow."""

    def record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        cost = cost_of_kernel(func, args, kwargs, result)
        if cost is not None:
            self.costs.setdefault(self.node, []).append((cost, self.is_backward))

    def run_node(self, n: Node) -> Any:
        """Run one node, and check the dtypes of its products."""
        result = super().run_node(n)
        if n.op in ("call_function", "call_method", "call_module"):
            self.done.append(n)
            multiplies = self.doubt is None and any(cost.work.multiply_adds for cost, _ in self.costs.get(n, ()))
            if multiplies and len(dtypes := self._dtypes(n)) > 1:
                self.doubt = TypeError(f"`%{n}` multiplies {' by '.join(sorted(map(str, dtypes)))}")
        return result

    def _dtypes(self, node: Node) -> set[torch.dtype]:
        """Return the dtypes of an operation's operands, without booleans, which are masks."""
        values = pytree.tree_leaves(self.fetch_args_kwargs_from_env(node))
        if node.op == "call_module":
            values += self.submodules[str(node.target)].parameters()
        return {value.dtype for value in values if isinstance(value, torch.Tensor)} - {torch.bool}


def _node_cost(node: Node, costs: Sequence[tuple[KernelCost, bool]], parameters: Sequence[torch.Tensor]) -> NodeCost:
    forward = sum((kernel.work for kernel, is_backward in costs if not is_backward), NO_WORK)
    backward = sum((kernel.work for kernel, is_backward in costs if is_backward), NO_WORK)
    count = sum(parameter.numel() for parameter in {id(tensor): tensor for tensor in parameters}.values())
    return NodeCost(node, module_of(node), forward, backward, tuple(kernel for kernel, _ in costs), count)


def module_of(node: Node) -> str:
    """Return the path of the module that a node calls or whose ``forward`` it was captured in; empty for the root."""
    if node.op == "call_module":
        return str(node.target)
    if node.op == "get_attr":
        return str(node.target).rpartition(".")[0]
    stack: Any = (node.meta.get("nn_module_stack") or {}) if node._meta else {}
    paths = [str(entry[0]) for entry in stack.values()]
    return paths[-1] if paths else ""


def _operations(work: Work) -> str:
    """Return the operations as text, as a range if some are unknown."""
    ends = dict.fromkeys((work.flops, work.most_flops))
    return " to ".join(in_units(end, "FLOP") for end in ends)


def _row(cost: NodeCost, total: Work) -> list[str]:
    work, share = cost.total, cost.total.flops / total.flops if total.flops else 0.0
    numbers = [in_units(work.flops), f"{share:.1%}", in_bytes(work.moved), f"{work.intensity:.3g}"]
    return [cost.node.name, *numbers, in_units(cost.parameters)]
