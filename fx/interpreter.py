"""``Interpreter`` runs a program node by node; ``Transformer`` rebuilds one on the way (paper, sections 4.3, 6.3)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from fx.argument_types import checked
from fx.arguments import expect, explained, here, refusal, shown
from fx.assertions import handled_error
from fx.capture.tracer import Tracer
from fx.code.pytree_codegen import PyTreeCodeGen
from fx.container_kinds import map_parts
from fx.errors import GraphError, add_note, type_in_words
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.modules.gradients import leave_modes
from fx.naming.printing import describe
from fx.node import KEYWORD_ONLY, Argument, Node, Target, map_aggregate
from fx.provenance import inherit
from fx.proxy import Proxy
from fx.traceback import has_preserved_node_meta, preserve_node_meta, set_current_meta

__all__ = ["Interpreter", "Transformer"]

Listener = Callable[[Node, Any], None]
"""Called with each node and its value, right after it ran."""

_CAPTURE = "capture it first: fx.Interpreter(fx.symbolic_trace(module))"
_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size})


def positional(program: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the arguments of a call as :meth:`Interpreter.run` takes them: one for each parameter, in order.

    That is the order of the placeholders, where keyword-only ones precede ``*args``.
    """
    bound = inspect.signature(program.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    graph = getattr(program, "graph", None)
    if not isinstance(graph, Graph) or not any(
        parameter.kind is parameter.KEYWORD_ONLY for parameter in bound.signature.parameters.values()
    ):
        return (*bound.args, *bound.kwargs.values())
    codegen = graph._codegen
    if isinstance(codegen, PyTreeCodeGen):
        names = [name for name in codegen.pytree_info.orig_args if name not in ("self", "*")]
    else:
        names = [str(node.target) for node in graph.find_nodes(op="placeholder")]
    values: list[Any] = []
    for name in names:
        value = bound.arguments[name.lstrip("*")]
        values += value if name.startswith("*") and not name.startswith("**") else [value]
    return tuple(values)


class Interpreter:
    """Runs a graph node by node, with one method for each opcode: an analysis overrides those it needs.

    >>> import torch, fx
    >>> class Names(fx.Interpreter):
    ...     def call_function(self, target, args, kwargs):
    ...         print(target.__name__)
    ...         return super().call_function(target, args, kwargs)
    >>> Names(fx.symbolic_trace(lambda x: torch.relu(x) * 2)).run(torch.ones(1))
    relu
    mul
    tensor([2.])
    """

    @checked()
    def __init__(
        self,
        module: torch.nn.Module,
        garbage_collect_values: bool = True,
        graph: Graph | None = None,
        listeners: Iterable[Listener] = (),
    ) -> None:
        """Create an interpreter of one program.

        Args:
            module: the module with the attributes and submodules; by default also the program to run.
            garbage_collect_values: forget each value after its last use.
            graph: the graph to run, if not ``module.graph``.
            listeners: called with each node and its value.

        Raises:
            GraphError: ``module`` has no graph and none is given.
        """
        self.module = module
        program_graph = graph if graph is not None else getattr(module, "graph", None)
        if not isinstance(program_graph, Graph):
            raise GraphError(
                f"an Interpreter needs a graph, which {type_in_words(module)} does not have", remedy=_CAPTURE
            )
        self.graph = program_graph
        self.name = "Interpreter"
        self.extra_traceback = True
        self.garbage_collect_values = garbage_collect_values
        self.listeners = list(listeners)
        self.env: dict[Node, Any] = {}
        self.args_iter: Iterator[Any] = iter(())
        self._submodules: dict[str, torch.nn.Module] | None = None
        self.user_to_last_uses: dict[Node, list[Node]] = _last_uses(program_graph) if garbage_collect_values else {}

    @property
    def submodules(self) -> dict[str, torch.nn.Module]:
        """The submodules of ``module`` by path."""
        if self._submodules is None:
            self._submodules = dict(self.module.named_modules(remove_duplicate=False))
        return self._submodules

    @checked()
    def run(self, *args: Any, initial_env: dict[Node, Any] | None = None, enable_io_processing: bool = True) -> Any:
        """Run the program.

        Args:
            args: the inputs, by position; superfluous ones are ignored.
            initial_env: known values of nodes, which are not run.
            enable_io_processing: flatten the inputs and rebuild the output if the program was captured so.

        Returns:
            The result of the program.

        Raises:
            GraphError: an input without a default is missing, or a node uses a value that was not computed.
            Exception: any exception of an operation, with a note that names the node and the user's line.
        """
        env = self.env = initial_env if initial_env is not None else {}
        self.args_iter = iter(self.graph.process_inputs(*args) if enable_io_processing else args)
        run_node = self.run_node
        last_uses = self.user_to_last_uses
        listeners = self.listeners
        enabled = torch.is_grad_enabled()
        for node in self.graph.nodes:
            if node in env:
                continue
            try:
                value = env[node] = run_node(node)
            except Exception as error:
                # the node that ends a region uses it: such a region is not to be left again, though its value is kept
                leave_modes(
                    enabled,
                    [region for producer, region in env.items() if not any(user in env for user in producer.users)],
                )
                if self.extra_traceback:
                    _explain(error, node)
                if refused := handled_error(node.meta.get("handled", ()), node.source, error):
                    raise refused from error
                raise
            for listener in listeners:
                listener(node, value)
            if node in last_uses:
                for dead in last_uses[node]:
                    del env[dead]
            if node._op == "output":
                return self.graph.process_outputs(value) if enable_io_processing else value
        return None

    @checked()
    def boxed_run(self, args_list: list[Any]) -> Any:
        """Run on the inputs in a list, which is emptied so that they can be freed when they are no longer used.

        Args:
            args_list: a value for each input of the graph, in order, also if it has a default. A starred input takes a
                list. An input that was captured as a structure takes its parts one by one.

        Raises:
            GraphError: it is not a list, or holds another number of values or structures; it then stays unchanged.
            Exception: as in :meth:`run`.
        """
        inputs = [node for node in self.graph.nodes if node.op == "placeholder"]
        self._check_boxed(args_list, inputs)
        env: dict[Node, Any] = dict(zip(inputs, args_list, strict=True))
        args_list.clear()
        return self.graph.process_outputs(self.run(initial_env=env, enable_io_processing=False))

    def _check_boxed(self, values: list[Any], inputs: list[Node]) -> None:
        codegen = self.graph._codegen
        if isinstance(codegen, PyTreeCodeGen) and codegen.holds_structures(values):
            raise GraphError(
                "boxed_run was given structures as they were captured, and takes their parts one by one",
                where=here(),
                value=shown(values),
                remedy="give graph.process_inputs(*inputs), or call run(*inputs)",
            )
        if len(values) != len(inputs):
            raise GraphError(
                f"boxed_run was given {len(values)} value{'s' if len(values) != 1 else ''}, "
                f"and the program has {len(inputs)} input{'s' if len(inputs) != 1 else ''}",
                where=here(),
                value=f"inputs: {', '.join(str(node.target) for node in inputs) or 'none'}",
                remedy="give one value for each, those with a default too, and a list for a starred one",
            )

    def run_node(self, n: Node) -> Any:
        """Run one node on the values in ``env`` and return its value."""
        if type(n) is not Node:
            expect(n, Node, "run_node takes a node")
        if has_preserved_node_meta():
            with set_current_meta(n):
                return self._dispatch(n)
        return self._dispatch(n)

    def _dispatch(self, n: Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        return getattr(self, n._op)(n._target, args, kwargs)

    # One method for each opcode.

    def placeholder(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Return the next input, or its default; all remaining ones for a starred parameter."""
        if not isinstance(target, str):
            raise refusal("placeholder takes the name of an input", target)
        expect(args, tuple, "args of placeholder is a tuple with the default, or empty")
        if target.startswith("**"):
            return {}
        if target.startswith("*"):
            return list(self.args_iter)
        for value in self.args_iter:
            return value
        if args:
            return args[0]
        raise GraphError(
            f"Expected positional argument for parameter {target}, but one was not passed in!",
            remedy="pass a value for every parameter without a default",
        )

    def get_attr(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Return the attribute at the path ``target``."""
        return self.fetch_attr(target)  # type: ignore[arg-type]

    def call_function(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function ``target``."""
        try:
            return target(*args, **kwargs)  # type: ignore[operator]
        except TypeError:
            if not callable(target):  # checked after it failed, as each node comes here
                raise refusal("call_function takes a function", target) from None
            raise

    def call_method(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Call the method ``target`` of ``args[0]``."""
        try:
            return getattr(args[0], target)(*args[1:], **kwargs)  # type: ignore[arg-type]
        except (TypeError, LookupError):
            if not isinstance(target, str):
                raise refusal("call_method takes the name of a method", target) from None
            _expect_first(args, "call_method takes the value whose method is called as the first of its args")
            raise

    def call_module(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Call the submodule at the path ``target``."""
        return self.fetch_attr(target)(*args, **kwargs)  # type: ignore[arg-type]

    def output(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of the program."""
        _expect_first(args, "output takes a tuple with what the program returns")
        return args[0]

    # Values.

    def fetch_attr(self, target: str) -> Any:
        """Return the attribute at the dotted path ``target`` of the module.

        Raises:
            GraphError: there is none.
        """
        expect(target, str, "fetch_attr takes the path of an attribute")
        value: Any = self.module
        for atom in target.split("."):
            try:
                value = getattr(value, atom)
            except AttributeError:
                raise GraphError(
                    f"Node referenced nonexistent target {target}",
                    why=f"{type(value).__name__} has no attribute {atom!r}",
                ) from None
        return value

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of ``n`` with the values of ``env`` in place of nodes."""
        if type(n) is not Node:
            expect(n, Node, "fetch_args_kwargs_from_env takes a node")
        args = n._args
        kwargs = n._kwargs
        values = self.map_nodes_to_values(args, n) if args else args
        return values, self.map_nodes_to_values(kwargs, n) if kwargs else {}

    def map_nodes_to_values(self, args: Argument, n: Node) -> Any:
        """Return ``args``, which belong to ``n``, with the values of ``env`` in place of nodes.

        Lists and dicts are plain ones, as generated code passes them.

        Raises:
            GraphError: a node has no value yet, or ``args`` nests too deep.
        """
        kind = type(args)
        if kind is Node:
            try:
                return self.env[args]
            except KeyError:
                raise GraphError(
                    f"Node {n} referenced nonexistent value {args}! Run Graph.lint() to diagnose such issues",
                    where=n.source,
                    value=describe(n),
                ) from None
        if kind in _PLAIN:
            return args
        try:
            if kind is tuple:
                return tuple([self.map_nodes_to_values(element, n) for element in args])
            return map_parts(lambda part: self.map_nodes_to_values(part, n), args)
        except RecursionError as failure:
            raise explained(failure, args, GraphError) from None


class Transformer(Interpreter):
    """An interpreter whose values are proxies: running it writes a new program. Override an opcode to change it.

    >>> import torch, fx
    >>> class Gelu(fx.Transformer):
    ...     def call_function(self, target, args, kwargs):
    ...         new = torch.nn.functional.gelu if target is torch.relu else target
    ...         return super().call_function(new, args, kwargs)
    >>> print(Gelu(fx.symbolic_trace(lambda x: torch.relu(x))).transform().code.strip())
    def forward(self, x):
        gelu = torch.nn.functional.gelu(x);  x = None
        return gelu
    """

    @checked()
    def __init__(self, module: GraphModule) -> None:
        """Create a transformer of ``module``, which stays unchanged."""
        super().__init__(module)
        self.new_graph = Graph(tracer_cls=self.graph._tracer_cls)
        self.new_graph.set_codegen(self.graph._codegen)
        self.tracer = _TransformerTracer(self, self.new_graph, module)

    def transform(self) -> GraphModule:
        """Run on proxies and return the new program. Notes, annotations and user's lines are carried over."""
        with preserve_node_meta():
            result = self.run(enable_io_processing=False)
        if result is not None:
            old = self.graph.output_node()
            returned = map_aggregate(result, lambda value: value.node if isinstance(value, Proxy) else value)
            new = self.new_graph.output(returned, old.type)
            new.meta.update(old.meta)
            inherit(new, (old,))
        self.new_graph.history = self.graph.history
        return GraphModule.of_capture(self.module, self.new_graph, type(self.module).__name__, keeps_state=True)

    def run_node(self, n: Node) -> Any:
        """Run one node, whose origins the nodes made meanwhile inherit."""
        self.tracer.current = n
        return super().run_node(n)

    def placeholder(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Make an input of the new program."""
        input_proxy = self.tracer.create_proxy(
            "placeholder", target, args, kwargs, type_expr=self.tracer.current_type()
        )
        if self.tracer.current is not None and KEYWORD_ONLY in self.tracer.current.meta:
            input_proxy.node.meta[KEYWORD_ONLY] = True
        return input_proxy

    def get_attr(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Make a read of an attribute in the new program."""
        return self.tracer.create_proxy("get_attr", target, args, kwargs, type_expr=self.tracer.current_type())

    def call_module(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call of a submodule."""
        module = self.fetch_attr(target)  # type: ignore[arg-type]
        return self.tracer.call_module(module, module, args, kwargs)

    def call_function(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call of a function."""
        return self.tracer.create_proxy("call_function", target, args, kwargs)

    def call_method(self, target: Target, args: tuple[Argument, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call of a method."""
        return self.tracer.create_proxy("call_method", target, args, kwargs)


class _TransformerTracer(Tracer):
    """Makes the nodes of a ``Transformer``."""

    def __init__(self, transformer: Transformer, graph: Graph, root: torch.nn.Module) -> None:
        super().__init__()
        self.graph = graph
        self.root = root
        self.current: Node | None = None

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return True

    def current_type(self) -> Any | None:
        return self.current.type if self.current is not None else None

    def create_node(self, *args: Any, **kwargs: Any) -> Node:
        node = super().create_node(*args, **kwargs)
        if self.current is not None:
            node.source, node.origins = self.current.source, self.current.origins
            if "nn_module_stack" in self.current.meta:
                node.meta["nn_module_stack"] = self.current.meta["nn_module_stack"]
        return node


def _expect_first(args: object, what: str) -> None:
    if not isinstance(args, tuple) or not args:
        raise refusal(what, args)


def _last_uses(graph: Graph) -> dict[Node, list[Node]]:
    """Return, for each node, those whose values are not needed after it."""
    visited: set[Node] = set()
    uses: dict[Node, list[Node]] = {}
    for node in reversed(graph.nodes):
        for used in node.all_input_nodes:
            if used not in visited:
                visited.add(used)
                uses.setdefault(node, []).append(used)
    return uses


def _explain(error: Exception, node: Node) -> None:
    note = f"While executing {node.format_node()}"
    if node.source is not None:
        note += f"\nOriginal traceback:\n{node.stack_trace}"
    add_note(error, note)
