"""Operations of the traced code on real tensors: buffers, parameters, and tensors that the code makes.

- Operations on a module's own tensors are recorded, so that the program follows their changes. They are also computed,
  as long as nothing has been written, so that shapes and lengths are real numbers.
- A tensor made from constants only is computed now, and is a constant of the program. If a traced value or a random
  number is written to it, all that led to it is recorded.
- Random numbers are recorded and never drawn.
- Writes to tensors that existed before the trace are recorded and never carried out.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import CodeType, FunctionType
from typing import Any, cast

import torch
from torch.overrides import TorchFunctionMode

from fx.assertions import check_value
from fx.bytecode.values import behind
from fx.capture.guided import GuidedAttribute, GuidedProxy
from fx.capture.leaf_calls import find_proxy
from fx.capture.modes import Modes, enter_autocast, exit_autocast, set_grad_enabled
from fx.container_kinds import leaves_of
from fx.frames import callers, user_location
from fx.graph import Graph
from fx.node import Node
from fx.operators.effect_rules import Effect, changes_layout, find_rule
from fx.operators.python import OPERATORS
from fx.operators.sharing import attribute_kind
from fx.operators.tensor_queries import METHODS, names_of
from fx.proxy import IMMEDIATE_TYPES, Attribute, ParameterProxy, Proxy, TracerBase, is_tensor_method

_torch: Any = torch
_UNWRITTEN = frozenset({"__repr__", "__format__", "untyped_storage", "type"}).union(
    row.name for row in METHODS.values() if row.reads not in ("value", "values")
)
"""Methods whose result does not change by a write."""
_OF_SIZES = names_of("sizes", "memory") | {"__len__"}
_DATA_DEPENDENT_SHAPE = frozenset(
    "argwhere bincount masked_select nonzero repeat_interleave unique unique_consecutive where".split()
)
"""Functions whose result has a shape that depends on the values."""
_OF_EAGER = frozenset("__reduce_ex__ __deepcopy__ __dlpack__ numpy __array__".split())
_AUGMENTED = frozenset(f"__{row.method}__" for row in OPERATORS if row.in_place)
_QUICK = IMMEDIATE_TYPES | {Proxy}
_PLAIN = (Proxy, Attribute, ParameterProxy, GuidedProxy, GuidedAttribute)
_MOST_VALUES = 256
"""The maximal number of elements of a tensor that the traced code may read as a list."""


class _Call:
    """A call of a torch function, or of a method of tensors, by the traced code."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], graph: Graph) -> None:
        """Create a call that has not been carried out yet; ``graph`` is the current graph."""
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.graph = graph
        self.name: str = getattr(function, "__name__", "")
        self.result: Any = None
        """The result of the call, once it has been carried out."""

    @property
    def attribute(self) -> str | None:
        """The attribute of a tensor that is read or set: reading ``x.shape`` calls ``__get__`` of a descriptor."""
        return self.function.__self__.__name__ if self.name in ("__get__", "__set__") else None

    @functools.cached_property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among its arguments."""
        return list(_tensors((self.args, self.kwargs)))

    @functools.cached_property
    def effect(self) -> Effect | None:
        """Its effect besides its result."""
        if self.name == "__get__":
            return None
        rule = find_rule(self.name if is_tensor_method(self.function) else self.function)
        return rule if rule is None or isinstance(rule, Effect) else rule(self.args, self.kwargs)

    @functools.cached_property
    def written(self) -> tuple[torch.Tensor, ...]:
        """The tensors that it writes to."""
        if self.name == "__set__" and isinstance(self.args[0], torch.Tensor):  # y.data = x
            return self.args[:1]
        if not self.tensors or self.effect is None or self.effect.kind != "write":
            return ()
        place = self.effect.written
        if place is None:
            return tuple(self.tensors)
        is_given = isinstance(place, int) and place < len(self.args)
        value = self.args[place] if is_given else self.kwargs.get(place)  # type: ignore[call-overload, index]
        return tuple(self.tensors if value is None else _tensors(value))

    @property
    def draws(self) -> bool:
        """True if it draws random numbers."""
        return self.effect is not None and (self.effect.kind == "random" or self.effect.draws)

    @property
    def resizes(self) -> bool:
        """True if it may change the sizes of a tensor that it writes to."""
        return "out" in self.kwargs or self.name == "__set__" or changes_layout(self.name)

    def run(self) -> Any:
        """Carry it out."""
        self.result = self.function(*self.args, **self.kwargs)
        return self.result

    def returns_argument(self) -> bool:
        """Return whether its result is one of its arguments."""
        return any(self.result is argument for argument in self.tensors)


def _methods_of_clients(tracer: type) -> frozenset[CodeType]:
    """Return the code of a client's own ``create_proxy``: its computations on a node are not part of the program."""
    methods = [vars(kind)["create_proxy"] for kind in tracer.__mro__ if "create_proxy" in vars(kind)]
    own = [method for method in methods if isinstance(method, FunctionType) and not method.__module__.startswith("fx.")]
    return frozenset(method.__code__ for method in own)


