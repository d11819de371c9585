"""The plan of a lowering: the program in canonical form, what of it forms regions, and why the rest does not."""

from __future__ import annotations

import copy
import itertools
import types
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fx.analysis.cost import estimate_cost
from fx.canonical import CanonicalForm, canonical_form
from fx.canonical.inlining import copy_graph
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.lowering.backend import Backend
from fx.lowering.boundaries import Boundaries
from fx.lowering.converters import has_converter
from fx.lowering.coverage import Coverage, CoveredRegion, Placement
from fx.lowering.example_inputs import expect_inputs, find_misfit
from fx.lowering.known_program import KnownProgram
from fx.lowering.support import Veto, all_of, is_pure, not_vetoed
from fx.naming.printing import target_name
from fx.node import Node, map_arg
from fx.operators.families import is_one_of
from fx.origins import record_origins
from fx.passes import functional_form
from fx.passes.partition import find_regions
from fx.passes.regions import Region, Regions
from fx.passes.tensor_metadata import bytes_recorded

_NOT_DIVIDED = ("placeholder", "get_attr", "output")
_CALLS = ("call_function", "call_method", "call_module")
_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
"""Methods of tensors as functions, which cannot be called with what capture puts in the place of a tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What would be lowered."""

    regions: Regions
    """The program, divided."""
    coverage: Coverage
    """The same for people."""


def make_plan(
    graph_module: GraphModule,
    backend: Backend,
    example_inputs: Sequence[Any] | None = None,
    min_size: int | None = None,
    veto: Veto = (),
) -> Plan:
    """Find out which parts of a program a backend takes; the program itself stays as it is.

    Args:
        graph_module: the program.
        backend: who takes them.
        example_inputs: one value for each input, from which shapes and costs are worked out without computing.
            Where that fails, a copy of the program is run on them to find out whether they fit.
        min_size: how many operations that count a region needs at least; by default what the backend says.
        veto: what to keep out.

    Raises:
        LoweringError: the program cannot be run on ``example_inputs``; the message has the input and the user's line.
    """
    if example_inputs is not None:
        example_inputs = expect_inputs(graph_module, example_inputs)
    own = GraphModule.of_capture(graph_module, copy_graph(graph_module.graph), type(graph_module).__name__)
    own.graph._codegen = copy.deepcopy(graph_module.graph._codegen)
    record_origins(own.graph)
    form = canonical_form(backend.prepare(own))
    program, graph = form.graph_module, form.graph_module.graph
    changed = make_functional(program)
    notes = [] if (why := backend.why_unavailable()) is None else [why]
    flops: dict[Node, int] | None = None
    if example_inputs is not None:
        cost = estimate_cost(program, *example_inputs, partial=True)
        flops = {node: 2 * count for node, count in cost.multiply_adds_of().items()}
        failure = cost.failure
        if failure is not None:
            if (misfit := find_misfit(graph_module, example_inputs, failure)) is not None:
                raise misfit from None  # it says why; a cause that is not ours would be a fault of the pass `lower`
            if flops.keys() != {node for node in program.graph.nodes if node.op not in _NOT_DIVIDED}:
                first = str(failure).partition("\n")[0]
                why = f"{type(failure).__name__}: {first}"
                notes.append(f"shapes are not known from where the program cannot be followed on: {why}")
        backend.study(program, example_inputs)
    subject = KnownProgram(program)
    reasons = _refusals(subject, backend, veto)
    boundaries = Boundaries(graph, backend.can_cross)
    boundaries.refuse_from_outside(reasons)
    home: dict[Node, Region] = {}
    names = map(f"{backend.name}_{{}}".format, itertools.count())
    least = backend.min_size if min_size is None else min_size
    for members in find_regions(graph, {node for node, reason in reasons.items() if reason is None}):
        why = _why_dropped(members, subject, backend, least, flops)
        if why is None:
            home.update(dict.fromkeys(members, Region(next(names))))
        else:
            reasons.update(dict.fromkeys(members, why))
    placements = tuple(_placement(node, home, reason, flops) for node, reason in reasons.items())
    added = boundaries.repeat_inside(home)
    if flops is not None:
        flops.update(dict.fromkeys(added, 0))
    _restore(form, {*home, *changed})
    _fetch_for_each_use(graph)
    regions = Regions(GraphModule.of_capture(own, graph, type(graph_module).__name__), home)
    parts = tuple(_part(region, flops) for region in regions.regions)
    return Plan(regions, Coverage(backend.name, placements, parts, tuple(notes)))


def _fetch_for_each_use(graph: Graph) -> None:
    """Give each use of a constant a fetch of its own, so that regions share none."""
    for node in graph.find_nodes(op="get_attr"):
        for user in list(node.users)[1:]:
            with graph.inserting_before(user):
                fetched = graph.get_attr(str(node.target))
            fetched.source, fetched.origins = node.source, node.origins
            user.replace_input_with(node, fetched)


def _refusals(subject: KnownProgram, backend: Backend, veto: Veto) -> dict[Node, str | None]:
    """For each operation why the backend does not take it."""
    takes = all_of(not_vetoed(veto), is_pure, has_converter(backend.converters), backend.supports)
    operations = (subject.operation(node) for node in subject.graph_module.graph.nodes if node.op not in _NOT_DIVIDED)
    return {operation.node: takes(operation) for operation in operations}


