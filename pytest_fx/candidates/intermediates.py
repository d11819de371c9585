"""The first intermediate value in which a wrong candidate differs from its reference, where they have parts in common.

Parts are submodules of the same path, or nodes of the same name if the candidate is a captured program. The reference
is captured then, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx as torch_fx
from torch import nn

import fx
from fx.interpreter import positional
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.structure import leaves, map_tensors

_FACTOR = 8.0
"""Allowed error of an intermediate value: a multiple of the reference's own, and of the spacing of its numbers."""


def is_program(subject: Any) -> bool:
    """Return whether a subject is a captured program."""
    return isinstance(subject, fx.GraphModule | torch_fx.GraphModule)


def values_of_parts(subject: Any, arguments: Arguments, by_nodes: bool) -> dict[str, Any]:
    """Return the value of each submodule in a call, or of each node, in the order in which they are computed."""
    if not by_nodes:
        return _values_of_submodules(subject, arguments)
    return _values_of_nodes(subject if is_program(subject) else fx.symbolic_trace(subject), arguments)


def _values_of_submodules(module: nn.Module, arguments: Arguments) -> dict[str, Any]:
    values: dict[str, Any] = {}
    hooks = [
        part.register_forward_hook(lambda _part, _inputs, output, path=path: _keep(values, path, output))
        for path, part in module.named_modules()
        if path
    ]
    try:
        arguments.call(module)
    finally:
        for hook in hooks:
            hook.remove()
    return values


def _values_of_nodes(program: Any, arguments: Arguments) -> dict[str, Any]:
    values: dict[str, Any] = {}
    base: Any = fx.Interpreter if isinstance(program, fx.GraphModule) else torch_fx.Interpreter

    class Recorder(base):
        def run_node(self, n: Any) -> Any:
            value = super().run_node(n)
            if n.op.startswith("call_"):
                _keep(values, n.name, value)
            return value

    Recorder(program).run(*positional(program, arguments.args, arguments.kwargs))
    return values


def _keep(values: dict[str, Any], name: str, value: Any) -> None:
    number = 1 + sum(key.partition(" (call ")[0] == name for key in values)
    copied = map_tensors(lambda tensor: tensor.detach().clone(), value)
    values[name if number == 1 else f"{name} (call {number})"] = copied


def first_difference(expected: Mapping[str, Any], exact: Mapping[str, Any], actual: Mapping[str, Any]) -> str:
    """Describe the first value of the candidate that is further from the float64 one than rounding; empty if none is.

    Args:
        expected: the values of the reference.
        exact: the same in float64.
        actual: the values of the candidate.
    """
    for name, value in actual.items():
        if name not in expected or name not in exact:
            continue
        tensors = [
            [leaf for _, leaf in leaves(each) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
            for each in (expected[name], exact[name], value)
        ]
        for own, best, other in zip(*tensors, strict=False):
            if own.shape != other.shape:
                return f"{name}: its shape is {list(other.shape)}, not {list(own.shape)}"
            if not own.numel():
                continue
            errors = (other.double() - best.double()).abs().nan_to_num(0.0, 0.0, 0.0)
            rounding = float((own.double() - best.double()).abs().nan_to_num(0.0, 0.0, 0.0).amax())
            spacing = torch.finfo(own.dtype).eps * float(best.double().abs().nan_to_num(0.0, 0.0, 0.0).amax())
            if float(errors.amax()) > _FACTOR * (rounding + spacing):
                place = int(errors.flatten().argmax())
                numbers = (float(tensor.flatten()[place]) for tensor in (other, best))
                return "{}: {:.6g} in place of {:.6g}, at its element {}".format(name, *numbers, place)
    return ""