class RealTensors(TorchFunctionMode):
    """Intercepts all operations of the traced code on tensors. After the end of the trace, it does nothing.

    A trace pushes it onto the stack of modes, and :func:`leave_ended` pops it.
    """

    def __init__(
        self, tracer: TracerBase, modes: Modes, is_tracing: Callable[[], bool], *, replaces_methods: bool = False
    ) -> None:
        """Create the mode of one trace; ``replaces_methods`` is true if calls of methods of tensors are recorded."""
        super().__init__()
        self._replaces_methods = replaces_methods
        self._tracer = tracer
        self._modes = modes
        self.is_tracing = is_tracing
        self._recorded: dict[int, tuple[torch.Tensor, Node]] = {}
        self._calls: list[_Call] = []
        self._made: dict[int, torch.Tensor] = {}
        self._fixed: dict[int, torch.Tensor] = {}
        self._stale: dict[int, torch.Tensor] = {}
        self._resized: dict[int, torch.Tensor] = {}
        """Tensors that have other sizes in the program, which carries out the write that sets them."""
        self._nodes: list[Node] = []
        self._of_clients = _methods_of_clients(type(tracer))

    # Queries of the tracer.

    def node_of(self, tensor: torch.Tensor) -> Node | None:
        """Return the node that computes a tensor which the traced code made from recorded ones."""
        entry = self._recorded.get(id(tensor))
        return None if entry is None or entry[1]._erased else entry[1]

    def takes_part(self, arguments: Any) -> bool:
        """Return whether operations on a tensor among the arguments are recorded."""
        return any(map(self._is_kept, _tensors(arguments)))

    def is_constant(self, tensor: torch.Tensor) -> None:
        """Note that a node uses a tensor as a constant: its contents must not change from now on."""
        self._fixed[id(tensor)] = tensor

    def is_written(self, tensor: torch.Tensor) -> None:
        """Note that a node writes to a tensor: its contents are known at run time only."""
        self._stale[id(tensor)] = tensor

    def drop_unused(self) -> None:
        """Remove unused nodes that were recorded in case of use: reads, and results of real tensors only."""
        for node in reversed(self._nodes):
            unused = [node]
            for candidate in unused:
                if not candidate._erased and not candidate.users and not candidate.is_impure():
                    unused += [operand for operand in candidate.all_input_nodes if operand.op == "get_attr"]
                    candidate.graph.erase_node(candidate)

    # Calls.

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func``, or record the call."""
        if not self.is_tracing():
            return func(*args, **(kwargs or {}))
        if self._replaces_methods:
            func = behind(func)
        if not kwargs:
            kwargs = {}
            if _QUICK.issuperset(map(type, args)) and Proxy in types:  # as most calls of traced code are
                return Proxy.__torch_function__(func, types, args, kwargs)
        if func is set_grad_enabled:
            return self._modes.set_gradients(args[0], sys._getframe(1))
        call = _Call(func, args, kwargs, self._tracer.graph)
        for kind in types:
            if issubclass(kind, Proxy):
                return self._with_traced(kind, call, types)
        if find_proxy((args, kwargs)) is not None:
            return self._with_traced(Proxy, call, types)
        if self._of_clients and any(frame.f_code in self._of_clients for frame in callers(sys._getframe())):
            return call.run()
        return self._with_real(call)

    def _with_traced(self, kind: Any, call: _Call, types: Any) -> Any:
        """Record a call that takes a traced value."""
        self._will_write(call)
        if kind not in _PLAIN:
            return call.run()
        if call.name in _AUGMENTED and call.written:
            self._record(call)
            return call.args[0]
        return kind.__torch_function__(call.function, types, call.args, call.kwargs)

    def _with_real(self, call: _Call) -> Any:
        """Carry out a call, record it, or both."""
        name, attribute = call.name, call.attribute
        if call.args and id(call.args[0]) in self._resized and (attribute or name) in _OF_SIZES:
            return len(self._traced(call.args[0])) if name == "__len__" else self._record(call)
        if name in _UNWRITTEN or (name == "__get__" and attribute_kind(attribute) == "number"):
            return call.run()
        recorded = [tensor for tensor in call.tensors if self._is_kept(tensor)]
        if name == "__set__":
            return self._set(call, recorded)
        if call.function in (enter_autocast, exit_autocast):
            return self._record(call)
        if call.written:
            if call.draws or recorded or not all(map(self._may_be_written, call.written)):
                return self._write(call)
        elif call.draws or (recorded and not self._can_compute(call, recorded)):
            return self._record(call)
        elif recorded:
            return self._compute(call)
        results = list(_tensors(call.run()))
        if results or call.written:
            self._calls.append(call)
            self._made.update((id(tensor), tensor) for tensor in results)
        return call.result

    def _is_kept(self, tensor: torch.Tensor) -> bool:
        """Return whether operations on a tensor are recorded."""
        return id(tensor) in self._recorded or self._tracer._is_state(tensor) or self._is_stale(tensor)

    def _is_stale(self, tensor: torch.Tensor) -> bool:
        return bool(self._stale) and share_memory(tensor, self._stale)

    def _may_be_written(self, tensor: torch.Tensor) -> bool:
        """Return whether a write can be carried out: the traced code made the tensor, and no node uses it yet."""
        return id(tensor) in self._made and not (self._fixed and share_memory(tensor, self._fixed))

    def _can_compute(self, call: _Call, recorded: list[torch.Tensor]) -> bool:
        """Return whether a recorded call may also be carried out, to get the shape of its result."""
        if (call.effect is not None and call.effect.kind != "check") or any(map(self._is_stale, recorded)):
            return False
        if call.name == "__getitem__":
            return not any(index.dtype in (torch.bool, torch.uint8) for index in _tensors(call.args[1]))
        return call.name not in _DATA_DEPENDENT_SHAPE or (call.name == "where" and len(call.args) > 1)

    def _compute(self, call: _Call) -> Any:
        """Carry out a call on recorded tensors, and record it."""
        if next(_tensors(call.run()), None) is None:
            return self._read_values(call)
        result = torch.ops.aten.alias(call.result) if call.returns_argument() else call.result
        recorded = self._record(call)
        return result if self._know(result, recorded) else recorded

    def _know(self, result: Any, recorded: Proxy) -> bool:
        """Note the nodes of the tensors in a call's result; return whether the result has nothing else."""
        if isinstance(result, torch.Tensor):
            self._recorded[id(result)] = (result, recorded.node)
            return True
        if not isinstance(result, (tuple, list)):
            return False
        elements = list(enumerate(cast("list[Any]", result)))
        are_known = [
            self._know(element, self.element(recorded, place))
            for place, element in elements
            if isinstance(element, torch.Tensor)
        ]
        return len(are_known) == len(elements)

    def element(self, whole: Proxy, key: Any) -> Proxy:
        """Return an element of a value; its node is removed if unused."""
        return self.noted(whole[key])  # type: ignore[index]

    def noted(self, proxy: Proxy) -> Proxy:
        """Note that the node of a value is to be removed if unused, and return the value."""
        self._nodes.append(proxy.node)
        return proxy

    def _read_values(self, call: _Call) -> Any:
        """Return numbers that the traced code reads from recorded tensors; the program checks that they stay equal."""
        read, value = call, call.result
        if call.name in METHODS and METHODS[call.name].reads == "value":
            read, value = _Call(torch.Tensor.item, call.args[:1], {}, call.graph), call.args[0].item()
        if call.name in _OF_EAGER or not _is_plain(value):
            raise self._tracer._refusal(
                "cannot read the values of a tensor of the module while it is captured",
                where=_here(),
                value=f"{call.name} gives {type(call.result).__name__}",
                why="they would be constants of the program, whatever the tensor holds later",
                remedy="compute it with functions of torch, or put the line in a function marked fx.wrap",
            )
        message = f"the program was captured where this was {value!r}: {_here()}"
        self._tracer.create_proxy("call_function", check_value, (self._record(read), value, message), {})
        return call.result

    # Writes.

    def _write(self, call: _Call) -> Any:
        """Record a write to tensors that the program keeps."""
        if changes_layout(call.name) and any(map(self._tracer._is_state, call.written)):
            raise self._tracer._refusal(
                "cannot change the layout of a tensor of the module while it is captured",
                where=_here(),
                value=call.name,
                why="later operations would see the old layout",
                remedy="use the function that returns a new tensor, or make the module a leaf",
            )
        self._will_write(call)
        recorded = self._record(call)
        return call.args[0] if call.name in _AUGMENTED else None if call.name == "__setitem__" else recorded

    def _set(self, call: _Call, recorded: list[torch.Tensor]) -> Any:
        """Set an attribute of a tensor, such as ``requires_grad`` or ``data``."""
        if recorded or id(call.args[0]) not in self._made:
            raise self._tracer._refusal(
                f"cannot set {call.attribute} of a tensor of the module while it is captured",
                where=_here(),
                value=f"a tensor of shape {tuple(call.args[0].shape)}",
                why="a captured program has no assignment to attributes, so it would be lost",
                remedy="write in place (copy_, requires_grad_), or make the module a leaf",
            )
        return call.run()

    def _will_write(self, call: _Call) -> None:
        """Record the history of tensors that a call is about to write to, and note whether it changes their sizes."""
        for tensor in call.written:
            self._record_history(tensor)
            if call.resizes:
                self._resized[id(tensor)] = tensor

    def _record_history(self, tensor: torch.Tensor) -> None:
        """Record all that led to a tensor which is about to be written to, unless the program has it already."""
        body = self._tracer._state.body
        if id(tensor) in self._made and id(tensor) not in self._recorded:
            for call in self._history(tensor):
                with nullcontext() if body is None else body.within(call.graph):
                    self._replay(call)
        self._stale[id(tensor)] = tensor

    def _history(self, tensor: torch.Tensor) -> list[_Call]:
        """Return the calls that a tensor's memory results from, and those that look at that memory, in order."""
        needed, numbers = {id(tensor): tensor}, set[int]()
        grows = True
        while grows:
            grows = False
            for number in reversed(range(len(self._calls))):
                call = self._calls[number]
                results = (*_tensors(call.result), *call.written)
                if number not in numbers and any(share_memory(result, needed) for result in results):
                    numbers.add(number)
                    grows = True
                    operands = [value for value in call.tensors if id(value) in self._made]
                    needed.update((id(value), value) for value in (*results, *operands))
        calls = [self._calls[number] for number in sorted(numbers)]
        self._calls = [call for number, call in enumerate(self._calls) if number not in numbers]
        return calls

    def _replay(self, call: _Call) -> None:
        recorded = self._record(call)
        if not call.returns_argument():
            self._know(call.result, recorded)

    # Nodes.

    def _record(self, call: _Call) -> Proxy:
        """Return the proxy of a new node for a call."""
        name, func, args, kwargs = call.name, call.function, call.args, call.kwargs
        if name == "__get__":
            func, args = getattr, (args[0], func.__self__.__name__)
        elif name == "__setitem__":
            func = operator.setitem
        elif is_tensor_method(func) and args and isinstance(args[0], (torch.Tensor, Proxy)):
            first = args[0] if isinstance(args[0], Proxy) else self._traced(args[0])
            if name in _AUGMENTED:
                name = f"{name[3:-2]}_" if hasattr(torch.Tensor, f"{name[3:-2]}_") else name
            return self.noted(getattr(first, name)(*args[1:], **kwargs))
        return self.noted(self._tracer.create_proxy("call_function", func, args, kwargs))

    def _traced(self, tensor: torch.Tensor) -> Proxy:
        node = self.node_of(tensor)
        if node is None:
            node = self._tracer.create_arg(tensor)
            self._nodes.append(node)
        return self._tracer.proxy(node)


def leave_ended() -> None:
    """Pop the modes of ended traces from the stack of the calling thread, as long as they are innermost."""
    while count := _torch._C._len_torch_function_stack():
        mode = _torch._C._get_function_stack_at(count - 1)
        if not isinstance(mode, RealTensors) or mode.is_tracing():
            break
        _torch._C._pop_torch_function_stack()


def enter(mode: RealTensors) -> None:
    """Push the mode of a trace onto the stack of the calling thread."""
    _torch._C._push_on_torch_function_stack(mode)


def share_memory(tensor: torch.Tensor, others: dict[int, torch.Tensor]) -> bool:
    """Return whether a tensor is one of ``others``, a dict by identity, or shares memory with one of them."""
    return id(tensor) in others or any(_torch._C._is_alias_of(tensor, other) for other in others.values())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value."""
    return (leaf for leaf in leaves_of(value) if isinstance(leaf, torch.Tensor))


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= _MOST_VALUES and all(map(_is_plain, value))
    return isinstance(value, (bool, int, float))


def _here() -> Any:
    return user_location(sys._getframe(1), {})
