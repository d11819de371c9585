"""``from_torch`` and ``to_torch``: convert programs of ``torch.fx`` to ours, and back."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, NoReturn

import torch
import torch.fx
from torch.fx import _pytree as torch_fx_pytree
from torch.fx import graph as torch_graph
from torch.fx import immutable_collections as torch_immutables
from torch.fx import node as torch_node
from torch.fx._symbolic_trace import _assert_is_none
from torch.fx.passes.shape_prop import TensorMetadata as TorchTensorMetadata
from torch.utils import _pytree as pytree

from fx import _pytree as fx_pytree
from fx.assertions import assert_is_none, check
from fx.capture.tracer import Tracer
from fx.code.codegen import CodeGen
from fx.code.pytree_codegen import PyTreeCodeGen, PyTreeInfo
from fx.container_kinds import leaves_of
from fx.errors import InteropError
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.immutable_collections import immutable_dict, immutable_list
from fx.interop.node_notes import NoteReader
from fx.interop.translation import Translation
from fx.modules.calibrated_values import FixedNumbers, release_numbers
from fx.modules.containers import Container
from fx.naming.printing import describe
from fx.node import Node
from fx.passes.tensor_metadata import TensorMetadata

_THEIRS_TO_OURS: dict[Any, Any] = {
    _assert_is_none: assert_is_none,
    torch_immutables.immutable_list: immutable_list,
    torch_immutables.immutable_dict: immutable_dict,
    torch_fx_pytree.tree_flatten_spec: fx_pytree.tree_flatten_spec,
}
_RECORDS: dict[type[Any], type[Any]] = {TorchTensorMetadata: TensorMetadata}


torch_node.has_side_effect(check)  # so that torch.fx does not remove it as dead code either


class FromTorch(Translation[torch.fx.GraphModule, GraphModule]):
    """The conversion of programs of ``torch.fx`` to ours."""

    program_type = torch.fx.GraphModule
    node_type = torch.fx.Node
    container_type = Container
    functions = _THEIRS_TO_OURS
    records = _RECORDS

    def __init__(self, back_from: ToTorch | None = None) -> None:
        super().__init__(back_from)
        self._is_for_a_pass = back_from is not None
        self._reader = NoteReader()

    def make_program(self, source: torch.fx.GraphModule) -> GraphModule:
        """Return a program without nodes or state, named like ``source``."""
        is_default = source.graph._tracer_cls is torch.fx.Tracer
        return GraphModule(torch.nn.Module(), Graph(tracer_cls=Tracer if is_default else None), type(source).__name__)

    def is_structured(self, graph: Any) -> bool:
        """Return whether the graph takes structured inputs."""
        return isinstance(graph._codegen, torch_graph._PyTreeCodeGen)

    def nodes_of(self, graph: Any) -> list[Any]:
        """Return the nodes, placeholders first: ``torch.fx`` allows them anywhere. Checks may stay between them."""
        nodes = list(graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        leading = set(nodes[: nodes.index(inputs[-1])]) if inputs else set[Any]()
        if all(node.op == "placeholder" or leading.issuperset(node.users) for node in leading):
            return nodes
        return inputs + [node for node in nodes if node.op != "placeholder"]

    def write_codegen(self, source: Any, target: Graph) -> None:
        """Give ``target`` the counterpart of the code generator of ``source``."""
        theirs, codegen = source._codegen, CodeGen()
        if type(theirs) is torch_graph._PyTreeCodeGen:
            info = theirs.pytree_info
            kind = KeywordCodeGen if keeps_keywords_apart(info.in_spec) else PyTreeCodeGen
            codegen = kind(PyTreeInfo(info.orig_args, info.in_spec, info.out_spec))
        elif type(theirs) is not torch_graph.CodeGen:
            _refuse_codegen(theirs)
        codegen.body_transformer = theirs._body_transformer
        if type(target._codegen) is not type(codegen) or vars(target._codegen) != vars(codegen):
            target.set_codegen(codegen)

    def write_code(self, source: torch.fx.GraphModule, target: GraphModule) -> None:
        """Compile the graph of ``target``, unless ``source`` has stale code because a pass forgot ``recompile()``.

        Then a program that is written back keeps its old code, as ``source`` does.
        """
        release_numbers(target)
        is_written_back = id(source) in self._known_modules
        if self._is_for_a_pass and source.code != source.graph.python_code("self").src:
            if not is_written_back:
                target.recompile()
                target.graph.about_to_change()
        else:
            target._write()  # recompile() would also write the programs inside, whose code may be stale
            target._install()

    def write_notes(self, source: torch.fx.Node, target: Node, meta: dict[str, Any]) -> None:
        """Give ``target`` the notes of ``source``; a node that is written back keeps its own source and origins."""
        notes = self._reader.of_torch(meta)
        target._meta = notes.meta or None
        if source not in self._known_nodes:
            target.source, target.origins = notes.source, notes.origins


class ToTorch(Translation[GraphModule, torch.fx.GraphModule]):
    """The conversion of our programs to those of ``torch.fx``."""

    program_type = GraphModule
    node_type = Node
    container_type = torch.nn.Module
    functions = {ours: theirs for theirs, ours in _THEIRS_TO_OURS.items()}  # noqa: RUF012  declared in the base
    records = {ours: theirs for theirs, ours in _RECORDS.items()}  # noqa: RUF012  likewise

    def __init__(self) -> None:
        super().__init__()
        self._reader = NoteReader()

    def make_program(self, source: GraphModule) -> torch.fx.GraphModule:
        """Return a program without nodes or state, named like ``source``."""
        is_default = source.graph._tracer_cls is Tracer
        graph = torch.fx.Graph(tracer_cls=torch.fx.Tracer if is_default else None)
        return torch.fx.GraphModule(torch.nn.Module(), graph, type(source).__name__)

    def is_structured(self, graph: Any) -> bool:
        """Return whether the graph takes structured inputs."""
        return isinstance(graph._codegen, PyTreeCodeGen)

    def write_codegen(self, source: Graph, target: Any) -> None:
        """Give ``target`` the counterpart of the code generator of ``source``."""
        ours, codegen = source._codegen, torch_graph.CodeGen()
        if isinstance(ours, PyTreeCodeGen) and type(ours) in (PyTreeCodeGen, KeywordCodeGen):
            info = ours.pytree_info
            names = [name for name in info.orig_args if name != "*"]
            codegen = torch_graph._PyTreeCodeGen(torch_graph._PyTreeInfo(*info._replace(orig_args=names)))
        elif type(ours) is not CodeGen:
            _refuse_codegen(ours)
        codegen._body_transformer = ours.body_transformer
        target.set_codegen(codegen)

    def nodes_of(self, graph: Graph) -> Iterable[Node]:
        """Return the nodes of a graph.

        Raises:
            InteropError: torch.fx cannot write an argument of a node in code.
        """
        for node in graph.nodes:
            for value in leaves_of((node.args, node.kwargs)):
                if isinstance(value, enum.Enum) and value.name not in type(value).__members__:
                    raise InteropError(
                        f"torch.fx cannot write {value!r} in the code of a program",
                        where=node.source,
                        value=describe(node),
                        why="it writes members of enumerations by name, and this value combines several",
                        remedy="pass its number (value.value), or combine the members in the function that is called",
                    )
        return graph.nodes

    def write_notes(self, source: Node, target: torch.fx.Node, meta: dict[str, Any]) -> None:
        """Give ``target`` the notes of ``source``; provenance without a ``torch.fx`` field is stored in ``meta``."""
        target.meta = self._reader.for_torch(source, meta)

    def write_code(self, source: GraphModule, target: torch.fx.GraphModule) -> None:
        """Compile the graph of ``target``, and fix the scales and zero points of ``source`` in it."""
        super().write_code(source, target)
        numbers = FixedNumbers.of_program(source)
        if numbers is not None:
            numbers.hold(target)


def from_torch(graph_module: torch.fx.GraphModule) -> GraphModule:
    """Convert a program of ``torch.fx`` to one of ours, with equal names, code and results.

    Nodes are converted one by one, with types, defaults, ``meta`` and stack traces (``node.source`` is read from them).
    Programs among the submodules are converted too; parameters, buffers and other modules are shared with the
    original, under the same names, with hooks and training flags. The code differs as listed in ``docs/differences.md``
    under "Generated code" and "Annotations". Methods of a subclass of ``GraphModule`` are not copied, nor are methods
    set on the instance: ``torch.export`` sets ``train`` and ``eval`` on its programs.

    Args:
        graph_module: a program of ``torch.fx``; it is not changed.

    Raises:
        InteropError: it is not a program of ``torch.fx``, is not well formed, or has a custom code generator.

    >>> import torch, fx
    >>> theirs = torch.fx.symbolic_trace(lambda x: torch.relu(x) + 1)
    >>> from_torch(theirs).code == theirs.code
    True
    """
    if not isinstance(graph_module, torch.fx.GraphModule):
        raise InteropError(
            f"from_torch takes a torch.fx.GraphModule, not {type(graph_module).__name__}",
            remedy="it is one of ours already" if isinstance(graph_module, GraphModule) else "use fx.symbolic_trace",
        )
    check_torch_program(graph_module)
    return FromTorch().program(graph_module)


def to_torch(graph_module: GraphModule) -> torch.fx.GraphModule:
    """Convert one of our programs to ``torch.fx``, with equal names, code and results: the inverse of ``from_torch``.

    Fields that ``torch.fx`` nodes lack (``source``, ``origins``) are stored in ``node.meta``, and ``from_torch`` reads
    them there. ``torch.fx`` turns ``torch.Size`` in arguments into tuples.

    Args:
        graph_module: one of our programs; it is not changed, and its tensors and modules are shared.

    Raises:
        InteropError: it is not one of our programs, or it has a custom code generator.
        GraphError: its graph is not well formed.

    >>> import torch, fx
    >>> theirs = to_torch(fx.symbolic_trace(lambda x: torch.relu(x) + 1))
    >>> isinstance(theirs, torch.fx.GraphModule), [node.name for node in theirs.graph.nodes]
    (True, ['x', 'relu', 'add', 'output'])
    """
    check_program(graph_module)
    return ToTorch().program(graph_module)


def check_program(graph_module: object) -> None:
    """Raise if ``ToTorch`` cannot convert the program, before anything is created."""
    if not isinstance(graph_module, GraphModule):
        raise InteropError(
            f"to_torch takes an fx.GraphModule, not {type(graph_module).__name__}",
            remedy="it is one of torch.fx already"
            if isinstance(graph_module, torch.fx.GraphModule)
            else "use torch.fx.symbolic_trace",
        )
    for module in graph_module.modules():
        if isinstance(module, GraphModule):
            module.graph.lint()
            _check_inputs(module.graph)


def _check_inputs(graph: Graph) -> None:
    """Raise for a keyword-only input: torch.fx writes all inputs as positional parameters."""
    with_default: Node | None = None
    for node in graph.find_nodes(op="placeholder"):
        if str(node.target).startswith("*"):
            return
        if node.args:
            with_default = node
        elif with_default is not None:
            raise InteropError(
                f"torch.fx has no keyword-only inputs, and {node.target!r} is one",
                value=describe(node),
                why=f"it has no default and comes after {with_default.target!r}, which has one",
                remedy="give it a default, or move it to the front",
            )


def check_torch_program(graph_module: torch.fx.GraphModule) -> None:
    """Raise if ``FromTorch`` cannot convert the program, before anything is created or written."""
    for path, module in graph_module.named_modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        if type(codegen := module.graph._codegen) not in (torch_graph.CodeGen, torch_graph._PyTreeCodeGen):
            _refuse_codegen(codegen)
        try:
            module.graph.lint()
        except Exception as error:
            raise InteropError(
                "the graph of a torch.fx.GraphModule is not well formed",
                where=f"the submodule {path!r}" if path else None,
                why=str(error).partition("\n")[0],
                remedy="graph_module.graph.lint() says more",
            ) from error


def _refuse_codegen(codegen: object) -> NoReturn:
    kind = type(codegen)
    raise InteropError(
        f"a graph writes its code with {kind.__module__}.{kind.__qualname__}, which has no counterpart",
        why="a code generator of one library cannot write the code of the other",
        remedy="set the default one, graph.set_codegen(CodeGen()), convert, and set one of the other library",
    )


# Arguments of programs of torch.export: positional and keyword arguments, each of any structure.


def keeps_keywords_apart(spec: pytree.TreeSpec) -> bool:
    """Return whether ``spec`` is the structure of a tuple of positional arguments together with a dict of keywords."""
    if spec.is_leaf() or spec.type is not tuple or spec.num_children != 2:
        return False
    args, kwargs = spec.children()
    return not (args.is_leaf() or kwargs.is_leaf()) and args.type is tuple and kwargs.type is dict


def positional_spec(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    """Return the structure of a list of all arguments, given the one that separates positional and keyword arguments.

    >>> apart = pytree.tree_structure(((1, [2, 3]), {"scale": 4}))
    >>> positional_spec(apart) == pytree.tree_structure([1, [2, 3], 4])
    True
    """
    args, kwargs = spec.children()
    return pytree.TreeSpec(list, None, [*args.children(), *kwargs.children()])


class KeywordCodeGen(PyTreeCodeGen):
    """A code generator that flattens positional and keyword arguments separately, as exported modules do.

    Input-checking hooks on such modules read this structure from ``_in_spec``.
    """

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, *, expanded_def: bool = False) -> str:
        """Return the original signature, and a line that unpacks its leaves."""
        names = [name for name in self.pytree_info.orig_args if name != "self"]
        definition = CodeGen.gen_fn_def(self, names, maybe_return_annotation, expanded_def=expanded_def)
        leaves = [variable.partition(" ")[0] for variable in free_vars]
        if not leaves:
            return definition
        args, kwargs = self.pytree_info.in_spec.children()
        positional = ", ".join(names[: args.num_children])
        pairs = zip(kwargs.context, names[args.num_children :], strict=True)
        keywords = ", ".join(f"{str.__repr__(key)}:{name}" for key, name in pairs)
        flattened = f"fx_pytree.tree_flatten_spec(([{positional}], {{{keywords}}}), self._in_spec)"
        return f"{definition}\n    {', '.join(leaves)}, = {flattened}"

    def process_inputs(self, *args: Any) -> Any:
        """Return the leaves of the arguments, which are all positional."""
        return pytree.tree_leaves(args)
