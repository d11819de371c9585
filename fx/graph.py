"""``Graph``, a captured program: one ordered list of nodes, and the methods that edit it (paper, section 4.2)."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from fx.analysis.verify import check_graph
from fx.arguments import expect, expect_callable, here, refusal
from fx.code.codegen import CodeGen, FunctionWriter, PythonCode, TransformCodeFunc
from fx.code.pytree_codegen import PyTreeCodeGen, PyTreeInfo
from fx.errors import CodegenError, GraphError, MissingAttributeError
from fx.modules import pickling
from fx.modules.attributes import MISSING, find_attribute
from fx.naming.names import Namespace, snake_case
from fx.naming.printing import Comments, describe, format_graph, format_table
from fx.naming.targets import candidate_name, is_from_torch
from fx.node import OPCODES, Argument, Node, Target, end_error, erased_error, map_arg
from fx.operators.python import OPERATORS

if TYPE_CHECKING:
    from fx.graph_module import GraphModule

__all__ = ["CodeGen", "Graph", "Namespace", "PyTreeCodeGen", "PythonCode"]


# Names that client code of torch.fx imports.
_Namespace = Namespace
_PyTreeCodeGen = PyTreeCodeGen
_PyTreeInfo = PyTreeInfo
_is_from_torch = is_from_torch
_snake_case = snake_case
magic_methods = {row.name: row.template for row in OPERATORS if not row.in_place}
reflectable_magic_methods = {row.name: row.template for row in OPERATORS if row.reflected}
inplace_methods = {row.name: row.template for row in OPERATORS if row.in_place}


class NodeList:
    """A graph's nodes in order. Erasing and inserting while iterating is safe: later nodes are visited as they are."""

    __slots__ = ("_graph",)

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __len__(self) -> int:
        return self._graph._len

    def __contains__(self, node: object) -> bool:
        return isinstance(node, Node) and node.graph is self._graph and not node._erased

    def __iter__(self) -> Iterator[Node]:
        root = self._graph._root
        node = root._next
        while node is not root:
            if not node._erased:
                yield node
            node = node._next

    def __reversed__(self) -> Iterator[Node]:
        root = self._graph._root
        node = root._prev
        while node is not root:
            if not node._erased:
                yield node
            node = node._prev


class NodeIndex:
    """A graph's nodes by opcode and target. The graph makes it for the first search, and updates it from then on."""

    __slots__ = ("_nodes",)

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes: dict[str, dict[object, dict[Node, None]]] = {opcode: {} for opcode in OPCODES}
        for node in nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        """Add a node that is new, or has a new opcode or target."""
        self._nodes[node._op].setdefault(_key(node._target), {})[node] = None

    def remove(self, node: Node) -> None:
        """Remove a node that is about to be erased, or to get another opcode or target."""
        del self._nodes[node._op][_key(node._target)][node]

    def find(self, op: str, target: Target | None) -> list[Node]:
        """Return the nodes with this opcode and, unless it is None, this target, in any order."""
        by_target = self._nodes[op]
        groups = by_target.values() if target is None else (by_target.get(_key(target), ()),)
        return [node for group in groups for node in group]


def _key(target: Target) -> object:
    """Return the target itself, or its identity if it cannot be hashed."""
    try:
        hash(target)
    except TypeError:
        return (id(target),)
    return target


class Setting:
    """Sets an attribute for good or, in a ``with`` block, until its end, when the value before is restored."""

    __slots__ = ("_name", "_owner", "_previous")

    def __init__(self, owner: Any, name: str, value: Any) -> None:
        self._owner = owner
        self._name = name
        self._previous = getattr(owner, name)
        setattr(owner, name, value)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *failure: object) -> None:
        setattr(self._owner, self._name, self._previous)


