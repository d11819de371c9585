"""``split_into_stages``: stages of a program for ``torch.distributed.pipelining``, balanced by cost and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from fx.analysis.cost import NodeCost, estimate_cost
from fx.analysis.memory import activation_memory
from fx.argument_types import Bounds, Inputs, checked
from fx.arguments import expect_shallow
from fx.code.pytree_codegen import PyTreeCodeGen
from fx.errors import PassError, note_lines
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.interop.stage_cuts import Division, StageCuts
from fx.naming.tables import in_bytes
from fx.node import Node
from fx.passes.machinery.regions import blank_like, copy_node, copy_notes, take_constants
from fx.passes.tensor_metadata import data_dependent_size_error

_SLACK = 1.05
"""Factor by which the best value of one criterion may be exceeded to improve the next criterion."""
_ROUNDING = 1e-9
"""Tolerance for rounding errors of sums, relative to the total."""
_FLOPS_A_BYTE = 10
"""Operations that a processor of about 2020 does in the time of moving one byte."""


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
    """The cost of the operations: seconds if measured times were given, else floating-point operations. A memory-bound
    kernel counts as the operations that take equally long."""
    state: int
    """Bytes of the parameters and buffers that it uses."""
    activations: int
    """Bytes of the values that it makes in one call; with a backward run all of them may be kept until then."""
    sent: int
    """Bytes that it sends to the next stage in one call; 0 for the last one."""


@checked(PassError)
def split_into_stages(
    gm: GraphModule,
    n: Annotated[int, Bounds(1)],
    example_inputs: Inputs,
    *,
    seconds: Mapping[Node, Annotated[float, Bounds(0)]] | None = None,
    memory: int | None = None,
    backward: bool = False,
) -> list[Stage]:
    """Divide a program into ``n`` stages that cost about the same, for ``torch.distributed.pipelining``.

    Stages are consecutive parts of the program. Each module takes the outputs of the one before it; pass ``stages[k]``
    to ``PipelineStage(stage.module, stage.number, n, device)`` in the process that runs it. Stages pass on values that
    later stages need. Attributes that are not trained, and numbers computed from sizes, are fetched or computed again
    in each stage. A parameter that several stages fetch stays in the first of them, which sends it.

    Four criteria choose the division, in this order: least cost of the costliest stage, least memory of the largest
    stage, highest cost of the cheapest stage, fewest bytes sent. A later criterion may worsen an earlier one by 5 %.

    The program has to return a tensor or a tuple of tensors. There is no cut between operations that share the
    parameters of a module, write to memory that would be sent, or set modes. Random numbers come from the generator of
    each process.

    Args:
        gm: the program, which shares its parameters with the stages; only ``meta["tensor_meta"]`` and ``meta["type"]``
            of its nodes change.
        n: how many stages.
        example_inputs: a value for each input, real or fake, of the size of a microbatch.
        seconds: measured times of operations, in place of :func:`fx.analysis.cost.estimate_cost`; omitted operations
            count as 0.
        memory: bytes that parameters, buffers and values of a call may take in each stage.
        backward: estimate gradients as well.

    Raises:
        PassError: there are too few operations or places to cut, a stage would not fit into ``memory``, sizes depend on
            elements, or an argument has the wrong type. The message says why places cannot be cut.
        Exception: an operation raised it; a note names the node and the user's line.

    >>> import torch, fx
    >>> program = fx.symbolic_trace(torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4))))
    >>> stages = split_into_stages(program, 2, (torch.ones(2, 8),))
    >>> [[node.name for node in stage.operations] for stage in stages]
    [['_0', '_1'], ['_2', '_3']]
    """
    _check(gm, example_inputs)
    costs, activations = _estimate(gm, example_inputs, backward)
    if seconds is not None:
        costs = _given_seconds(gm, seconds)
    cuts = StageCuts(gm)
    _check_count(gm, cuts, n)
    made_bytes = [activations.get(node, 0) for node in cuts.steps]
    weights = [costs.get(node, 0.0) for node in cuts.steps]
    ends = [*_places(cuts, n, weights, made_bytes, memory), len(cuts.steps)]
    begins = [0, *ends[:-1]]
    stages: list[Stage] = []
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        module = _module(gm, cuts, begin, end, number)
        tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
        stages.append(
            Stage(
                module=module,
                number=number,
                operations=tuple(cuts.steps[begin:end]),
                cost=sum(weights[begin:end]),
                state=sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
                activations=sum(made_bytes[begin:end]),
                sent=cuts.sent[end] if number + 1 < n else 0,
            )
        )
    return stages


def _check(gm: GraphModule, example_inputs: Sequence[Any]) -> None:
    expect_shallow(example_inputs, PassError)
    if isinstance(gm.graph._codegen, PyTreeCodeGen):
        raise PassError(
            "split_into_stages takes programs whose inputs are values, not containers",
            why="it was captured with concrete_args, and a stage is given one value after the other",
            remedy="capture it without concrete_args",
        )
    output = gm.graph.output_node()
    returned: Any = output.args[0]
    if not all(isinstance(value, Node) for value in (returned if isinstance(returned, (tuple, list)) else [returned])):
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
    """Return the cost of each node, and the bytes of the values that it makes."""
    try:
        costs = estimate_cost(gm, *inputs, backward=backward)
        memory = activation_memory(gm, *inputs)
    except (DataDependentOutputException, DynamicOutputShapeException, data_dependent_size_error()) as error:
        raise PassError(
            "split_into_stages cannot follow the program: sizes, or its course, depend on elements of tensors",
            why="\n         ".join([f"{type(error).__name__}: {error}", *note_lines(error)]),
            remedy="pipelines send tensors of fixed sizes: use torch.where in place of x[mask] and x.item()",
        ) from error
    activations: dict[Node, int] = {}
    for storage in memory.storages:
        if storage.node is not None and storage.nodes:
            activations[storage.node] = activations.get(storage.node, 0) + storage.size
    return {storage.node: _cost(storage) for storage in costs.nodes}, activations


def _cost(node_cost: NodeCost) -> float:
    return float(sum(max(kernel.work.flops, _FLOPS_A_BYTE * kernel.work.moved) for kernel in node_cost.kernels))


def _given_seconds(gm: GraphModule, seconds: Mapping[Node, float]) -> dict[Node, float]:
    for node in seconds:
        if node.graph is not gm.graph:
            raise PassError(f"seconds has {node!r}, which is not a node of the program", remedy="measure this program")
    return {node: float(value) for node, value in seconds.items()}


def _places(
    cuts: StageCuts, n: int, weights: Sequence[float], made_bytes: Sequence[int], memory: int | None
) -> list[int]:
    """Return the steps before which the program is cut."""
    division = Division(cuts.places(), n)
    used_bytes = [float(weight + other) for weight, other in zip(made_bytes, cuts.state_bytes(), strict=True)]
    if memory is not None:
        if (least := division.least_largest(used_bytes)) is not None and least > memory:
            raise PassError(
                f"no {n} stages of the program fit into {in_bytes(memory)} each",
                why=f"the largest one takes {in_bytes(int(least))} or more of parameters, buffers and values of a call",
                remedy="ask for more stages, or smaller microbatches",
            )
        division.limit(used_bytes, float(memory))
    for measure in (weights, used_bytes, [-weight for weight in weights]):  # the last lets the cheapest stage cost most
        least = division.least_largest(measure)
        assert least is not None  # there are enough places, and the division that was best before keeps to its limit
        division.limit(measure, max(least * _SLACK, least / _SLACK) + _ROUNDING * abs(sum(measure)))
    places = division.least_sum([float(weight) for weight in cuts.sent])
    assert places is not None
    return places


def _module(gm: GraphModule, cuts: StageCuts, begin: int, end: int, number: int) -> GraphModule:
    """Return the program from one cut to the next."""
    graph = blank_like(gm.graph)
    values: dict[Node, Node] = {}
    if begin == 0:
        for node in gm.graph.find_nodes(op="placeholder"):
            copy_node(graph, node, values, True)
    else:
        for node in cuts.crossing(begin):
            values[node] = graph.placeholder(node.name, node.type)
            copy_notes(node, values[node])
    for node in cuts.steps[begin:end]:
        _copy_with_needs(graph, cuts, node, values)
    if end == len(cuts.steps):
        _copy_with_needs(graph, cuts, gm.graph.output_node(), values)
    else:
        results = tuple(values[node] for node in cuts.crossing(end))
        graph.output(results if len(results) != 1 else results[0])
    take_constants(gm.graph, graph)
    return GraphModule.of_capture(gm, graph, f"Stage{number}")


def _copy_with_needs(graph: Graph, cuts: StageCuts, node: Node, values: dict[Node, Node]) -> None:
    """Copy ``node`` after the attributes and numbers that it needs."""
    for needed in cuts.made_for(node):
        first = cuts.sent_on.get(needed, needed)
        if first not in values:
            copy_node(graph, first, values, True)
        values[needed] = values[first]
    copy_node(graph, node, values, True)
