"""A program on fake tensors, forward and backward, with each kernel that PyTorch would call reported to an analysis."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fx.errors import AnalysisError, PassError
from fx.graph_module import GraphModule
from fx.higher_order import is_decided_by_values
from fx.modules.attributes import fetch_attribute
from fx.naming.printing import describe
from fx.node import Node
from fx.passes.shape_prop import ShapeProp

KernelCallback: TypeAlias = Callable[[Any, Sequence[Any], Mapping[str, Any], Any], None]
"""Called after each kernel with the operator, its arguments, its keyword arguments and its result."""

_autograd: Any = torch.autograd
_ASKS_DEVICE = torch.ops.prim.device.default


def tensors_held(program: GraphModule, node: Node) -> list[torch.Tensor]:
    """The parameters and buffers that a node calls a module with, or the tensor that it fetches."""
    if node.op == "call_module":
        module = program.get_submodule(str(node.target))
        return [*module.parameters(), *module.buffers()]
    value = fetch_attribute(program, str(node.target)) if node.op == "get_attr" else None
    return [value] if isinstance(value, torch.Tensor) else []


class KernelRun(ShapeProp):
    """Shape propagation on fake tensors that reports each call of a kernel, whatever the program's way of spelling it.

    A module, a function, a method and an operator of an exported program all end in the same kernels, which are known
    by their operators (``aten.addmm.default``). Nothing is computed, no state changes; ``meta["tensor_meta"]`` is
    written as by :class:`~fx.passes.shape_prop.ShapeProp`.
    """

    def __init__(self, gm: GraphModule, callback: KernelCallback, *, backward: bool = False) -> None:
        """A run of one program.

        Args:
            gm: the program.
            callback: called after each kernel; ``node`` and ``is_backward`` say where the run is then.
            backward: also run the gradients of the sum of all floating-point outputs.
        """
        super().__init__(gm, fake=True)
        self.node: Node | None = None
        """The node that runs, or whose gradient does; None for what belongs to none, as the sum of the outputs."""
        self.is_backward = False
        """Whether gradients are computed."""
        self.is_inside = False
        """Whether a node runs; not while values are freed between nodes."""
        self.does_backward = backward
        self._kernels = _Kernels(callback)
        self._started: list[int] = []
        self._nodes: list[Node] = []

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run forward, and backward where that was asked for; return the outputs."""
        self._started, self._nodes = [], []
        self.is_backward, self.node = False, None
        with torch.set_grad_enabled(self.does_backward), self._kernels:
            result = super().run(*args, **kwargs)
            self.env = {}
            self.node = None
            if self.does_backward:
                self._run_backward(result)
        return result

    def run_node(self, n: Node) -> Any:
        """Run one node, and remember what autograd recorded for it."""
        if is_decided_by_values(n.target):
            raise AnalysisError(
                f"which kernels {n.target.__name__} calls is not known without a run",
                where=n.source,
                value=describe(n),
                why="it calls each of its parts once, often or not at all, as values and sizes decide",
                remedy="ask about its parts, which are programs of their own",
            )
        self.node, self.is_inside = n, True
        if self.does_backward:
            self._started.append(_autograd._get_sequence_nr())
            self._nodes.append(n)
        try:
            return super().run_node(n)
        finally:
            self.is_inside = False

    def fetch_attr(self, target: str) -> Any:
        """Return the attribute without its elements; the kernels that make it are none of the program's."""
        with self._kernels.silence():
            return super().fetch_attr(target)

    def _run_backward(self, result: Any) -> None:
        outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if not outputs:
            raise PassError(
                "no output of the program depends on anything that requires a gradient",
                remedy="leave out backward=True, or let parameters or an input require gradients",
            )
        self.is_backward = True
        self._kernels.before = self._find_forward_node
        try:
            torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
        finally:
            self._kernels.before = None
            self.is_backward, self.node = False, None

    def _find_forward_node(self) -> None:
        """Look up whose gradient is computed: autograd numbers its own nodes in the order of the forward run."""
        current: Any = torch._C._current_autograd_node()
        if current is None:
            return
        number = current._sequence_nr()
        if number < 2**63:  # the accumulation of a gradient has no number, and belongs to what made the gradient
            place = bisect.bisect_right(self._started, number) - 1
            self.node = self._nodes[place] if place >= 0 else None


class KernelMode(TorchDispatchMode):
    """A mode that reports each call of a kernel, those in the parts of ``torch.cond``, maps and loops included."""

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not isinstance(func, torch._ops.HigherOrderOperator):
            return self.call(func, args, kwargs or {})
        given: Any = pytree.tree_map(self._watched, (tuple(args), dict(kwargs or {})))
        return func(*given[0], **given[1])

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what the kernel that is called returns."""
        raise NotImplementedError

    def _watched(self, value: Any) -> Any:
        """Return a part of a program so that it is called in the mode too, or another argument as it is."""
        if not callable(value) or isinstance(value, (type, torch.Tensor)):
            return value

        def part(*args: Any, **kwargs: Any) -> Any:
            with self:
                return value(*args, **kwargs)

        return part


class _Kernels(KernelMode):
    """Reports calls of kernels."""

    def __init__(self, callback: KernelCallback) -> None:
        super().__init__()
        self.callback = callback
        self.before: Callable[[], None] | None = None
        self._unreported = 0

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if func is _ASKS_DEVICE or self._unreported:
            return result
        if self.before is not None:
            self.before()
        self.callback(func, args, kwargs, result)
        return result

    @contextmanager
    def silence(self) -> Generator[None, None, None]:
        """Report nothing inside a ``with``."""
        self._unreported += 1
        try:
            yield
        finally:
            self._unreported -= 1