class Graph:
    """A program as a list of nodes; together with a module hierarchy it is a ``GraphModule``.

    >>> import torch, fx
    >>> graph = fx.Graph()
    >>> x = graph.placeholder("x")
    >>> _ = graph.output(graph.call_function(torch.relu, (x,)))
    >>> print(graph)
    graph():
        %x : [num_users=1] = placeholder[target=x]
        %relu : [num_users=1] = call_function[target=torch.relu](args = (%x,), kwargs = {})
        return relu
    """

    revision: int
    """A counter of edits, so that anyone can see whether a pass changed the graph."""
    before_edit: Callable[[], object] | None
    """Called once, before the next edit: generates the code of a module that has not done so yet."""
    constants: dict[str, Any]
    """Tensors and other values that capture lifted out of the program, by their names in ``get_attr`` nodes.

    A ``GraphModule`` takes them from here if its root has no such attribute; the traced module stays unchanged.
    """
    history: tuple[str, ...]
    """Names of the passes of pipelines that changed the graph, in order; generated code lists them above ``def``."""

    def __init__(
        self,
        owning_module: GraphModule | None = None,
        tracer_cls: type[Any] | None = None,
        tracer_extras: dict[str, Any] | None = None,
    ) -> None:
        """Create an empty graph.

        Args:
            owning_module: the module whose attributes ``get_attr`` and ``call_module`` refer to, if there is one.
            tracer_cls: class of the tracer that made the graph.
            tracer_extras: any values that the tracer stores with the graph.
        """
        expect(owning_module, (torch.nn.Module, NoneType), "owning_module of a Graph is a GraphModule")
        expect(tracer_cls, (type, NoneType), "tracer_cls of a Graph is a class of tracers")
        expect(tracer_extras, (dict, NoneType), "tracer_extras of a Graph is a dict")
        self.revision = 0
        self.before_edit: Callable[[], object] | None = None
        self.owning_module = owning_module
        self.constants = {}
        self.history = ()
        self._tracer_cls = tracer_cls
        self._tracer_extras = tracer_extras
        self._codegen = CodeGen()
        self._namespace = Namespace()
        self._root = Node(self, "", "output", "output", (), {})
        self._root._op, self._root._target = "root", ""  # an opcode that no node may have, so it is not checked above
        self._insert: Callable[[Node], None] = self._root.prepend
        self._len = 0
        self._index: NodeIndex | None = None

    @property
    def nodes(self) -> NodeList:
        """The nodes in order: iterable both ways, also while the graph is edited, and countable with ``len``."""
        return NodeList(self)

    _find_nodes_lookup_table = nodes
    """The collection in which client code of torch.fx looks up whether a node is in the graph."""

    @property
    def _graph_namespace(self) -> Namespace:
        """The names of the nodes, as client code of torch.fx reads them."""
        return self._namespace

    def about_to_change(self) -> None:
        """Note that an edit is about to be made."""
        if self.before_edit is not None:
            self._before_edit()
        self.revision += 1

    def _before_edit(self) -> None:
        before_edit, self.before_edit = self.before_edit, None
        if before_edit is not None:
            before_edit()

    # Making nodes.

    def create_node(
        self,
        op: str,
        target: Target,
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        name: str | None = None,
        type_expr: Any | None = None,
    ) -> Node:
        """Make a node at the insertion point: the end, unless ``inserting_before`` or ``inserting_after`` set another.

        Args:
            op: one of the six opcodes.
            target: the function, method, module or attribute that is called or fetched.
            args: positional arguments.
            kwargs: keyword arguments.
            name: requested name; made legal and unique. By default it follows ``target``.
            type_expr: type annotation of the value in generated code.

        Raises:
            GraphError: the opcode is unknown, the target is of the wrong kind, ``args`` is not a tuple, or ``kwargs``
                is not a dict.
        """
        if args is not None and not isinstance(args, tuple):
            raise refusal("args must be a tuple", args, remedy="(value,) for a single argument")
        if kwargs is not None and not isinstance(kwargs, dict):
            raise refusal("kwargs must be a dict", kwargs)
        if name is None:
            wish = self._target_to_str(target)
        elif isinstance(name, str):
            wish = name
        else:
            raise refusal("the name of a node is a string", name)
        if self.before_edit is not None:
            self._before_edit()
        node = Node(self, self._namespace.create_name(wish), op, target, args or (), kwargs or {}, type_expr)
        try:
            self._insert(node)
        except GraphError:  # the node to insert beside was erased
            for used in node.all_input_nodes:
                del used.users[node]
            raise
        self._len += 1
        if self._index is not None:
            self._index.add(node)
        return node

    def _target_to_str(self, target: Target) -> str:
        """Return the name of a value made by ``target``, before it is made unique."""
        return _wish(target) if type(target) is str else snake_case(candidate_name(target))

    def placeholder(
        self, name: str, type_expr: Any | None = None, default_value: Any = inspect.Signature.empty
    ) -> Node:
        """Make an input of the program called ``name``, which may have stars (``*args``) and a default value."""
        args = () if default_value is inspect.Signature.empty else (default_value,)
        return self.create_node("placeholder", name, args, type_expr=type_expr)

    def get_attr(self, qualified_name: str, type_expr: Any | None = None) -> Node:
        """Make a read of the attribute at the dotted path ``qualified_name``: a parameter, buffer or constant.

        Warn if the owning module has no such attribute.
        """
        if self.owning_module is not None and not _has_path(self.owning_module, qualified_name):
            warnings.warn(
                f"a get_attr node for {qualified_name!r} refers to nothing: the owning GraphModule does not have it; "
                "call GraphModule.add_submodule, or set the attribute, first",
                stacklevel=2,
            )
        return self.create_node("get_attr", qualified_name, type_expr=type_expr)

    def call_function(
        self,
        the_function: Callable[..., Any],
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        type_expr: Any | None = None,
        name: str | None = None,
    ) -> Node:
        """Make a call of ``the_function``."""
        return self.create_node("call_function", the_function, args, kwargs, name, type_expr)

    def call_method(
        self,
        method_name: str,
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        type_expr: Any | None = None,
    ) -> Node:
        """Make a call of the method ``method_name`` of ``args[0]``."""
        return self.create_node("call_method", method_name, args, kwargs, type_expr=type_expr)

    def call_module(
        self,
        module_name: str,
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        type_expr: Any | None = None,
    ) -> Node:
        """Make a call of the submodule at the dotted path ``module_name``.

        Raises:
            MissingAttributeError: the owning module has no such submodule.
        """
        if self.owning_module is not None and not _has_path(self.owning_module, module_name):
            raise MissingAttributeError(
                f"a call_module node for {module_name!r} refers to nothing",
                where=here(),
                why=f"the owning {type(self.owning_module).__name__} has no such submodule",
                remedy=f"add it first: graph_module.add_submodule({module_name!r}, module)",
            )
        return self.create_node("call_module", module_name, args, kwargs, type_expr=type_expr)

    def create_size_node(self, tensor_node: Node, dim: int) -> Node:
        """Make a node for a tensor's size along ``dim``, a number; sets ``meta["val"]`` if the tensor's is known."""
        return self._measured("size", torch.ops.aten.sym_size.int, tensor_node, dim)

    def create_stride_node(self, tensor_node: Node, dim: int) -> Node:
        """Make a node for a tensor's stride along ``dim``, a number; sets ``meta["val"]`` if the tensor's is known."""
        return self._measured("stride", torch.ops.aten.sym_stride.int, tensor_node, dim)

    def create_storage_offset_node(self, tensor_node: Node) -> Node:
        """Make a node for a tensor's offset in its storage, a number; sets ``meta["val"]`` if the tensor's is known."""
        return self._measured("storage_offset", torch.ops.aten.sym_storage_offset.default, tensor_node)

    def _measured(self, method: str, function: Callable[..., Any], tensor_node: Node, *dim: int | Node) -> Node:
        expect(tensor_node, Node, f"create_{method}_node takes the node of a tensor")
        for number in dim:
            expect(number, (int, torch.SymInt, Node), f"dim of create_{method}_node is an int")
        node = self.call_function(function, (tensor_node, *dim))
        value = tensor_node.meta.get("val")
        if isinstance(value, torch.Tensor) and not any(isinstance(number, Node) for number in dim):
            node.meta["val"] = getattr(value, method)(*dim)
        return node

    def output(self, result: Argument, type_expr: Any | None = None) -> Node:
        """Make the output node of the program, which returns ``result``."""
        return self.create_node("output", "output", (result,), type_expr=type_expr)

    # The insertion point.

    def inserting_before(self, n: Node | None = None) -> Setting:
        """Put new nodes before ``n``, or at the start; until the end of a ``with`` block, or else for good."""
        return self.inserting_after(self._root) if n is None else Setting(self, "_insert", self._own(n).prepend)

    def inserting_after(self, n: Node | None = None) -> Setting:
        """Put each new node right after ``n``, or at the end; until the end of a ``with`` block, or else for good."""
        return self.inserting_before(self._root) if n is None else Setting(self, "_insert", self._own(n).append)

    def _own(self, node: Node) -> Node:
        expect(node, Node, "nodes are inserted before or after a node")
        if node._erased:
            raise erased_error(node)
        if node.graph is not self:
            raise GraphError("Node to insert at is not in graph", where=node.source, value=describe(node))
        return node

    # Editing.

    def erase_node(self, to_erase: Node) -> None:
        """Remove a node that nothing uses; erasing a node a second time only warns.

        Raises:
            GraphError: it is used (the message names the users), or it belongs to another graph.
        """
        expect(to_erase, Node, "Graph.erase_node takes a node")
        if to_erase is self._root:
            raise end_error(to_erase)
        if to_erase.users:
            raise GraphError(
                f"Tried to erase Node {to_erase} but it still had {len(to_erase.users)} users in the graph: "
                f"{', '.join(map(repr, to_erase.users))}",
                where=to_erase.source,
                value=describe(to_erase),
                remedy="give the users another input first: node.replace_all_uses_with(other)",
            )
        if to_erase.graph is not self:
            raise GraphError(
                f"Attempting to remove {to_erase} from wrong graph!", where=to_erase.source, value=describe(to_erase)
            )
        if to_erase._erased:
            warnings.warn(f"erase_node({to_erase}) on an already erased node", stacklevel=2)
            return
        to_erase._update(map_arg(to_erase._args, _nothing), map_arg(to_erase._kwargs, _nothing))
        if self._index is not None:
            self._index.remove(to_erase)
        to_erase._remove_from_list()
        to_erase._erased = True
        self._len -= 1

    def node_copy(self, node: Node, arg_transform: Callable[[Node], Argument] = lambda used: used) -> Node:
        """Copy ``node``, of this or another graph, to the insertion point.

        Args:
            node: the node to copy.
            arg_transform: maps each node in its arguments to the argument of the copy.
        """
        expect(node, Node, "Graph.node_copy takes a node")
        args = map_arg(node.args, arg_transform)
        kwargs = map_arg(node.kwargs, arg_transform)
        copied = self.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        if node._meta:
            copied._meta = dict(node._meta)
        copied.source = node.source
        copied.origins = node.origins
        return copied

    @overload
    def graph_copy(
        self, g: Graph, val_map: dict[Node, Node], return_output_node: Literal[False] = False
    ) -> Argument | None: ...
    @overload
    def graph_copy(
        self, g: Graph, val_map: dict[Node, Node], return_output_node: Literal[True]
    ) -> tuple[Argument, Node] | None: ...
    def graph_copy(
        self, g: Graph, val_map: dict[Node, Node], return_output_node: bool = False
    ) -> Argument | tuple[Argument, Node] | None:
        """Copy all of ``g`` except its output to the insertion point.

        Args:
            g: the graph to copy from.
            val_map: filled with the copy of each node; nodes already in it are not copied but taken from it.
            return_output_node: also return ``g``'s output node.

        Returns:
            The result of ``g``, in terms of the copies; None if ``g`` has no output.
        """
        expect(g, Graph, "Graph.graph_copy takes a Graph", remedy="graph_module.graph is that of a GraphModule")
        expect(val_map, dict, "val_map of Graph.graph_copy is a dict from nodes to their copies")
        renamed = self._take_constants(g)
        for node in list(g.nodes):
            if node in val_map:
                continue
            if node._op == "output":
                value = map_arg(node.args[0], val_map.__getitem__)
                return (value, node) if return_output_node else value
            copied = val_map[node] = self.node_copy(node, val_map.__getitem__)
            if node._op == "get_attr" and node._target in renamed:
                copied.target = renamed[node._target]
        return None

    def _take_constants(self, g: Graph) -> dict[Target, str]:
        """Add the constants of ``g``, and return the new names of those whose name belongs to another value here."""
        renamed: dict[Target, str] = {}
        for name, value in g.constants.items():
            free, number = name, 0
            while self.constants.get(free, value) is not value:
                number += 1
                free = f"{name}_{number}"
            self.constants[free] = value
            if free != name:
                renamed[name] = free
        return renamed

    def eliminate_dead_code(self, is_impure_node: Callable[[Node], bool] | None = None) -> bool:
        """Remove unused nodes without effects, last to first.

        Args:
            is_impure_node: decides which unused nodes to keep; by default ``Node.is_impure``.

        Returns:
            True if anything was removed.
        """
        expect_callable(is_impure_node, "is_impure_node of eliminate_dead_code is a function", optional=True)
        self.lint()
        impure = is_impure_node or Node.is_impure
        before = self._len
        for node in reversed(self.nodes):
            if not node.users and node._op not in ("placeholder", "output") and not impure(node):
                self.erase_node(node)
        changed = self._len < before
        if self.owning_module is not None:
            for node in self.find_nodes(op="get_attr"):
                inner: Any = getattr(self.owning_module, node.target, None) if "." not in node.target else None
                is_program = isinstance(getattr(inner, "graph", None), Graph) and hasattr(inner, "recompile")
                if is_program and inner.graph.eliminate_dead_code(is_impure_node):
                    changed = True
                    inner.recompile()
        return changed

    # Queries.

    def find_nodes(self, *, op: str, target: Target | None = None, sort: bool = True) -> list[Node]:
        """Return all nodes with this opcode and, if it is not None, this target.

        The first call visits the whole graph; the time of later ones depends only on the number of nodes that they
        return.

        Args:
            op: one of the six opcodes.
            target: the target of the nodes.
            sort: return them in the order of the graph. False saves the sorting.

        Raises:
            GraphError: there is no such opcode, or no node can have such a target.
        """
        if not isinstance(op, str) or op not in OPCODES:
            raise refusal(f"find_nodes takes an opcode, one of {', '.join(OPCODES)}", op)
        if target is not None and not isinstance(target, str) and not callable(target):
            raise refusal("find_nodes takes the target of nodes", target, remedy="a function, a name or a path")
        if self._index is None:
            self._index = NodeIndex(self.nodes)
        nodes = self._index.find(op, target)
        if sort:
            nodes.sort(key=attrgetter("_order"))
        return nodes

    def output_node(self) -> Node:
        """Return the output node.

        Raises:
            GraphError: the graph has none yet.
        """
        last = self._root._prev
        if last._op != "output":
            outputs = self.find_nodes(op="output")
            if not outputs:
                raise GraphError("the graph has no output node", remedy="end it with graph.output(value)")
            return outputs[-1]
        return last

    def lint(self) -> None:
        """Check that the graph is well formed, and that its targets exist if a module owns it.

        Raises:
            GraphError: a rule is broken; the message names the node.
        """
        check_graph(self)

    def __str__(self) -> str:
        return format_graph(self)

    def print_tabular(self) -> None:
        """Print the graph as a table of opcode, name, target, args and kwargs."""
        print(format_table(self))

    # Generating code.

    def python_code(
        self,
        root_module: str,
        *,
        verbose: bool = False,
        include_stride: bool = False,
        include_device: bool = False,
        colored: bool = False,
        expanded_def: bool = False,
        record_func: bool = False,
        additional_meta: list[str] | None = None,
    ) -> PythonCode:
        """Return the graph as Python source (paper, section 4.3).

        Args:
            root_module: name through which the code reaches attributes, usually ``"self"``.
            verbose: a comment with the user's line above the nodes it made, and shapes if known.
            include_stride: with ``verbose``, strides beside shapes.
            include_device: with ``verbose``, devices beside shapes.
            colored: with ``verbose``, terminal colours.
            expanded_def: one parameter a line.
            record_func: wrap the body in profiler ranges.
            additional_meta: with ``verbose``, keys of ``meta`` to show.

        Raises:
            CodegenError: a name, target or annotation cannot be written safely.
        """
        if not isinstance(root_module, str) or not root_module.isidentifier():
            raise refusal("python_code takes the name of the variable that holds the module", root_module,
                          error=CodegenError, remedy='graph.python_code("self")')  # fmt: skip
        expect(additional_meta, (list, tuple, NoneType), "additional_meta of python_code is a list of keys of meta")
        comments = None
        if verbose:
            comments = Comments(include_stride, include_device, colored, tuple(additional_meta or ()))
        return FunctionWriter(self, root_module, comments).write(expanded_def, record_func)

    def set_codegen(self, codegen: CodeGen) -> None:
        """Use ``codegen`` for the signature, the return statement and the wrapping of inputs and outputs."""
        remedy = "make one of a subclass of fx.CodeGen: graph.set_codegen(MyCodeGen())"
        expect(codegen, CodeGen, "set_codegen takes a CodeGen", remedy=remedy)
        self.about_to_change()
        self._codegen = codegen

    def on_generate_code(self, make_transformer: Callable[[TransformCodeFunc | None], TransformCodeFunc]) -> Setting:
        """Register a function on the lines of the generated body, for good or until the end of a ``with`` block.

        Args:
            make_transformer: takes the current function (or None) and returns the new one, from lines to lines.
        """
        what = "on_generate_code takes a function from the current transformer of code to the new one"
        expect_callable(make_transformer, what)
        transformer = make_transformer(self._codegen.body_transformer)
        expect_callable(transformer, f"{what}, which is a function on lines", optional=True)
        self.about_to_change()
        return Setting(self._codegen, "body_transformer", transformer)

    def process_inputs(self, *args: Any) -> Any:
        """Return the values of the placeholders for the caller's arguments."""
        return self._codegen.process_inputs(*args)

    def process_outputs(self, out: Any) -> Any:
        """Return the caller's result for the value of the output node."""
        return self._codegen.process_outputs(out)

    # Copies and pickles.

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Graph:
        memo = {} if memo is None else memo
        copied = Graph(tracer_cls=self._tracer_cls, tracer_extras=self._tracer_extras)
        memo[id(self)] = copied
        copied._codegen = copy.deepcopy(self._codegen, memo)
        copied.constants = copy.deepcopy(self.constants, memo)
        copied.history = self.history
        copies: dict[Node, Node] = {}
        for node in self.nodes:
            copies[node] = copied.node_copy(node, copies.__getitem__)
            memo[id(node)] = copies[node]
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return pickling.encode(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        Graph.__init__(self)
        pickling.decode(self, state)


@lru_cache(maxsize=65536)
def _wish(target: str) -> str:
    return snake_case(candidate_name(target))


def _has_path(module: torch.nn.Module, path: str) -> bool:
    if not isinstance(path, str) or not all(path.split(".")):
        return True  # refused when the node is made
    return find_attribute(module, path, MISSING) is not MISSING


def _nothing(node: Node) -> None:
    """Replace a node in the arguments of an erased node by None."""
