"""``from_export``: convert programs of ``torch.export``, with state under the names of the original module."""

from __future__ import annotations

import operator
import sys
from collections import namedtuple
from typing import Annotated, Any

import torch
import torch.fx
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, CustomObjArgument, InputSpec
from torch.utils import _pytree as pytree

from fx.argument_types import checked
from fx.canonical.forms import Form, to_functional
from fx.code.pytree_codegen import PyTreeCodeGen, PyTreeInfo
from fx.errors import GraphError, InteropError
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.interop.input_checks import InputChecks
from fx.interop.node_notes import NoteReader
from fx.interop.torch_fx import from_torch, positional_spec
from fx.modules.attributes import fetch_attribute, put_attribute
from fx.naming.printing import describe
from fx.node import Argument, Node, map_aggregate


@checked(InteropError)
def from_export(
    exported_program: Annotated[ExportedProgram, "pass the result of torch.export.export(module, args)"],
    form: Form = "functional",
) -> GraphModule:
    """Convert an exported program to one of ours, with its state under the original names.

    Operators of ATen become the equivalent functions and methods of torch, which passes look for; operators without an
    equivalent stay (:func:`fx.interop.to_functional`).

    ``get_attr`` nodes read parameters, buffers and constants under their original names (``state_dict`` has the
    original keys). They are shared with the exported program; tied parameters stay tied. Arguments and results have
    their original structure, and arguments their original names. ``torch._assert`` nodes check the constraints of the
    export (shapes, ranges of sizes, specialized values); ``fx.passes.RemoveChecks`` drops them. Writes to buffers and
    inputs happen as in the original. Regions under autocast or a gradient mode begin and end with nodes that set the
    mode. ``torch.cond``, loops, maps and scans stay one node, with their bodies as programs inside this one. Calls of
    Triton kernels also stay one node; a kernel's number is valid in one process only. ``meta`` is kept, and
    ``node.source`` is read from the stack traces.

    Args:
        exported_program: the result of ``torch.export.export``, decomposed or not; it is not changed.
        form: ``"functional"``, or ``"aten"`` for the exported operators of ATen.

    Raises:
        InteropError: it is not an exported program, calls another higher-order operator, computes gradients, orders
            effects by tokens, or has state under a name that a GraphModule uses itself. The message names the node.

    >>> import torch, fx
    >>> exported = torch.export.export(torch.nn.Linear(2, 3), (torch.ones(1, 2),))
    >>> program = from_export(exported)
    >>> list(program.state_dict()), tuple(program(torch.ones(1, 2)).shape)
    (['weight', 'bias'], (1, 3))
    >>> [str(node.target) for node in from_export(exported, "aten").graph.nodes if "linear" in node.name]
    ['aten.linear.default']
    """
    program = _Importer(exported_program).program()
    return program if form == "aten" else to_functional(program)


