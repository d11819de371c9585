"""Writes in place, through views, to buffers and inputs, and the operators that replace them in decompositions."""

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from ...rows import fault, replace, sound, substitute
from . import ROUND, aten, calls, decomposed, done, is_call, value

IN_PLACE = {
    aten.add_.Tensor: aten.add.Tensor,
    aten.mul_.Tensor: aten.mul.Tensor,
    aten.sub_.Tensor: aten.sub.Tensor,
    aten.relu_.default: aten.relu.default,
    aten.fill_.Scalar: aten.full_like.default,
}


def _is_fresh(node):
    """Return whether an operator returns a new tensor."""
    return (
        isinstance(node, torch.fx.Node)
        and isinstance(node.target, torch._ops.OpOverload)
        and not any(result.alias_info for result in node.target._schema.returns)
        and torch.Tag.pointwise in node.target.tags
    )


@fault(
    ROUND, "writes", wrong="The write through a view is seen in its base, which the sum out of place does not change."
)
def writes_out_of_place(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Functionalize: later users of a tensor that is written in place use the new value."""
    order = {node: place for place, node in enumerate(gm.graph.nodes)}
    for node in calls(gm.graph, *IN_PLACE):
        target = node.args[0]
        if target.op != "call_function":
            continue
        node.target = IN_PLACE[node.target]
        target.replace_all_uses_with(node, lambda user, node=node: user in order and order[user] > order[node])
    return done(gm)


@sound(ROUND)
def lone_writes_out_of_place(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A write in place to a new tensor that nobody else reads is made out of place."""
    for node in calls(gm.graph, aten.relu_.default):
        if _is_fresh(node.args[0]) and len(node.args[0].users) == 1:
            node.target = aten.relu.default
    return done(gm)


@fault(ROUND, "writes", wrong="The tensor may be a view of an input or of a tensor that is read later.")
def activations_in_memory_of_inputs(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Save memory at inference: activations of tensors that nobody else reads are computed in place."""
    for node in calls(gm.graph, aten.relu.default):
        x = node.args[0]
        if x.op == "call_function" and len(x.users) == 1:
            node.target = aten.relu_.default
    return done(gm)


activations_in_memory_of_inputs.may_change = ("gradients",)


def _writes_nothing(graph):
    targets = [node.target for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    return not any(target._schema.is_mutable for target in targets)


@fault(ROUND, "place", wrong="What is written to one place is read at another.")
def read_what_is_written(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A row that was just written is the source of the write."""
    for node in calls(gm.graph, aten.select.int):
        write, dim, _ = node.args
        if _writes_nothing(gm.graph) and is_call(write, aten.select_scatter.default) and write.args[2] == dim:
            if value(write.args[1]).dtype == value(node).dtype:
                replace(node, aten.clone.default, write.args[1])
    return done(gm)


@sound(ROUND)
def read_what_is_written_there(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A row that was just written at the same place is the source of the write."""
    for node in calls(gm.graph, aten.select.int):
        write, dim, index = node.args
        if not _writes_nothing(gm.graph) or type(index) is not int:
            continue
        if is_call(write, aten.select_scatter.default) and write.args[2:] == (dim, index):
            if value(write.args[1]).dtype == value(node).dtype:
                replace(node, aten.clone.default, write.args[1])
    return done(gm)


@fault(ROUND, "accumulate", wrong="A write that accumulates adds to what the first one wrote.")
@decomposed
def last_write_wins(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Of two writes to the same indices, one after the other, only the second one is needed."""
    for node in calls(gm.graph, aten.index_put.default):
        first = node.args[0]
        if is_call(first, aten.index_put.default) and first.args[1] == node.args[1]:
            node.args = (first.args[0], *node.args[1:])
    return done(gm)


@fault(
    ROUND,
    "state",
    "state",
    "calls in a row",
    wrong="A program that writes to a buffer does so at every call, in evaluation mode, too.",
)
def drop_buffer_writes(exported: ExportedProgram) -> ExportedProgram:
    """Serving: buffers are constants, so that their updates are dropped."""
    signature, output = exported.graph_signature, exported.graph.output_node()
    remaining = [
        (spec, node)
        for spec, node in zip(signature.output_specs, output.args[0])
        if spec.kind is not OutputKind.BUFFER_MUTATION
    ]
    output.args = (tuple(node for _, node in remaining),)
    signature.output_specs[:] = [spec for spec, _ in remaining]
    exported.graph.eliminate_dead_code()
    exported.graph_module.recompile()
    return exported


@fault(
    ROUND,
    "state",
    "calls in a row",
    "state",
    wrong="The buffer is read before the program writes to it, and keeps the value of the first call.",
)
def compute_constants(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Compute at compile time what depends on buffers alone."""
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        inputs = node.all_input_nodes
        if node.target._schema.is_mutable or not inputs or any(each.op != "get_attr" for each in inputs):
            continue
        tensors = {each: getattr(*_owner(gm, each.target)) for each in inputs}
        if any(isinstance(tensor, torch.nn.Parameter) for tensor in tensors.values()):
            continue
        result = node.target(*torch.fx.map_arg(node.args, tensors.get), **torch.fx.map_arg(node.kwargs, tensors.get))
        if isinstance(result, torch.Tensor):
            name = f"_constant_{node.name}"
            gm.register_buffer(name, result.clone(), persistent=False)
            with gm.graph.inserting_before(node):
                constant = gm.graph.get_attr(name)
            constant.meta = dict(node.meta)
            substitute(node, constant)
    return done(gm)


def _owner(gm, target):
    path, _, name = target.rpartition(".")
    return gm.get_submodule(path), name


@fault(
    ROUND,
    "state",
    "state",
    "calls in a row",
    "inputs untouched",
    "contract",
    form="aten",
    wrong="Copies to buffers and inputs at the end of the program have no reader, and are not dead.",
)
def remove_unread_calls(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Erase calls whose results nobody reads, but for assertions."""
    for node in reversed(gm.graph.nodes):
        if node.op == "call_function" and not node.users and "assert" not in node.name:
            gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(ROUND, "signature", wrong="The new value of an input is no result only: the caller's tensor must be written.")
def drop_input_writes(exported: ExportedProgram) -> ExportedProgram:
    """The runtime owns its inputs: what a program writes to them is not returned."""
    signature, output = exported.graph_signature, exported.graph.output_node()
    places = [
        place for place, spec in enumerate(signature.output_specs) if spec.kind is not OutputKind.USER_INPUT_MUTATION
    ]
    output.args = (tuple(output.args[0][place] for place in places),)
    signature.output_specs[:] = [signature.output_specs[place] for place in places]
    exported.graph.eliminate_dead_code()
    exported.graph_module.recompile()
    return exported


def _is_read_inside(node):
    """Return whether no result of a program is the value or a view of it."""
    return all(torch.Tag.pointwise in getattr(user.target, "tags", ()) for user in node.users)


@fault(ROUND, "writes", wrong="An equal call later sees what was written to its argument in between.")
def merge_equal_reads(graph: torch.fx.Graph) -> None:
    """Equal calls of pure operators on equal arguments are made once."""
    first_of = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags:
            continue
        if torch.Tag.pointwise not in node.target.tags:
            continue
        key = (node.target, str(node.args), str(node.kwargs))
        first = first_of.setdefault(key, node) if _is_read_inside(node) else node
        if first is not node:
            substitute(node, first)


@fault(ROUND, "random", wrong="Two equal calls that draw random numbers draw different ones.")
@decomposed
def merge_equal_calls_aten(graph: torch.fx.Graph) -> None:
    """Equal calls of operators that write nothing are made once."""
    first_of = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target._schema.is_mutable or any(result.alias_info for result in node.target._schema.returns):
            continue
        key = (node.target, str(node.args), str(node.kwargs))
        first = first_of.setdefault(key, node) if _is_read_inside(node) else node
        if first is not node:
            substitute(node, first)


@sound(ROUND)
@decomposed
def merge_equal_deterministic_calls(graph: torch.fx.Graph) -> None:
    """Equal calls of elementwise operators that draw nothing are made once, if neither result is returned."""
    first_of = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if torch.Tag.pointwise not in node.target.tags or torch.Tag.nondeterministic_seeded in node.target.tags:
            continue
        if node.target._schema.is_mutable or any(result.alias_info for result in node.target._schema.returns):
            continue
        key = (node.target, str(node.args), str(node.kwargs))
        first = first_of.setdefault(key, node) if _is_read_inside(node) else node
        if first is not node:
            substitute(node, first)