def _why_dropped(
    members: list[Node], subject: KnownProgram, backend: Backend, least: int, flops: dict[Node, int] | None
) -> str | None:
    """Return why a region is not worth it."""
    converters = (backend.converters.find(subject.operation(node).target) for node in members)
    counted = sum(converter is not None and converter.counts for converter in converters)
    if counted < least:
        operations = "1 operation" if counted == 1 else f"{counted} operations"
        return f"its region has {operations} that the backend is faster for, and needs {least}"
    inside = set(members)
    given = {used for node in members for used in node.all_input_nodes if used not in inside and used.op != "get_attr"}
    if not given:
        return "nothing in its region depends on an input: fold-constants would compute it once"
    if flops is None:
        return None
    work = sum(flops.get(node, 0) for node in members)
    if work < counted * backend.flops_per_operation:
        return f"its region does {work} floating-point operations in {counted} steps, too few for what a step costs"
    returned = [node for node in members if not inside.issuperset(node.users)]
    crossing = sum(_size_of(node) or 0 for node in (*given, *returned))
    if work < crossing * backend.flops_per_byte:
        return f"its region does {work} floating-point operations, too few for the {crossing} bytes that cross into it"
    return None


def _placement(node: Node, home: dict[Node, Region], reason: str | None, flops: dict[Node, int] | None) -> Placement:
    region = home.get(node)
    count = None if flops is None else flops.get(node)
    name = None if region is None else region.name
    target = target_name(node.target).removeprefix("torch.nn.functional.")
    return Placement(node.name, target, name, None if region else reason, count, node.source)


def _part(region: Region, flops: dict[Node, int] | None) -> CoveredRegion:
    work = [None if flops is None else flops.get(node) for node in region.nodes if node.op not in _NOT_DIVIDED]
    bytes_in, bytes_out = (_total(map(_size_of, boundary)) for boundary in (region.inputs, region.outputs))
    return CoveredRegion(region.name, len(work), _total(work), bytes_in, bytes_out)


def _size_of(node: Node) -> int | None:
    return bytes_recorded(node.meta.get("tensor_meta") if node._meta else None)


def _total(counts: Iterable[int | None]) -> int | None:
    known = [*counts]
    return None if None in known else sum(count or 0 for count in known)


# How the program is spelled before it is divided, and after.


def make_functional(graph_module: GraphModule) -> list[Node]:
    """Replace operations in place by what returns new values; see :func:`fx.passes.functional_form.make_functional`.

    Left as they are, besides, are those whose operands are not known to be of one floating-point dtype, activations
    aside, which keep any.

    Returns:
        The operations that return a new value now.

    >>> import fx, torch
    >>> program = canonical_form(fx.symbolic_trace(lambda x: torch.relu_(torch.neg(x)))).graph_module
    >>> make_functional(program)
    [relu_]
    """
    subject = KnownProgram(graph_module)

    def keeps_dtype(node: Node) -> bool:
        """Return whether the value has the dtype of what is written to also if it is a new one."""
        if is_one_of(node.target, "activation", "dropout"):
            return True
        values = (*node.args, *node.kwargs.values())
        dtypes = {subject.dtype(one) for one in node.all_input_nodes}
        dtype = dtypes.pop() if len(dtypes) == 1 else None
        is_plain = all(one is None or isinstance(one, (Node, int, float, str)) for one in values)
        return is_plain and dtype is not None and dtype.is_floating_point

    return functional_form.make_functional(graph_module, keeps_dtype)


def _restore(form: CanonicalForm, kept: Collection[Node]) -> None:
    """Give the operations of a canonical program their original spelling, where all that stands for one is not kept.

    An operation stays canonical if its operands are others by now.

    Args:
        form: the program, whose graph is edited.
        kept: the operations that have to stay as they are.
    """
    graph = form.graph_module.graph
    named = {node.name: node for node in graph.nodes}
    standing: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if (original := form.stands_for.get(node)) is not None and original.op in _CALLS:
            standing.setdefault(original, []).append(node)
    for original, nodes in standing.items():
        result = named.get(original.name)
        if result in nodes and not any(node in kept for node in nodes):
            _restore_one(original, result, nodes, named)
    for node in graph.find_nodes(op="call_function"):
        if node not in kept and isinstance(node.target, _METHODS) and node.args and isinstance(node.args[0], Node):
            node.op, node.target = "call_method", node.target.__name__


def _restore_one(original: Node, result: Node, nodes: list[Node], named: dict[str, Node]) -> None:
    """Let ``result`` be ``original`` again, and erase what else stands for it."""
    own = set(nodes)
    operands = {used for node in nodes for used in node.all_input_nodes} - own
    values = {used: named.get(used.name) for used in original.all_input_nodes}
    if operands != {*values.values()} or not all(own.issuperset(node.users) for node in nodes if node is not result):
        return
    args, kwargs = (map_arg(given, values.__getitem__) for given in (original.args, original.kwargs))
    result.op, result.target = original.op, original.target
    result._update(args, kwargs)
    for node in reversed(nodes):
        if node is not result:
            result.graph.erase_node(node)
