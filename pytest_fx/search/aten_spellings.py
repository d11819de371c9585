"""The public operations that become an operator of ATen in an exported program, found by running random programs."""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Collection
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._decomp import core_aten_decompositions
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fx import GraphModule, Interpreter, Node
from fx.errors import FxError
from fx.interpreter import positional
from pytest_fx.generation.bias import known_choices
from pytest_fx.generation.spelled_targets import Target
from pytest_fx.generation.strategy import BIASED, STEPS, Bias, program_of
from pytest_fx.harness.capture import capture
from pytest_fx.harness.evaluation import Arguments, same_random_numbers

MOST = 4
"""The most operations for an operator, beside those of its name; those that become few other operators come first."""
_TOGETHER = 6
"""The operations that are frequent in one program."""
_HOMES = (torch, F, torch.linalg, torch.special, torch.fft)


def spellings_of(operator: OpOverload | OpOverloadPacket) -> tuple[Target, ...]:
    """Return the operations that become an operator of ATen, with those of its own name first.

    >>> spellings_of(torch.ops.aten.addmm.default)[0] is torch.addmm
    True
    >>> torch.nn.functional.linear in spellings_of(torch.ops.aten.addmm)
    True
    """
    packet = packet_of(operator)
    name = packet.__name__
    named = [getattr(home, name) for home in _HOMES if name[0] != "_" and callable(getattr(home, name, None))]
    methods = [name] if name[0] != "_" and callable(getattr(torch.Tensor, name, None)) else []
    observed = sorted(_observed()[packet._qualified_op_name].items(), key=lambda entry: entry[1])
    return tuple(dict.fromkeys([*named, *methods, *(target for target, _ in observed[:MOST])]))


def may_call(module: nn.Module, call: Arguments, operators: Collection[OpOverload | OpOverloadPacket]) -> bool:
    """Return whether an exported program of ``module`` may have one of the operators, at any level.

    The module is called, and its functions, their operators and the decompositions of these are recorded. If one of
    the operators is in no program of ours, it may be there.
    """
    called = CalledNames()
    try:
        with called, torch.no_grad(), same_random_numbers():
            module(*call.args, **call.kwargs)
    except Exception:  # of any kind: models of users are among them
        return True
    return called.may_include(operators)


class CalledNames:
    """Records in a ``with`` block the names of functions, of their operators and of the decompositions of these."""

    def __init__(self) -> None:
        self._modes = _OperatorNames(), _FunctionNames()

    def __enter__(self) -> CalledNames:
        """Start recording."""
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop recording."""
        for mode in reversed(self._modes):
            mode.__exit__(*error)

    def may_include(self, operators: Collection[OpOverload | OpOverloadPacket]) -> bool:
        """Return whether an exported program of what was run may have one of the operators, at any level.

        If one of them is in no program of ours, it may be there.
        """
        names = {packet_of(operator)._qualified_op_name for operator in operators}
        if not names <= _observed().keys() | {f"aten::{name}" for home in _HOMES for name in vars(home)}:
            return True
        return not all(names.isdisjoint(mode.names) for mode in self._modes)


def packet_of(operator: OpOverload | OpOverloadPacket) -> OpOverloadPacket:
    """Return the packet of overloads that an operator belongs to."""
    return operator.overloadpacket if isinstance(operator, OpOverload) else operator


@functools.cache
def _observed() -> defaultdict[str, dict[Target, int]]:
    """Map each operator to the operations that call it, each with its number of operators."""
    becoming = defaultdict[str, dict[Target, int]](dict)
    choices = known_choices()
    for start in range(0, len(choices), _TOGETHER):
        wanted = tuple(((choice,),) for choice in choices[start : start + _TOGETHER])
        program = program_of(Random(start), Bias(wanted, BIASED), STEPS)
        try:
            captured = capture(program.build(), program.inputs)
            recorder = _OperatorsByNode(captured)
            recorder.run(*positional(captured, program.inputs.args, program.inputs.kwargs))
        except FxError:
            continue
        for target, names in recorder.operators.items():
            for name in names:
                becoming[name][target] = min(len(names), becoming[name].get(target, len(names)))
    return becoming


class _OperatorsByNode(Interpreter):
    """Records the names of the operators that each operation of a program calls."""

    def __init__(self, program: GraphModule) -> None:
        super().__init__(program)
        self.operators = dict[Target, set[str]]()

    def run_node(self, n: Node) -> Any:
        """Run a node, and record its operators if it calls something."""
        mode = _OperatorNames()
        with mode:
            result = super().run_node(n)
        if n.op.startswith("call_"):
            target = type(self.module.get_submodule(str(n.target))) if n.op == "call_module" else n.target
            self.operators.setdefault(target, mode.names)
        return result


class _OperatorNames(TorchDispatchMode):
    """Records the names of all operators, and of those that they are decomposed into."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket._qualified_op_name)
        result = func(*args, **(kwargs or {}))
        if (decomposition := _decompositions().get(func)) is not None:
            with contextlib.suppress(Exception), self:  # some of them take fake tensors only
                decomposition(*args, **(kwargs or {}))
        return result


class _FunctionNames(TorchFunctionMode):
    """Records the names of functions of torch, some of which are operators in an exported program."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(f"aten::{getattr(func, '__name__', '')}")
        return func(*args, **(kwargs or {}))


@functools.cache
def _decompositions() -> dict[Any, Any]:
    return dict(core_aten_decompositions().items())
