"""``compile_backend``: our passes inside ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch.fx

from fx.errors import PassError
from fx.graph_module import GraphModule
from fx.interop.torch_fx import from_torch, to_torch
from fx.passes.pipeline import PassPipeline
from fx.passes.registry import Pass, pass_name

Backend: TypeAlias = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
"""What ``torch.compile`` takes as ``backend``: from a captured program and example inputs to what runs instead."""


def compile_backend(*passes: Pass | type | str) -> Backend:
    """A backend for ``torch.compile`` that runs ``passes`` on what dynamo captured, and then the generated code.

    Gradients flow as in eager, since the generated code calls the same functions.

    Args:
        passes: run in this order, each on the result of the one before; pass classes and names will do too.

    Raises:
        PassError: one of them is no pass.

    >>> import torch, fx
    >>> model = torch.compile(torch.nn.ReLU(), backend=compile_backend(fx.passes.RemoveDeadCode()))
    """

    made = [one for given in passes for one in _made(given)]

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        program = from_torch(graph_module)
        for pass_ in made:
            result = pass_(program)
            if result is not None and not isinstance(result, GraphModule):
                raise PassError(
                    f"the pass {pass_name(pass_)!r} returned no program",
                    value=f"an object of class {type(result).__name__}",
                    remedy="return the fx.GraphModule, or None where it is edited in place",
                )
            program = program if result is None else result
        # the programs inside are bodies of higher-order operators, which run them with torch.fx.Interpreter
        holds_programs = any(isinstance(module, GraphModule) for module in program.modules() if module is not program)
        return to_torch(program) if holds_programs else program

    return backend


def _made(given: Pass | type | str) -> tuple[Pass, ...]:
    """The passes that ``given`` stands for."""
    return (given,) if isinstance(given, PassPipeline) else PassPipeline([given]).passes


__all__ = ["Backend", "compile_backend"]
