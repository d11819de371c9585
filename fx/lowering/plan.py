"""The plan of a lowering: the program in canonical form, its regions, and why other operations are in none."""

from __future__ import annotations

import copy
import itertools
import operator
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
from fx.lowering.known_program import KnownProgram, is_number
from fx.lowering.support import Veto, all_of, is_pure, not_vetoed
from fx.lowering.wrapped_calls import inline_wrapped_calls
from fx.matcher.origins import record_origins
from fx.naming.printing import target_name
from fx.node import Node, map_arg
from fx.operators.families import is_one_of
from fx.passes import functional_form
from fx.passes.machinery.partition import find_regions
from fx.passes.machinery.regions import Region, Regions
from fx.passes.tensor_metadata import bytes_recorded
from fx.quantize.attention import add_attention_mask, attention_mask
from fx.quantize.transformer import zero_padding

_OF_MASKS = (attention_mask, add_attention_mask, zero_padding)
_NOT_DIVIDED = ("placeholder", "get_attr", "output")
_CALLS = ("call_function", "call_method", "call_module")
_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
"""The types of tensor methods as functions, which cannot be called with the proxies of a capture."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A program divided into regions, before any of them is built."""

    regions: Regions
    """The program and its regions."""
    coverage: Coverage
    """The report of the division for users."""


def make_plan(
    graph_module: GraphModule,
    backend: Backend,
    example_inputs: Sequence[Any] | None = None,
    min_size: int | None = None,
    veto: Veto = (),
) -> Plan:
    """Divide a copy of a program into the regions that a backend takes.

    Args:
        graph_module: the program, which is not changed.
        backend: the backend.
        example_inputs: one value for each input, from which shapes and costs are inferred without computing values.
            Where that fails, a copy of the program is run on them to check that they fit.
        min_size: the least number of operations that count in a region; the backend has a default.
        veto: the user's exclusions.

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
    if backend.inlines_functions and example_inputs is not None:
        opened = [function for function in _OF_MASKS if backend.converters.find(function) is None]
        inline_wrapped_calls(program, example_inputs, opened)
    changed = make_functional(program, takes_items=backend.converters.find(functional_form.with_items) is not None)
    notes = [] if (why := backend.why_unavailable()) is None else [why]
    flops: dict[Node, int] | None = None
    if example_inputs is not None:
        cost = estimate_cost(program, *example_inputs, partial=True)
        flops = {node: 2 * count for node, count in cost.multiply_adds_of().items()}
        failure = cost.failure
        if failure is not None:
            if (misfit := find_misfit(graph_module, example_inputs, failure)) is not None:
                raise misfit from None  # with a foreign cause, it would count as a fault of the pass `lower`
            if flops.keys() != {node for node in program.graph.nodes if node.op not in _NOT_DIVIDED}:
                first = str(failure).partition("\n")[0]
                why = f"{type(failure).__name__}: {first}"
                notes.append(f"shapes are not known from where shape propagation fails: {why}")
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
    """Return, for each operation, why the backend does not take it, or ``None`` if it does."""
    takes = all_of(not_vetoed(veto), is_pure, has_converter(backend.converters), backend.supports)
    operations = (subject.operation(node) for node in subject.graph_module.graph.nodes if node.op not in _NOT_DIVIDED)
    return {operation.node: takes(operation) for operation in operations}


def _why_dropped(
    members: list[Node], subject: KnownProgram, backend: Backend, least: int, flops: dict[Node, int] | None
) -> str | None:
    """Return why lowering a region does not pay, or ``None`` if it does."""
    tensors = (node for node in members if not is_number(node))
    converters = (backend.converters.find(subject.operation(node).target) for node in tensors)
    counted = sum(0 if converter is None else converter.counts for converter in converters)
    if counted < least:
        operations = "1 operation" if counted == 1 else f"{counted} operations"
        return f"its region has {operations} that the backend is faster for, and needs {least}"
    inside = set(members)
    inputs = {used for node in members for used in node.all_input_nodes if used not in inside and used.op != "get_attr"}
    if not inputs:
        return "nothing in its region depends on an input: fold-constants would compute it once"
    if flops is None:
        return None
    work = sum(flops.get(node, 0) for node in members)
    if work < counted * backend.flops_per_operation:
        return f"its region does {work} floating-point operations in {counted} steps, too few for what a step costs"
    returned = [node for node in members if not inside.issuperset(node.users)]
    crossing = sum(_size_of(node) or 0 for node in (*inputs, *returned))
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
    values = [*counts]
    return None if None in values else sum(count or 0 for count in values)


# The spelling of the program before it is divided, and after.


def make_functional(graph_module: GraphModule, takes_items: bool = False) -> list[Node]:
    """Replace in-place operations by functional ones; see :func:`fx.passes.functional_form.make_functional`.

    Assignments to elements stay unless ``takes_items``.

    In addition, an operation stays as it is unless its operands are known to have the same floating-point dtype.
    Activations need not meet this condition, because they keep any dtype.

    Returns:
        The operations that now return a new value.

    >>> import fx, torch
    >>> program = canonical_form(fx.symbolic_trace(lambda x: torch.relu_(torch.neg(x)))).graph_module
    >>> make_functional(program)
    [relu_]
    """
    subject = KnownProgram(graph_module)

    def keeps_dtype(node: Node) -> bool:
        """Return whether a new value would have the same dtype as the tensor that is written to."""
        if node.target is operator.setitem:
            return takes_items
        if is_one_of(node.target, "activation", "dropout"):
            return True
        values = (*node.args, *node.kwargs.values())
        dtypes = {subject.dtype(operand) for operand in node.all_input_nodes}
        dtype = dtypes.pop() if len(dtypes) == 1 else None
        is_plain = all(value is None or isinstance(value, (Node, int, float, str)) for value in values)
        return is_plain and dtype is not None and dtype.is_floating_point

    return functional_form.make_functional(graph_module, keeps_dtype)


def _restore(form: CanonicalForm, fixed: Collection[Node]) -> None:
    """Restore the original spelling of each operation, unless one of its canonical nodes is fixed.

    An operation also stays canonical if its operands have changed.

    Args:
        form: the program, whose graph is edited.
        fixed: the canonical nodes that have to stay as they are.
    """
    graph = form.graph_module.graph
    by_name = {node.name: node for node in graph.nodes}
    canonical: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if (original := form.stands_for.get(node)) is not None and original.op in _CALLS:
            canonical.setdefault(original, []).append(node)
    for original, nodes in canonical.items():
        result = by_name.get(original.name)
        if result in nodes and not any(node in fixed for node in nodes):
            _restore_operation(original, result, nodes, by_name)
    for node in graph.find_nodes(op="call_function"):
        if node not in fixed and isinstance(node.target, _METHODS) and node.args and isinstance(node.args[0], Node):
            node.op, node.target = "call_method", node.target.__name__


def _restore_operation(original: Node, result: Node, nodes: list[Node], by_name: dict[str, Node]) -> None:
    """Turn ``result`` back into ``original``, and erase the other canonical nodes of it."""
    own = set(nodes)
    operands = {used for node in nodes for used in node.all_input_nodes} - own
    values = {used: by_name.get(used.name) for used in original.all_input_nodes}
    if operands != {*values.values()} or not all(own.issuperset(node.users) for node in nodes if node is not result):
        return
    args, kwargs = (map_arg(arguments, values.__getitem__) for arguments in (original.args, original.kwargs))
    result.op, result.target = original.op, original.target
    result._update(args, kwargs)
    for node in reversed(nodes):
        if node is not result:
            result.graph.erase_node(node)
