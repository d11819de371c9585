"""``compile_backend``: our passes inside ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch.fx

from fx.graph_module import GraphModule
from fx.interop.known_inputs import KnownInput, KnownInputs, state_among
from fx.interop.torch_fx import from_torch, to_torch
from fx.pipelines.pipeline import PassPipeline
from fx.pipelines.registered_passes import Pass

Backend: TypeAlias = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
"""A ``backend`` of ``torch.compile``: it maps a captured program and example inputs to a callable to run instead."""

_MOST_RECOMPILATIONS = 8
"""Maximum number of runs of the passes for changed values; the next run treats no value as constant."""


def compile_backend(*passes: Pass | type | str) -> Backend:
    """Return a backend for ``torch.compile`` that runs ``passes`` on the captured program, then the generated code.

    Gradients flow as in eager, since the generated code calls the same functions.

    Dynamo passes parameters and buffers as inputs. They become attributes while the passes run, so that passes such as
    ``fuse-conv-bn`` can compute with their values. This excludes tensors that the program writes to, and tensors that
    need gradients: compile under ``torch.no_grad()``, or set ``requires_grad`` to False. If a later call passes another
    tensor, or one that was written to meanwhile, the passes run again; after eight times they no longer see values.
    Writes through ``.data`` are not noticed: call ``torch.compiler.reset()`` after them.

    Args:
        passes: passes, pass classes or names of passes, run in this order, each on the result of the one before.

    Raises:
        PassError: one of them is not a pass, or its result is not well formed or has another signature.

    >>> import torch, fx
    >>> model = torch.compile(torch.nn.ReLU(), backend=compile_backend(fx.passes.RemoveDeadCode()))
    """

    pipeline = PassPipeline(passes)

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        values = {number: example_inputs[number] for number in state_among(example_inputs)}
        program, inputs = _specialized(pipeline, graph_module, values)
        return _RespecializedProgram(pipeline, graph_module, program, inputs, list(values)) if inputs else program

    return backend


def _specialized(
    pipeline: PassPipeline, graph_module: torch.fx.GraphModule, values: Mapping[int, torch.Tensor]
) -> tuple[torch.nn.Module, list[KnownInput]]:
    """Return the program after the passes, and the inputs on whose values it may depend."""
    program = from_torch(graph_module)
    known_inputs = KnownInputs(program, values)
    revision = program.graph.revision
    result = pipeline(program)
    is_edited = result is not program or result.graph.revision != revision
    if known_inputs.known:
        known_inputs.give_back(result)
    # programs inside are bodies of higher-order operators, which run them with torch.fx.Interpreter
    holds_programs = any(isinstance(module, GraphModule) for module in result.modules() if module is not result)
    return to_torch(result) if holds_programs else result, known_inputs.known if is_edited else []


class _RespecializedProgram:
    """A compiled program that is specialized again when one of its known values changes."""

    def __init__(
        self,
        pipeline: PassPipeline,
        graph_module: torch.fx.GraphModule,
        program: torch.nn.Module,
        known_inputs: list[KnownInput],
        state: list[int],
    ) -> None:
        self._pipeline = pipeline
        self._graph_module = graph_module
        self._current = program, known_inputs  # one assignment, so that other threads see a matching pair
        self._state = state
        self._recompilations = 0

    def __call__(self, *args: Any) -> Any:
        program, known_inputs = self._current
        for known_input in known_inputs:
            if not known_input.is_still(args):
                program = self._specialize_again(args)
                break
        return program(*args)

    def _specialize_again(self, args: Sequence[Any]) -> torch.nn.Module:
        self._recompilations += 1
        numbers = self._state if self._recompilations <= _MOST_RECOMPILATIONS else ()
        values = {number: args[number] for number in numbers}
        self._current = _specialized(self._pipeline, self._graph_module, values)
        return self._current[0]
