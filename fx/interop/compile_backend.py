"""``compile_backend``: our passes inside ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch.fx

from fx.graph_module import GraphModule
from fx.interop.known_inputs import KnownInput, KnownInputs, state_among
from fx.interop.torch_fx import from_torch, to_torch
from fx.passes.pipeline import PassPipeline
from fx.passes.registered_passes import Pass

Backend: TypeAlias = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
"""What ``torch.compile`` takes as ``backend``: from a captured program and example inputs to what runs instead."""

_MOST_RECOMPILATIONS = 8
"""How often passes run again because values changed; then they run once more without knowing any."""


def compile_backend(*passes: Pass | type | str) -> Backend:
    """A backend for ``torch.compile`` that runs ``passes`` on what dynamo captured, and then the generated code.

    Gradients flow as in eager, since the generated code calls the same functions.

    Parameters and buffers, which Dynamo passes as inputs, are attributes while the passes run, so that ``fuse-conv-bn``
    and others can work with their values: where no gradients are asked for (compile under ``torch.no_grad()``, or set
    ``requires_grad`` to False) and the program does not write to them. If one of them is another tensor in a later
    call, or was written to meanwhile, the passes run again; after eight times they leave values alone. Writes through
    ``.data`` are not noticed: call ``torch.compiler.reset()`` after them.

    Args:
        passes: run in this order, each on the result of the one before; pass classes and names will do too.

    Raises:
        PassError: one of them is not a pass, or leaves a program that is not well formed or is called otherwise.

    >>> import torch, fx
    >>> model = torch.compile(torch.nn.ReLU(), backend=compile_backend(fx.passes.RemoveDeadCode()))
    """

    pipeline = PassPipeline(passes)

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        values = {number: example_inputs[number] for number in state_among(example_inputs)}
        program, known = _specialized(pipeline, graph_module, values)
        return _RespecializedProgram(pipeline, graph_module, program, known, list(values)) if known else program

    return backend


def _specialized(
    pipeline: PassPipeline, graph_module: torch.fx.GraphModule, values: Mapping[int, torch.Tensor]
) -> tuple[torch.nn.Module, list[KnownInput]]:
    """Return what the passes make of a program, and the inputs on whose values that may depend."""
    program = from_torch(graph_module)
    inputs = KnownInputs(program, values)
    revision = program.graph.revision
    result = pipeline(program)
    is_edited = result is not program or result.graph.revision != revision
    if inputs.known:
        inputs.give_back(result)
    # the programs inside are bodies of higher-order operators, which run them with torch.fx.Interpreter
    holds_programs = any(isinstance(module, GraphModule) for module in result.modules() if module is not result)
    return to_torch(result) if holds_programs else result, inputs.known if is_edited else []


class _RespecializedProgram:
    """Runs a program for as long as the values are the same that it was made for, and then another one."""

    def __init__(
        self,
        pipeline: PassPipeline,
        graph_module: torch.fx.GraphModule,
        program: torch.nn.Module,
        known: list[KnownInput],
        state: list[int],
    ) -> None:
        self._pipeline = pipeline
        self._graph_module = graph_module
        self._current = program, known  # together, for other threads
        self._state = state
        self._recompilations = 0

    def __call__(self, *args: Any) -> Any:
        program, known = self._current
        for each in known:
            if not each.is_still(args):
                program = self._specialize_again(args)
                break
        return program(*args)

    def _specialize_again(self, args: Sequence[Any]) -> torch.nn.Module:
        self._recompilations += 1
        known = self._state if self._recompilations <= _MOST_RECOMPILATIONS else ()
        values = {number: args[number] for number in known}
        self._current = _specialized(self._pipeline, self._graph_module, values)
        return self._current[0]
