"""``split_into_stages``: stages of a program for ``torch.distributed.pipelining``, balanced by cost and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from fx.analysis.cost import NodeCost, estimate_cost
from fx.analysis.memory import activation_memory
from fx.arguments import expect, expect_inputs
from fx.code.pytree_codegen import PyTreeCodeGen
from fx.errors import PassError, note_lines
from fx.graph import Graph
from fx.graph_module import GraphModule, expect_program
from fx.interop.stage_cuts import Division, StageCuts
from fx.naming.tables import in_bytes
from fx.node import Node
from fx.passes.regions import _blank_like, _copy, _copy_notes, _take_constants

_SLACK = 1.05
"""What is best is given up to this factor where something else gains by it."""
_ROUNDING = 1e-9
"""What sums may be off by, in parts of the sum of all."""
_FLOPS_A_BYTE = 10
"""Operations that a processor does while it moves one byte, on a processor of about 2020."""


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A part of a program that runs in a process of its own."""

    module: GraphModule
    """The part: it takes what the stage before it returns, and shares parameters and modules with the program."""
    number: int
    """Its place among the stages."""
    operations: tuple[Node, ...]
    """The nodes of the program that it runs."""
    cost: float
    """What they cost: seconds where those were given, otherwise floating-point operations, or as many as their traffic
    takes the time of."""
    state: int
    """Bytes of the parameters and buffers that it uses."""
    activations: int
    """Bytes of the values that it makes in one call; with a backward run all of them may be kept until then."""
    sent: int
    """Bytes that it sends to the next stage in one call; 0 for the last one."""


def split_into_stages(
    gm: GraphModule,
    n: int,
    example_inputs: Sequence[Any],
    *,
    seconds: Mapping[Node, float] | None = None,
    memory: int | None = None,
    backward: bool = False,
) -> list[Stage]:
    """Divide a program into ``n`` stages that cost about the same, for ``torch.distributed.pipelining``.

    Stages are stretches of the program in its order. Each module takes what the one before it returns: ``stages[k]``
    is given to ``PipelineStage(stage.module, stage.number, n, device)`` in the process that runs it. What a later
    stage needs is handed on by those between. Attributes that are not trained, and numbers that follow from sizes, are
    made in each stage; a parameter that several stages fetch stays in the first one, which sends it.

    Of all divisions those are chosen whose costliest stage costs least, up to a twentieth more; of these the ones
    whose largest stage takes least memory, as closely; of these the ones whose cheapest stage costs most, as closely;
    of these the one that sends least.

    The program returns a tensor or a tuple of tensors. There is no cut between operations that share the parameters
    of a module, write to memory that would be sent, or set modes. Random numbers come from the generator of each
    process.

    Args:
        gm: the program, which shares its parameters with the stages; only ``meta["tensor_meta"]`` and ``meta["type"]``
            of its nodes change.
        n: how many stages.
        example_inputs: a value for each input, real or fake, of the size of a microbatch.
        seconds: what operations take, as it was measured, in place of :func:`fx.analysis.cost.estimate_cost`. Those
            that are left out take nothing.
        memory: bytes that parameters, buffers and values of a call may take in each stage.
        backward: estimate gradients as well.

    Raises:
        PassError: there are less operations or places to cut than asked for, a stage would not fit into ``memory``,
            sizes depend on elements, or an argument is something else. The message says why the places are few.
        Exception: whatever an operation raises, with a note that names the node and the user's line.

    >>> import torch, fx
    >>> program = fx.symbolic_trace(torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4))))
    >>> stages = split_into_stages(program, 2, (torch.ones(2, 8),))
    >>> [[node.name for node in stage.operations] for stage in stages]
    [['_0', '_1'], ['_2', '_3']]
    """
    _check(gm, n, example_inputs, memory, backward)
    costs, activations = _estimate(gm, example_inputs, backward)
    if seconds is not None:
        costs = _given_seconds(gm, seconds)
    cuts = StageCuts(gm)
    _check_count(gm, cuts, n)
    made = [activations.get(node, 0) for node in cuts.steps]
    weights = [costs.get(node, 0.0) for node in cuts.steps]
    ends = [*_places(cuts, n, weights, made, memory), len(cuts.steps)]
    begins = [0, *ends[:-1]]
    stages: list[Stage] = []
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        module = _module(gm, cuts, begin, end, number)
        tensors = {id(one): one for one in (*module.parameters(), *module.buffers())}
        stages.append(
            Stage(
                module=module,
                number=number,
                operations=tuple(cuts.steps[begin:end]),
                cost=sum(weights[begin:end]),
                state=sum(one.numel() * one.element_size() for one in tensors.values()),
                activations=sum(made[begin:end]),
                sent=cuts.sent[end] if number + 1 < n else 0,
            )
        )
    return stages