class _Importer:
    """The conversion of one exported program."""

    def __init__(self, exported: ExportedProgram) -> None:
        self.exported = exported
        self.theirs: torch.fx.Graph = exported.graph_module.graph
        self.in_spec: Any = exported.call_spec.in_spec
        self.out_spec: Any = exported.call_spec.out_spec
        self.module = GraphModule(torch.nn.Module(), Graph(), _class_name(self.theirs))
        self.graph = self.module.graph
        self.values: dict[torch.fx.Node, Any] = {}
        self.reader = NoteReader()

    def program(self) -> GraphModule:
        """Return the converted program."""
        self._attach_state()
        names, codegen = self._signature()
        self._write_inputs(names, codegen is not None)
        self._write_nodes(self.exported.graph_module, "")
        self._write_outputs(codegen is not None)
        self.module.train(_trains(self.theirs))
        if codegen is not None:
            self.graph.set_codegen(codegen)
        self.graph.lint()
        self.module.recompile()
        return self.module

    def _refused(self, node: torch.fx.Node) -> InteropError:
        target: Any = node.target
        return InteropError(
            f"the higher-order operator {target.name()} has no counterpart",
            where=self.reader.locate(node.meta.get("stack_trace")),
            value=describe(node),  # type: ignore[arg-type]  it reads what both libraries' nodes have
            why="it calls parts of the program in a way that our programs cannot represent",
            remedy="write it without that operator, or export the parts around it one by one",
        )

    # State.

    def _attach_state(self) -> None:
        state: dict[str, Any] = self.exported.state_dict
        for path, value in state.items():
            self._attach(path, value)
        for spec in self.exported.graph_signature.input_specs:
            if spec.target is not None and spec.target not in state:
                self._attach(spec.target, self.exported.constants[spec.target], persistent=False)

    def _attach(self, path: str, value: Any, persistent: bool = True) -> None:
        try:
            put_attribute(self.module, path, value, persistent)
        except (GraphError, KeyError) as error:
            raise InteropError(
                f"the exported module has a parameter or buffer called {path!r}",
                why="a GraphModule has an attribute of its own of that name",
                remedy="rename it in the module and export again",
            ) from error

    # Inputs.

    def _signature(self) -> tuple[list[str], PyTreeCodeGen | None]:
        """Return the parameter names, and the code generator for structured inputs or outputs, if one is needed."""
        args, kwargs = self.in_spec.children()
        signature = self.exported.module_call_graph[0].signature
        recorded: list[str] = list((signature and signature.forward_arg_names) or ())
        numbered = [f"arg_{number}" for number in range(args.num_children)]
        names = [*(recorded or numbered)[: args.num_children], *kwargs.context]
        in_spec = positional_spec(self.in_spec)
        if _is_plain(self.out_spec) and all(child.is_leaf() for child in in_spec.children()):
            return names, None
        return names, PyTreeCodeGen(PyTreeInfo(names, in_spec, self.out_spec))

    def _write_inputs(self, names: list[str], structured: bool) -> None:
        """Write the user's inputs, checks of them, and the state that the program reads."""
        pairs = list(zip(self.theirs.find_nodes(op="placeholder"), self._input_specs(), strict=True))
        inputs = [(node, spec) for node, spec in pairs if spec.target is None]
        targets = [node.name for node, _ in inputs] if structured else names
        for (node, _), target in zip(inputs, targets, strict=True):
            self.values[node] = self._copied(node, "placeholder", target, node.name)
        checked = [(node, spec) for node, spec in inputs if not isinstance(spec.arg, CustomObjArgument)]
        expected = [(self.values[node], _example_of(node, spec)) for node, spec in checked]
        InputChecks(self.graph, dict(self.exported.range_constraints)).add(expected)
        for node, spec in pairs:
            if spec.target is not None and node.users:
                self.values[node] = self._copied(node, "get_attr", spec.target, None)

    def _input_specs(self) -> list[InputSpec]:
        specs = self.exported.graph_signature.input_specs
        for spec in specs:
            if spec.kind.name == "TOKEN":
                raise InteropError(
                    f"the exported program orders effects by the token {spec.arg.name!r}",
                    why="our programs run in order, and have no tokens",
                    remedy="convert the program as torch.export.export returned it, before it is decomposed",
                )
        return specs

    # Outputs.

    def _write_outputs(self, structured: bool) -> None:
        """Write computed values to mutated buffers and inputs, and return the other outputs."""
        returned: Any = self.theirs.output_node().args[0]
        results: list[Argument] = [self._argument(value) for value in returned]
        written: dict[Argument, Node] = {}
        user: list[Argument] = []
        inputs = {node.name: node for node in self.theirs.find_nodes(op="placeholder")}
        for value, spec in zip(results, self.exported.graph_signature.output_specs, strict=True):
            kind = spec.kind.name
            if kind in ("USER_OUTPUT", "LOSS_OUTPUT"):
                user.append(value)
            elif kind in ("BUFFER_MUTATION", "PARAMETER_MUTATION"):
                getters = self.graph.find_nodes(op="get_attr", target=spec.target) or [
                    self.graph.get_attr(str(spec.target))
                ]
                written[value] = self._write(getters[0], value)
            elif kind == "USER_INPUT_MUTATION":
                written[value] = self._write(self.values[inputs[str(spec.target)]], value)
            else:
                raise InteropError(
                    f"an output of the exported program is of the kind {kind}",
                    value=spec.arg,
                    why="only results and writes to buffers, parameters and inputs have a counterpart",
                    remedy="convert the program as torch.export.export returned it",
                )
        leaves = [written.get(value, value) if isinstance(value, Node) else value for value in user]
        self.graph.output(leaves if structured else pytree.tree_unflatten(leaves, self.out_spec))

    def _write(self, target: Node, value: Node) -> Node:
        copy = self.graph.call_function(torch.ops.aten.copy_.default, (target, value))
        copy.source = value.source
        return copy

    # Nodes.

    def _write_nodes(self, part: torch.fx.GraphModule, prefix: str) -> None:
        """Copy the nodes of the exported program, or of a part of it whose attribute path is ``prefix``."""
        for node in part.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            if node.op == "get_attr":
                value = fetch_attribute(part, str(node.target))
                path = f"{prefix}{node.target}"
                if isinstance(value, torch.fx.GraphModule):
                    if all(map(_is_in_mode, node.users)):
                        continue  # _write_region copies its nodes at the call
                    value = from_torch(value)
                self._attach(path, value, persistent=False)
                self.values[node] = self._copied(node, node.op, path, node.name)
            elif _is_in_mode(node):
                self.values[node] = self._write_region(node, part, prefix)
            elif isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.name() not in _LEAVES:
                raise self._refused(node)
            elif node.target is operator.getitem and isinstance(self.values[node.args[0]], (tuple, list)):
                self.values[node] = self.values[node.args[0]][node.args[1]]
            else:
                self.values[node] = self._copied(node, node.op, node.target, node.name)

    def _write_region(self, node: torch.fx.Node, part: torch.fx.GraphModule, prefix: str) -> Any:
        """Write the nodes of a region between nodes that set and restore its mode; return the results."""
        enter, setting_count = _MODES[node.target.name()]  # type: ignore[union-attr]  it is an operator
        settings, (called, *operands) = node.args[:setting_count], node.args[setting_count:]
        inner = fetch_attribute(part, str(called.target))  # type: ignore[union-attr]  a node that reads a program
        for parameter, operand in zip(inner.graph.find_nodes(op="placeholder"), operands, strict=True):
            self.values[parameter] = self._argument(operand)
        restore, saved = enter(self.graph, settings)
        self._write_nodes(inner, f"{prefix}{called.target}.")  # type: ignore[union-attr]
        self.graph.call_function(restore, (saved,))
        return self._argument(inner.graph.output_node().args[0])

    def _copied(self, node: torch.fx.Node, op: str, target: Any, name: str | None) -> Node:
        """Return a copy of ``node`` with this opcode and target, and with its notes."""
        args, kwargs = self._argument(node.args), self._argument(node.kwargs)
        copied = self.graph.create_node(op, target, args, kwargs, name, node.type)
        notes = self.reader.of_torch(node.meta)
        copied.meta, copied.source, copied.origins = notes.meta, notes.source, notes.origins
        if not _is_in_numbers(notes.meta.get("tensor_meta")):
            del copied.meta["tensor_meta"]  # it describes a call, in numbers; "val" has the symbols
        if "nn_module_stack" in copied.meta:
            stack = copied.meta["nn_module_stack"]
            copied.meta["nn_module_stack"] = {key: (path, _class_called(kind)) for key, (path, kind) in stack.items()}
        return copied

    def _argument(self, argument: Any) -> Argument:
        return map_aggregate(argument, lambda leaf: self.values[leaf] if isinstance(leaf, torch.fx.Node) else leaf)


