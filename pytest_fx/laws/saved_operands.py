"""Values that operations of a pass save for the backward pass, while the program writes to them in place."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload

from fx import GraphModule, Interpreter, Node
from fx.operators.effects import effect_of
from fx.operators.sharing import find_sharing, module_sharing
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.run import Runner, by
from pytest_fx.harness.structure import map_tensors
from pytest_fx.laws.differentiation import Gradients, gradients_by


def gradients_beside_writes(
    pass_run: PassRun, runner: Runner, arguments: Arguments, dtype: torch.dtype
) -> Gradients | None:
    """Return the gradients of a program whose in-place writes are kept from saved tensors; None if that fails, too.

    Operations of the pass may save a value for the backward pass that the original program did not save. If the program
    writes to this value later, as a decomposed program does to inputs at its end, the operations get copies.
    """
    program, before = runner.program, pass_run.with_nothing_changed().graph_program
    if not isinstance(program, (GraphModule, torch.fx.GraphModule)) or before is None:
        return None
    if len(_writers(program)) > len(_writers(before)):
        return None
    calls = set(map(_call, before.graph.nodes))
    added = (node for node in program.graph.nodes if _call(node) not in calls)
    keeping = {node for node in added if _computes(program, node)} - _writers(program)
    if isinstance(program, GraphModule):
        call = by(_KeepingCopies(program, keeping))
    else:
        interpreter = _KeepingCopiesOfTorch(program, keeping)

        def call(*args: Any, **kwargs: Any) -> Any:
            return interpreter.run(*args, *kwargs.values())

    try:
        computed = gradients_by(call, arguments, dtype, program)
    finally:
        runner.restore()
    return None if isinstance(computed, Exception) else computed


class _KeepingCopies(Interpreter):
    """Interpreter that gives some operations copies of the values that they save for the backward pass."""

    def __init__(self, program: Any, keeping: set[Any]) -> None:
        super().__init__(program)
        self._keeping = keeping

    def fetch_args_kwargs_from_env(self, n: Any) -> Any:
        """Return the arguments of ``n``, or copies if ``n`` saves them."""
        arguments = super().fetch_args_kwargs_from_env(n)
        return map_tensors(torch.Tensor.clone, arguments) if n in self._keeping else arguments

    def run_node(self, n: Any) -> Any:
        """Run ``n``, and return its value, or a copy if ``n`` saves it."""
        value = super().run_node(n)
        return map_tensors(torch.Tensor.clone, value) if n in self._keeping else value


class _KeepingCopiesOfTorch(torch.fx.Interpreter):
    """The same for a program of torch."""

    def __init__(self, program: torch.fx.GraphModule, keeping: set[Any]) -> None:
        super().__init__(program)
        self._keeping = keeping

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run ``n``; if it saves values, it gets and returns copies."""
        if n not in self._keeping:
            return super().run_node(n)
        args, kwargs = map_tensors(torch.Tensor.clone, self.fetch_args_kwargs_from_env(n))
        return map_tensors(torch.Tensor.clone, n.target(*args, **kwargs))  # pyright: ignore[reportCallIssue]


def _call(node: Node | torch.fx.Node) -> tuple[Any, ...]:
    return node.name, node.target, str(node.args), str(node.kwargs)


def _computes(program: Any, node: Any) -> bool:
    """Return whether a node computes new tensors, and returns no view of its operands."""
    if isinstance(node, torch.fx.Node):
        return isinstance(node.target, OpOverload) and not any(
            each.alias_info is not None for each in node.target._schema.returns
        )
    if node.op == "call_module":
        sharing = module_sharing(program.get_submodule(str(node.target)))
    else:
        sharing = find_sharing(node.target) if node.op in ("call_function", "call_method") else None
    if sharing is None or "out" in node.kwargs:
        return False
    if sharing.places is None:
        return sharing.kind == "arithmetic"
    return all(name == "out" for _, name in sharing.places)


def _writers(program: GraphModule | torch.fx.GraphModule) -> set[Any]:
    """Return the nodes that write to their first argument."""
    return {node for node in program.graph.nodes if _writes(node)}


def _writes(node: Node | torch.fx.Node) -> bool:
    if isinstance(node, torch.fx.Node):
        return isinstance(node.target, OpOverload) and node.target._schema.is_mutable
    effect = effect_of(node)
    return effect is not None and effect.written == 0