def _check(gm: GraphModule, n: int, example_inputs: Sequence[Any], memory: int | None, backward: bool) -> None:
    expect_program(gm, "split_into_stages divides a GraphModule")
    expect(n, int, "split_into_stages takes a number of stages", error=PassError)
    expect_inputs(example_inputs, "split_into_stages", error=PassError)
    expect(example_inputs, (tuple, list), "split_into_stages takes a value for each input: (x,)", error=PassError)
    expect(memory, (int, NoneType), "memory of split_into_stages is a number of bytes", error=PassError)
    expect(backward, bool, "backward of split_into_stages is True or False", error=PassError)
    if n < 1:
        raise PassError(f"a program cannot be divided into {n} stages", remedy="ask for one or more")
    if isinstance(gm.graph._codegen, PyTreeCodeGen):
        raise PassError(
            "split_into_stages takes programs whose inputs are values, not containers that it would take apart",
            why="it was captured with concrete_args, and a stage is given one value after the other",
            remedy="capture it without concrete_args",
        )
    output = gm.graph.output_node()
    returned: Any = output.args[0]
    if not all(isinstance(one, Node) for one in (returned if isinstance(returned, (tuple, list)) else [returned])):
        raise PassError(
            "the last stage of a pipeline returns a tensor, or a tuple of tensors",
            where=output.source,
            value=output.format_node(),
            remedy="let the program return the tensors of it, as tuple(values.values()) of a dict",
        )


def _check_count(gm: GraphModule, cuts: StageCuts, n: int) -> None:
    if n > max(len(cuts.steps), 1):
        raise PassError(
            f"{len(cuts.steps)} operation{'s' * (len(cuts.steps) != 1)} cannot be divided into {n} stages",
            remedy="ask for less stages, or capture with no leaf modules, which gives more operations",
        )
    if n > (most := len(cuts.places()) - 1):
        raise PassError(
            f"the program can be divided into {most} stage{'s' * (most != 1)}, not into {n}",
            why="\n         ".join(cuts.reasons()),
            remedy="ask for less stages; after the pass canonicalize, shared parameters are values, which can be sent",
        )


def _estimate(gm: GraphModule, inputs: Sequence[Any], backward: bool) -> tuple[dict[Node, float], dict[Node, int]]:
    """Return what each node costs, and the bytes that it makes."""
    try:
        costs = estimate_cost(gm, *inputs, backward=backward)
        made = activation_memory(gm, *inputs)
    except (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode) as error:
        raise PassError(
            "split_into_stages cannot follow the program: sizes, or its course, depend on elements of tensors",
            why="\n         ".join([f"{type(error).__name__}: {error}", *note_lines(error)]),
            remedy="pipelines send tensors of fixed sizes: use torch.where in place of x[mask] and x.item()",
        ) from error
    activations: dict[Node, int] = {}
    for one in made.storages:
        if one.node is not None and one.nodes:
            activations[one.node] = activations.get(one.node, 0) + one.size
    return {one.node: _cost(one) for one in costs.nodes}, activations


def _cost(one: NodeCost) -> float:
    return float(sum(max(kernel.work.flops, _FLOPS_A_BYTE * kernel.work.moved) for kernel in one.kernels))


def _given_seconds(gm: GraphModule, seconds: Mapping[Node, float]) -> dict[Node, float]:
    expect(seconds, Mapping, "seconds of split_into_stages maps nodes to numbers", error=PassError)
    for node, value in seconds.items():
        if not isinstance(node, Node) or node.graph is not gm.graph:
            raise PassError(f"seconds has {node!r}, which is not a node of the program", remedy="measure this program")
        if not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            raise PassError(f"`%{node}` cannot take {value!r} seconds", where=node.source)
    return {node: float(value) for node, value in seconds.items()}


def _places(cuts: StageCuts, n: int, weights: Sequence[float], made: Sequence[int], memory: int | None) -> list[int]:
    """The steps before which the program is cut."""
    division = Division(cuts.places(), n)
    held = [float(one + other) for one, other in zip(made, cuts.state_bytes(), strict=True)]
    if memory is not None:
        if (least := division.least_largest(held)) is not None and least > memory:
            raise PassError(
                f"no {n} stages of the program fit into {in_bytes(memory)} each",
                why=f"the largest one takes {in_bytes(int(least))} or more of parameters, buffers and values of a call",
                remedy="ask for more stages, or smaller microbatches",
            )
        division.limit(held, float(memory))
    for measure in (weights, held, [-one for one in weights]):  # the last lets the cheapest stage cost most
        least = division.least_largest(measure)
        assert least is not None  # there are places enough, and what was found first keeps to its limit
        division.limit(measure, max(least * _SLACK, least / _SLACK) + _ROUNDING * abs(sum(measure)))
    found = division.least_sum([float(one) for one in cuts.sent])
    assert found is not None
    return found


def _module(gm: GraphModule, cuts: StageCuts, begin: int, end: int, number: int) -> GraphModule:
    """The program from one cut to the next."""
    graph = _blank_like(gm.graph)
    values: dict[Node, Node] = {}
    if begin == 0:
        for node in gm.graph.find_nodes(op="placeholder"):
            _copy(graph, node, values, True)
    else:
        for node in cuts.crossing(begin):
            values[node] = graph.placeholder(node.name, node.type)
            _copy_notes(node, values[node])
    for node in cuts.steps[begin:end]:
        _copy_with_needs(graph, cuts, node, values)
    if end == len(cuts.steps):
        _copy_with_needs(graph, cuts, gm.graph.output_node(), values)
    else:
        results = tuple(values[node] for node in cuts.crossing(end))
        graph.output(results if len(results) != 1 else results[0])
    _take_constants(gm.graph, graph)
    return GraphModule.of_capture(gm, graph, f"Stage{number}")


def _copy_with_needs(graph: Graph, cuts: StageCuts, node: Node, values: dict[Node, Node]) -> None:
    """Copy ``node``, and before it what each stage makes itself."""
    for needed in cuts.made_for(node):
        first = cuts.sent_on.get(needed, needed)
        if first not in values:
            _copy(graph, first, values, True)
        values[needed] = values[first]
    _copy(graph, node, values, True)