def _enter_autocast(graph: Graph, settings: tuple[Any, ...]) -> tuple[Any, Node]:
    torch_amp: Any = torch.amp
    return torch_amp._exit_autocast, graph.call_function(torch_amp._enter_autocast, settings)


def _set_grad_enabled(graph: Graph, settings: tuple[Any, ...]) -> tuple[Any, Node]:
    before = graph.call_function(torch.is_grad_enabled)
    graph.call_function(torch._C._set_grad_enabled, settings)
    return torch._C._set_grad_enabled, before


_MODES = {"wrap_with_autocast": (_enter_autocast, 4), "wrap_with_set_grad_enabled": (_set_grad_enabled, 1)}
"""Operators that call a part of a program in a mode: the function that enters the mode, and the number of its settings.

The function returns the callable that leaves the mode, and the argument of that callable."""
_LEAVES = (
    *("cond", "map_impl", "scan", "while_loop"),
    *("triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation"),
)
"""Operators that stay one node: those with parts of a program as arguments, which become programs, and kernels."""


def _is_in_mode(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.name() in _MODES


def _is_in_numbers(recorded: Any) -> bool:
    """Return whether the metadata of a value, including tensors in containers, has no symbolic size."""
    leaves = pytree.tree_leaves(recorded, is_leaf=lambda value: hasattr(value, "shape"))
    return all(type(size) is int for leaf in leaves for size in getattr(leaf, "shape", ()))


def _class_called(name: Any) -> Any:
    """Return the class of that qualified name if its module is imported, else the name."""
    if not isinstance(name, str):
        return name
    home, _, short = name.rpartition(".")
    value = getattr(sys.modules.get(home), short, None)
    return value if isinstance(value, type) else name


def _trains(graph: torch.fx.Graph) -> bool:
    """Return whether an operator, such as batch norm or dropout, runs in training mode."""
    for node in graph.nodes:
        if isinstance(node.target, OpOverload):
            names = [argument.name for argument in node.target._schema.arguments]
            arguments = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
            if arguments.get("training") is True or arguments.get("train") is True:
                return True
    return False


def _class_name(graph: torch.fx.Graph) -> str:
    """Return the class name of the exported module if the nodes record it, else ``"GraphModule"``."""
    for node in graph.nodes:
        for path, kind in node.meta.get("nn_module_stack", {}).values():
            if path == "":
                return str(getattr(kind, "__qualname__", kind)).rpartition(".")[2]
    return "GraphModule"


def _is_plain(spec: pytree.TreeSpec) -> bool:
    """Return whether the structure consists of tuples, lists, dicts and named tuples only."""
    return spec.is_leaf() or (spec.type in (tuple, list, dict, namedtuple) and all(map(_is_plain, spec.children())))


def _example_of(node: torch.fx.Node, spec: InputSpec) -> Any:
    """Return the example value of an input: a required constant, a tensor of its shape, or a symbolic number."""
    return spec.arg.value if isinstance(spec.arg, ConstantArgument) else node.meta.get("val")
