"""``compile_backend``: our passes inside ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch.fx

from fx.graph_module import GraphModule
from fx.interop.torch_fx import from_torch, to_torch
from fx.passes.pipeline import PassPipeline
from fx.passes.registered_passes import Pass

Backend: TypeAlias = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
"""What ``torch.compile`` takes as ``backend``: from a captured program and example inputs to what runs instead."""


def compile_backend(*passes: Pass | type | str) -> Backend:
    """A backend for ``torch.compile`` that runs ``passes`` on what dynamo captured, and then the generated code.

    Gradients flow as in eager, since the generated code calls the same functions.

    Args:
        passes: run in this order, each on the result of the one before; pass classes and names will do too.

    Raises:
        PassError: one of them is no pass, or leaves a program that is not well formed or is called otherwise.

    >>> import torch, fx
    >>> model = torch.compile(torch.nn.ReLU(), backend=compile_backend(fx.passes.RemoveDeadCode()))
    """

    pipeline = PassPipeline(passes)

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        program = pipeline(from_torch(graph_module))
        # the programs inside are bodies of higher-order operators, which run them with torch.fx.Interpreter
        holds_programs = any(isinstance(module, GraphModule) for module in program.modules() if module is not program)
        return to_torch(program) if holds_programs else program

    return backend
