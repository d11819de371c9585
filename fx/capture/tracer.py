"""``Tracer`` and ``symbolic_trace``: how a module or function becomes a graph (paper, sections 4.1 and 5.1 to 5.3)."""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any

import torch

from fx.arguments import expect, expect_all, explained
from fx.capture import higher_order_calls, patching
from fx.capture.bodies import escaped, outermost
from fx.capture.example_values import awaits_input, bound, fake_mode_for
from fx.capture.exceptions import HandledExceptions, explain_misuse, forget_ended, note_other_run
from fx.capture.guided import Guide, GuidedProxy
from fx.capture.leaf_calls import ProxyableClassMeta, behind_recording
from fx.capture.modes import Modes
from fx.capture.parameters import evaluated_annotations
from fx.capture.patching import Trace
from fx.capture.real_tensors import RealTensors, enter, leave_ended
from fx.capture.recorded_calls import MATH
from fx.capture.restore import leftovers
from fx.capture.restore.earlier_calls import (
    dependence_on_earlier_call,
    expect_leaves_kept,
    expect_nothing_drawn,
    expect_parameters_kept,
    same_but_for,
    same_program,
)
from fx.capture.restore.record import Change, Record, expect_none_stuck, forget_traced_values
from fx.capture.root_state import RootTracer, leaves_something, own_method, paths_below, with_hooks
from fx.capture.signature import (
    PH,
    ConcreteArgs,
    PHBase,
    PHWithMeta,
    Signature,
    function_called,
    function_calling,
    not_traceable,
)
from fx.capture.trace_state import NO_NEEDS, TraceState
from fx.capture.training_flag import TrainingFlags
from fx.checks.traced_values import caller_location
from fx.code.sources import not_compiled
from fx.errors import ForeignModuleError, TraceError
from fx.frames import boundary, user_location
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.naming.printing import describe
from fx.node import Node
from fx.operators.asynchronous import remote_calls
from fx.proxy import ParameterProxy, Proxy, Scope

__all__ = ["PH", "PHBase", "PHWithMeta", "Proxy", "ProxyableClassMeta", "Tracer", "is_fx_symbolic_tracing",
           "is_fx_tracing", "symbolic_trace"]  # fmt: skip

_new: Any = object.__new__
Root = torch.nn.Module | Callable[..., Any]


