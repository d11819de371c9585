"""The node that goes wrong: a transformed program beside the original, value by value, in one walk over both.

Nodes are matched with those of the original (:mod:`pytest_fx.failures.pairing`). The error of each value is split into
the part that its inputs cause and the part that the node adds: the node is run a second time, on the right inputs. A
node is to blame on three conditions: its value is wrong, it adds an error of its own, and wrong values carry the error
to the outputs. A value is kept only until the last node that needs it has run.
"""

from __future__ import annotations

from typing import Any

import torch

from fx import GraphModule
from pytest_fx.failures.node_error import Limit, Localization, NodeError
from pytest_fx.failures.pairing import NodePairs
from pytest_fx.failures.rounding import RoundingErrors
from pytest_fx.failures.stepwise import StepwiseProgram, buffers_kept
from pytest_fx.failures.walk import Walk
from pytest_fx.harness.evaluation import Arguments

__all__ = ["Limit", "Localization", "NodeError", "localize"]


def localize(
    original: GraphModule,
    transformed: GraphModule,
    arguments: Arguments,
    limit: Limit,
    eager: GraphModule | None = None,
    *,
    to_float64: bool = False,
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.float64, torch.float64),
) -> Localization:
    """Compare two programs node by node on one set of inputs, without changing either.

    Nodes that change state or draw random numbers are compared but not run a second time: their error counts as
    added there if their inputs are right.

    Args:
        original: the captured program before the pass, in float64 or in the dtype of ``transformed``.
        transformed: the program after it.
        arguments: the inputs, as the model takes them.
        limit: the largest error allowed, from a value and eager's own error there.
        eager: the captured program in the working dtype, for eager's own error.
        to_float64: run ``original``, which is in the working dtype, in float64. Its modules and tensors are converted
            when they are needed, and not kept.
        dtypes: the dtypes in which ``original`` and ``transformed`` compute if they have no tensors that decide.
    """
    programs = [program for program in (original, transformed, eager) if program is not None]
    devices = sorted({tensor.device.index for tensor in arguments.tensors if tensor.device.type == "cuda"})
    random_state: Any = torch.random.fork_rng(devices=devices)  # pyright: ignore[reportUnknownMemberType]

    own = next((tensor.dtype for tensor in arguments.tensors if tensor.is_floating_point()), torch.float64)

    def started(program: GraphModule) -> StepwiseProgram:
        torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
        is_original = program is original
        dtype = dtypes[0] if is_original else dtypes[1] if program is transformed else own
        return StepwiseProgram(program, arguments, dtype, to_float64=to_float64 and is_original, draws_in=own)

    match = NodePairs(original, transformed)
    with torch.no_grad(), random_state:
        if match.unsure:
            with buffers_kept(programs):
                fingerprints = started(original).fingerprints()
            with buffers_kept(programs):
                match.add_by_value(fingerprints, started(transformed).fingerprints())
        with buffers_kept(programs):
            before, after = started(original), started(transformed)
            is_accumulated = before.dtype != after.dtype  # with one dtype, no limit depends on rounding
            own_program = None if eager is None else StepwiseProgram(eager, arguments, own)
            rounding = (
                None if own_program is None else RoundingErrors(own_program, match, is_accumulated=is_accumulated)
            )
            torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
            return Localization(Walk(before, after, match, limit, rounding).errors())