class Tracer(RootTracer):
    """Captures a module or function by running it on proxies. Override its methods to change what is captured.

    Leaf modules, by default those of ``torch.nn``, become ``call_module`` nodes; all others are traced through.

    >>> import torch, fx
    >>> class Inlining(fx.Tracer):
    ...     def is_leaf_module(self, m, module_qualified_name):
    ...         return False
    >>> root = torch.nn.Sequential(torch.nn.ReLU())
    >>> print(fx.GraphModule(root, Inlining().trace(root)).code.strip())
    def forward(self, input):
        input_1 = input
        relu = torch.nn.functional.relu(input_1, inplace = False);  input_1 = None
        return relu
    """

    _state_class: type[TraceState] = TraceState
    follows_training: bool = True
    """True if operations that take the training flag of a module read it when they run; false to fix it."""

    def __init__(
        self,
        autowrap_modules: tuple[ModuleType, ...] = (math,),
        autowrap_functions: tuple[Callable[..., Any], ...] = (),
        param_shapes_constant: bool = False,
    ) -> None:
        """Create a tracer that can trace any number of programs, one after the other.

        Args:
            autowrap_modules: modules of Python functions that are recorded whole when called with a traced value.
            autowrap_functions: more such functions.
            param_shapes_constant: true to make shapes of parameters real numbers while tracing, not traced values.
        """
        super().__init__()
        functions: dict[int, Any] = {}
        what = "autowrap_modules of a Tracer are modules of Python functions"
        autowrap_modules = expect_all(autowrap_modules, inspect.ismodule, what, error=TraceError)
        what = "autowrap_functions of a Tracer are functions"
        autowrap_functions = expect_all(autowrap_functions, callable, what, error=TraceError)
        for module in autowrap_modules:
            members = () if module is math else list(module.__dict__.items())
            functions_held = (behind_recording(value) for name, value in members if name[:1] != "_" and callable(value))
            functions.update(MATH if module is math else ((id(value), value) for value in functions_held))
        functions.update((id(function), function) for function in (*autowrap_functions, *remote_calls()))
        self._autowrap_functions: dict[int, Any] = functions
        self._autowrap_search: list[ModuleType] = list(autowrap_modules)
        self.param_shapes_constant = param_shapes_constant
        self.num_calls: dict[str, int] = {}
        self._leaf_kinds: dict[type, bool] = {}
        self._state = TraceState()

    # Methods to override.

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        """Return whether a call of ``m`` becomes one node. By default ``torch.nn`` modules do, ``Sequential`` does not.

        Modules that a backend made from a part of a program do too: their classes give the reason in ``_leaf_reason``.
        So do the modules that ``torch.compile`` or ``torch.jit`` made, which cannot run on traced values.
        """
        is_leaf = self._leaf_kinds.get(type(m))
        if is_leaf is None:
            expect(m, torch.nn.Module, "is_leaf_module takes a module", error=TraceError)
            of_torch = m.__module__.startswith(("torch.nn", "torch.ao.nn")) and not isinstance(m, torch.nn.Sequential)
            is_leaf = self._leaf_kinds[type(m)] = of_torch or hasattr(type(m), "_leaf_reason") or _is_compiled(m)
        return is_leaf

    def call_module(
        self, m: torch.nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the result of a call of the submodule ``m``: a proxy for a leaf, else ``forward(*args, **kwargs)``.

        Args:
            m: the called module.
            forward: runs the module as if it were not traced from outside.
            args: positional arguments of the call.
            kwargs: keyword arguments of the call.
        """
        state = self._state
        try:
            path = self.path_of_module(m)
        except ForeignModuleError as error:
            if m._modules and not (m._parameters or m._buffers or self.is_leaf_module(m, "")):
                return forward(*args, **kwargs)  # self.layers[:2](x): its layers have paths of their own
            if state.flags is None or m._parameters or m._buffers or m._modules:
                raise
            return state.flags.with_foreign(error, lambda: forward(*args, **kwargs))  # nn.ReLU()(x)
        outer = self.module_stack
        count = self.num_calls.get(path, 0)
        self.num_calls[path] = count + 1
        self.module_stack = {**outer, f"{path}@{count}" if count else path: (path, type(m))}
        try:
            is_leaf = self.is_leaf_module(m, path)
            if is_leaf and state.modules is not None:
                state.modules.expect_own_hooks(m)
            if is_leaf and (m._forward_hooks or m._forward_pre_hooks):
                is_leaf = not self._is_opened(m)
            if state.body is not None and is_leaf:
                is_leaf = not higher_order_calls.is_opened_in_body(self, m)
            if is_leaf or m._backward_hooks or m._backward_pre_hooks:
                if state.flags is not None and state.flags.watches_leaves:
                    state.flags.leaf_called(m)
                if state.body is not None:
                    called = self.proxy(state.body.fetched(path))
                    return self.create_proxy("call_method", "__call__", (called, *args), kwargs)
                return self.create_proxy("call_module", path, args, kwargs)
            if awaits_input(m):
                raise self._refusal(
                    f"cannot trace through {type(m).__name__}, which has no parameters yet",
                    where=caller_location(self),
                    why="they get their shapes from the first input, when the module runs",
                    remedy="call the model on an input before it is captured, or make the module a leaf",
                )
            scope = self.scope
            around = scope.module_path, scope.module_type
            scope.module_path, scope.module_type = path, type(m)
            try:
                return forward(*args, **kwargs)
            finally:
                scope.module_path, scope.module_type = around
        finally:
            self.module_stack = outer

    def _is_opened(self, module: torch.nn.Module) -> bool:
        """Return whether a leaf is traced through, because its hooks leave a result that the traced code may read."""
        state = self._state
        if state.modules is None or _is_compiled(module):
            return False
        read = state.modules.facts.read
        opened = leaves_something(module, self.submodule_paths or {}, state.modules.held, read)
        if opened and state.flags is not None:
            state.flags.opened.add(id(module))
        return opened

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Return the value of ``module.attr`` while tracing: one proxy for each parameter, else the attribute's value.

        Args:
            attr: name of the attribute.
            attr_val: its value.
            parameter_proxy_cache: proxies made before, by path.
        """
        if isinstance(attr_val, torch.nn.Module):
            return attr_val
        if isinstance(attr_val, torch.nn.Parameter):
            path = self._parameters().get(id(attr_val))
            return attr_val if path is None else self._cached_proxy(path, attr_val, parameter_proxy_cache)
        if self.proxy_buffer_attributes and isinstance(attr_val, torch.Tensor):
            entry = self._attributes().get(id(attr_val))
            return attr_val if entry is None else self._cached_proxy(entry[1], None, parameter_proxy_cache)
        return attr_val

    def _cached_proxy(self, path: str, parameter: torch.Tensor | None, cache: dict[str, Any]) -> Any:
        if path not in cache:
            factory: dict[str, Any] = {}  # tracers of users may have a create_proxy without that parameter
            if self.param_shapes_constant and parameter is not None:
                factory["proxy_factory_fn"] = lambda node: ParameterProxy(self, node, path, parameter)
            with outermost(self):
                cache[path] = self.create_proxy("get_attr", path, (), {}, **factory)
        return cache[path]

    @property
    def _opens_programs(self) -> bool:
        """True if calls of captured programs below the root are traced through."""
        return type(self).is_leaf_module is Tracer.is_leaf_module

    def _node_of(self, proxy: Proxy) -> Node:
        node = proxy.node
        if node.graph is not self.graph and not self._state.is_finished and proxy.tracer is self:
            body_input = None if self._state.body is None else self._state.body.input_for(node)
            if body_input is None:
                raise escaped(self, proxy, caller_location(self))
            return body_input
        return super()._node_of(proxy)

    def create_args_for_root(
        self,
        root_fn: Callable[..., Any],
        is_module: bool,
        concrete_args: dict[str, Any] | tuple[Any, ...] | None = None,
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Make the placeholders for the parameters of the root.

        Returns:
            The function to call and the arguments to call it with.
        """
        return Signature(root_fn, is_module).make_placeholders(self, concrete_args)

    @property
    def node_name_to_scope(self) -> dict[str, tuple[str, Any]]:
        """The path and class of the module in which each node was made; empty path and None for the root."""
        scopes: dict[str, tuple[str, Any]] = {}
        for node in self.graph.nodes:
            stack = node.meta.get("nn_module_stack")
            scopes[node.name] = next(reversed(stack.values())) if stack else ("", None)
        return scopes

    # The trace.

    def trace(
        self,
        root: Root,
        concrete_args: dict[str, Any] | tuple[Any, ...] | None = None,
        example_inputs: tuple[Any, ...] | list[Any] | Mapping[str, Any] | None = None,
    ) -> Graph:
        """Run ``root`` on proxies and return the recorded graph. ``root`` itself is left unchanged.

        It runs a second time if it calls a Python class (``int(x.shape[0])``) or a method of a concrete tensor with a
        traced value, or if it needs an optional input. So it does if its byte code does not show whether an optional
        input makes a difference. It is never run a third time.

        Args:
            root: a module, or a Python function.
            concrete_args: values for some of its parameters, by name or as a tuple of all, that the program is
                specialized to; ``PH`` in a structure marks what stays an input.
            example_inputs: the inputs of a call, in a tuple or by name. Queries of shapes, dtypes, lengths and the like
                are answered for them, without computing, and the program checks each answer when it runs.

        Returns:
            The graph; ``GraphModule(tracer.root, graph)`` runs it.

        Raises:
            TraceError: the program cannot be captured; the message names the user's line.
        """
        fake_mode = None if example_inputs is None else fake_mode_for(example_inputs)
        first = self._state_class(self, examples=example_inputs, fake_mode=fake_mode)
        try:
            graph = self._trace(root, concrete_args, first)
        except Exception as error:
            if (needs := first.needs_after(error)) is None:
                raise
            refused = error
        else:
            needs = first.needs_to_compare()
            return graph if needs is None else self._compared(graph, root, concrete_args, first.again(needs))
        try:
            return self._trace(root, concrete_args, first.again(needs))
        except Exception as error:
            if isinstance(error, TraceError) and not needs.optional_inputs:
                note_other_run(error, refused, "without calls of Python's classes recorded")
                raise
            note_other_run(refused, error, needs.how)
            raise refused from refused.__cause__ or error

    def proxy(self, node: Node) -> Proxy:
        """Return the proxy for a node."""
        state = self._state
        if state.guide is not None:
            return GuidedProxy(node, self)
        proxy = _new(Proxy)  # without the checks of arguments that users pass
        proxy.node, proxy.tracer = node, self
        return proxy

    def _compared(self, left_out: Graph, root: Root, concrete_args: ConcreteArgs, state: TraceState) -> Graph:
        """Run the program with inputs that were left out, and return that graph if they make no other difference."""
        before = dict(vars(self))
        with suppress(Exception):
            graph = self._trace(root, concrete_args, state)
            if same_but_for(state.needs.unchecked, left_out, graph):
                return graph
        vars(self).update(before)
        return left_out

    def _trace(self, root: Root, concrete_args: ConcreteArgs, state: TraceState) -> Graph:
        """Run ``root`` once, and again if it has changed a value that it may have read before."""
        leave_ended()
        forget_ended()
        forget_traced_values()
        function = self._start(root, state)
        paths = self.submodule_paths or {}
        behind = function_called(function)
        state.modules = modules = Record(paths, [behind] if isinstance(behind, FunctionType) else ())
        lost: Proxy | None = None
        references = sys.getrefcount(self)  # each traced value has one
        try:
            self._run(root, function, concrete_args, modules)
            changes = modules.find_changes()
            expect_nothing_drawn(modules, paths)
            expect_parameters_kept(modules, paths)
            if changes := self._of_the_program(changes):
                expect_leaves_kept(changes, self.graph, self.submodule_paths or {})
                if visible := state.assigned.seen_by_next_call(changes, modules.changed_holders()):
                    self._run_again(root, concrete_args, state, visible)
        except BaseException:
            state.has_raised = True  # its remnants may be freed at any time, and their references with them
            raise
        finally:
            try:
                lost = self._finish(modules)
            finally:
                self._finish(modules)  # the first call may have been interrupted
            state.drop()
            is_held = state.has_raised or sys.getrefcount(self) != references
            if is_held or state.fake_mode is not None:
                modules.clean()
            remnants = leftovers.take_out_traced(self) if is_held else []
        expect_none_stuck([*modules.stuck, *remnants])
        if lost is not None:
            raise TraceError(
                "cannot assign a traced value to a buffer or parameter of a module",
                where=lost.node.source,
                value=describe(lost.node),
                why="a captured program has no assignment to attributes, so the update would be lost",
                remedy="write in place (self.buffer.copy_(value)), or make the module a leaf",
            )
        return self.graph

    def _of_the_program(self, changes: list[Change]) -> list[Change]:
        """Leave out the modules that a client's own ``path_of_module`` has put into the root, which the graph holds."""
        if not changes or type(self).path_of_module is Tracer.path_of_module:
            return changes
        called = {node.target for node in self.graph.nodes if node.op == "call_module"}
        put = [name for owner, name in changes if owner is self.root and name in called and _is_submodule(owner, name)]
        self.graph.constants.update((name, self.root._modules[name]) for name in put)
        return [(owner, name) for owner, name in changes if owner is not self.root or name not in put]

    def _run_again(self, root: Root, concrete_args: ConcreteArgs, state: TraceState, changes: list[Change]) -> None:
        """Run the program again on what it left in its modules: it must do the same, as a graph has no memory.

        Raises:
            TraceError: it does not, or has been run twice already.
        """
        first, cause = self.graph, None
        if state.needs is not NO_NEEDS:  # this is the second run
            raise dependence_on_earlier_call(changes, self.submodule_paths or (), state.needs.how)
        state.is_verified = True
        try:
            if state.modules is not None and not any(_is_submodule(owner, name) for owner, name in changes):
                again = state.again(state.needs)
                again.modules = state.modules
                self._run(root, self._start(root, again), concrete_args, state.modules)
                if same_program(first, self.graph):
                    return
        except Exception as error:  # among them: a traced value of the first run was left
            cause = error
        raise dependence_on_earlier_call(changes, self.submodule_paths or ()) from cause

    def _run(self, root: Root, function: Callable[..., Any], concrete_args: ConcreteArgs, modules: Record) -> None:
        state, around = self._state, modules.facts
        state.modes = Modes(self)
        state.flags = flags = TrainingFlags(self, self.follows_training and not around.compares_with_truth)

        def program(trace: Trace) -> None:
            state.is_tracing = True
            modules.keep_until_restored(trace)
            state.real = RealTensors(self, state.modes, trace.is_running, replaces_methods=state.needs.calls)
            enter(state.real)
            state.replace_functions(trace, function_called(function))
            exceptions = state.exceptions = HandledExceptions(trace, self, around.handling) if around.handling else None
            if state.fake_mode is not None:
                state.guide = Guide(self, bound(function, root, state.examples), state.fake_mode)
            called, args = self._inputs(function, isinstance(root, torch.nn.Module), concrete_args)
            if isinstance(root, torch.nn.Module):
                flags.start()
            if isinstance(root, torch.nn.Module) and args and args[0] is root:
                called = with_hooks(root, called, self)
            value = called(*args) if exceptions is None else exceptions.watch(called, args)
            # No call has taken these elements: the program does something else with them.
            if state.spread_shapes:
                raise state.spread_shapes[0].refused()
            state.returned_by = function
            state.makes_output = True
            returned = self.create_arg(value)
            returned_kind = evaluated_annotations(inspect.unwrap(called)).get("return")
            self.create_node("output", "output", (returned,), {}, type_expr=returned_kind)
            if state.guide is not None:
                state.guide.expect_containers_kept(user_location(None, {}))
            state.simplify()
            for node in state.augmented if self.check_mutable_operations else ():
                if not node._erased:
                    self._refuse_write(node)
            flags.drop_unused()
            flags.expect_kept()

        try:
            patching.run(state, lambda trace: modules.context.run(program, trace))
            if state.refused is not None:  # the traced program caught it, and went on with a different branch
                raise state.refused
        except Exception as error:
            if state.spread_shapes and not isinstance(error, TraceError):
                raise state.spread_shapes[0].refused() from error
            explain_misuse(error, getattr(function, "__code__", None))
            raise
        finally:
            leave_ended()
            state.trace = None
            state.is_finished = True
            state.modes.restore()

    def _finish(self, modules: Record) -> Proxy | None:
        """Restore the state before the trace. Call it again if the exception of a signal handler interrupts it."""
        leave_ended()
        forget_ended()
        self._state = TraceState()
        self._state.is_finished = True
        self.submodule_paths = None
        return modules.restore()

    def _inputs(
        self, function: Callable[..., Any], is_module: bool, concrete_args: ConcreteArgs
    ) -> tuple[Callable[..., Any], list[Any]]:
        self._state.returned_by = function  # for a default value that no node can hold
        try:
            return self.create_args_for_root(function, is_module, concrete_args)
        except RecursionError as failure:
            raise explained(failure, concrete_args, TraceError) from None
        finally:
            self._state.returned_by = None

    def _start(self, root: Root, state: TraceState) -> Callable[..., Any]:
        self._state = state
        self.graph = Graph(tracer_cls=type(self))
        self.num_calls = {}
        self.module_stack = {}
        self.scope = Scope("", None)
        if isinstance(root, torch.nn.Module):
            self.root = root
            self.root_module_name = root._get_name()
            self.submodule_paths = paths_below(root)
            function = own_method(root, self.traced_func_name)
            if function is None:
                raise TraceError(
                    f"{type(root).__name__} has no method {self.traced_func_name!r} to trace",
                    remedy="set traced_func_name of the tracer to a method that it has",
                )
            return function
        self.root = torch.nn.Module()
        self.root_module_name = ""
        self.submodule_paths = {}
        if not isinstance(root, FunctionType) and (calling := function_calling(root)) is not None:
            return calling
        if not isinstance(root, FunctionType):
            raise not_traceable(root)
        return root

    def __deepcopy__(self, memo: dict[int, Any]) -> Tracer:
        """Return a tracer with the same settings and results; modules of functions are shared."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        shared = {"_autowrap_search", "_autowrap_functions", "root", "_state"}
        for name, value in self.__dict__.items():
            copied.__dict__[name] = value if name in shared else copy.deepcopy(value, memo)
        return copied


def _is_submodule(owner: torch.nn.Module | FunctionType, name: str) -> bool:
    child = vars(owner)["_modules"].get(name) if isinstance(owner, torch.nn.Module) else None
    return isinstance(child, torch.nn.Module)


def _is_compiled(module: torch.nn.Module) -> bool:
    optimized = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ())
    return isinstance(module, (torch.jit.ScriptModule, optimized))


def is_fx_tracing() -> bool:
    """Return whether the calling thread is capturing a program."""
    return patching.is_tracing()


is_fx_symbolic_tracing = is_fx_tracing


def symbolic_trace(
    root: Root,
    concrete_args: dict[str, Any] | tuple[Any, ...] | None = None,
    example_inputs: tuple[Any, ...] | list[Any] | Mapping[str, Any] | None = None,
) -> GraphModule:
    """Capture a module or function as a ``GraphModule`` (paper, figure 1).

    >>> import torch, fx
    >>> for node in fx.symbolic_trace(lambda x: torch.relu(x).neg()).graph.nodes:
    ...     print(node.name, node.op)
    x placeholder
    relu call_function
    neg call_method
    output output

    Args:
        root: the program.
        concrete_args: values for some of its parameters; see ``Tracer.trace``.
        example_inputs: the inputs of a call, for which queries of shapes, dtypes and lengths are
            answered; ``guards`` of the result lists the answers, and a call that breaks one raises ``GuardError``.

    Raises:
        TraceError: the program cannot be captured.
    """
    tracer = Tracer()
    graph = tracer.trace(root, concrete_args, example_inputs)
    kind = type(root).__name__
    name = kind if isinstance(root, torch.nn.Module) else getattr(root, "__name__", kind)
    return GraphModule.of_capture(tracer.root, graph, name, keeps_state=True)


for _entrance in (Tracer.trace, symbolic_trace):
    not_compiled(_entrance)
boundary(Tracer.trace)
