"""What the traced code does with tensors that are not traced values: buffers, parameters, and tensors that it makes.

Operations on a module's own tensors are recorded, so that the program follows them, and computed beside that where
nothing has been written yet, so that shapes and lengths are real numbers. What is made of constants alone is computed
now, and is a constant of the program, unless a traced value or a random number is written to it: then all that led to
it is recorded. Random numbers are recorded and never drawn; writes to what existed before the trace are recorded and
never carried out.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, cast

import torch
from torch.overrides import TorchFunctionMode

from fx.assertions import check_value
from fx.capture.bodies import within
from fx.capture.guided import GuidedAttribute, GuidedProxy
from fx.capture.modes import Modes
from fx.capture.python_functions import behind_method
from fx.capture.whole_calls import find_proxy
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
"""Methods that tell what a write leaves as it is."""
_OF_SIZES = names_of("sizes", "memory") | {"__len__"}
_OF_VALUES = frozenset(
    "argwhere bincount masked_select nonzero repeat_interleave unique unique_consecutive where".split()
)
"""Functions whose result has a shape that depends on the values."""
_OF_EAGER = frozenset("__reduce_ex__ __deepcopy__ __dlpack__ numpy __array__".split())
_AUTOCAST = (_torch.amp._enter_autocast, _torch.amp._exit_autocast)
_set_grad_enabled: Any = _torch._C._set_grad_enabled
_AUGMENTED = frozenset(f"__{row.method}__" for row in OPERATORS if row.in_place)
_QUICK = IMMEDIATE_TYPES | {Proxy}
_PLAIN = (Proxy, Attribute, ParameterProxy, GuidedProxy, GuidedAttribute)
_MOST_VALUES = 256
"""How many numbers of a tensor the traced code may read as a list."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call whose arguments hold constants alone, and which was carried out."""

    function: Any
    """What was called."""
    args: tuple[Any, ...]
    """Its positional arguments."""
    kwargs: dict[str, Any]
    """Its keyword arguments."""
    result: Any
    """What it returned."""
    written: tuple[torch.Tensor, ...]
    """The arguments that it wrote to."""
    graph: Graph
    """The graph that nodes went into then."""


def _methods_of_clients(tracer: type) -> frozenset[CodeType]:
    """The code of a client's own ``create_proxy``: what it computes to learn of a node is not part of the program."""
    methods = [vars(kind)["create_proxy"] for kind in tracer.__mro__ if "create_proxy" in vars(kind)]
    own = [one for one in methods if isinstance(one, FunctionType) and not one.__module__.startswith("fx.")]
    return frozenset(one.__code__ for one in own)


class RealTensors(TorchFunctionMode):
    """Sees all that the traced code does with tensors. Once the trace has ended, it does nothing.

    A trace pushes it onto the stack of modes, and :func:`leave_ended` takes it off.
    """

    def __init__(
        self, tracer: TracerBase, modes: Modes, is_tracing: Callable[[], bool], *, replaces_methods: bool = False
    ) -> None:
        """A mode of one trace.

        Args:
            tracer: records operations.
            modes: what it knows of modes.
            is_tracing: whether the trace is running.
            replaces_methods: whether calls of methods of tensors are recorded.
        """
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
        """Tensors whose sizes are another in the program, which carries out the write that sets them."""
        self._nodes: list[Node] = []
        self._of_clients = _methods_of_clients(type(tracer))

    # What the tracer asks.

    def node_of(self, tensor: torch.Tensor) -> Node | None:
        """The node that computes a tensor which the traced code made of recorded ones."""
        known = self._recorded.get(id(tensor))
        return None if known is None or known[1]._erased else known[1]

    def takes_part(self, arguments: Any) -> bool:
        """Return whether a tensor among the arguments of a call is one whose operations are recorded."""
        return any(map(self._is_kept, _tensors(arguments)))

    def is_constant(self, tensor: torch.Tensor) -> None:
        """Note that a node uses a tensor as a constant: from now on its contents stay."""
        self._fixed[id(tensor)] = tensor

    def is_written(self, tensor: torch.Tensor) -> None:
        """Note that a node writes to a tensor: what it holds is known at run time only."""
        self._stale[id(tensor)] = tensor

    def drop_unused(self) -> None:
        """Remove what was recorded of real tensors alone and is not used."""
        for node in reversed(self._nodes):
            unused = [node]
            for one in unused:
                if not one._erased and not one.users and not one.is_impure():
                    unused += [given for given in one.all_input_nodes if given.op == "get_attr"]
                    one.graph.erase_node(one)

    # Calls.

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func``, or record the call."""
        if not self.is_tracing():
            return func(*args, **(kwargs or {}))
        if self._replaces_methods:
            func = behind_method(func)
        if not kwargs:
            kwargs = {}
            if _QUICK.issuperset(map(type, args)) and Proxy in types:  # as most calls of traced code are
                caught = self._tracer._state.caught
                if caught is None or not caught.pause():
                    return Proxy.__torch_function__(func, types, args, kwargs)
                try:
                    return Proxy.__torch_function__(func, types, args, kwargs)
                finally:
                    caught.resume()
        if func is _set_grad_enabled:
            return self._modes.set_gradients(args[0], sys._getframe(1))
        for kind in types:
            if issubclass(kind, Proxy):
                return self._with_traced(kind, func, types, args, kwargs)
        if find_proxy((args, kwargs)) is not None:
            return self._with_traced(Proxy, func, types, args, kwargs)
        if self._of_clients and any(frame.f_code in self._of_clients for frame in callers(sys._getframe())):
            return func(*args, **kwargs)
        return self._with_real(func, args, kwargs)

    def _with_traced(self, kind: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call that a traced value takes part in."""
        real = list(_tensors((args, kwargs)))
        name = getattr(func, "__name__", "")
        written = _written_by(_effect(func, args, kwargs), args, kwargs, real) if real else ()
        if name == "__set__" and isinstance(args[0], torch.Tensor):  # y.data = x
            written = args[:1]
        self._will_write(name, written, kwargs)
        if kind not in _PLAIN:
            return func(*args, **kwargs)
        if name in _AUGMENTED and written:
            self._record(func, args, kwargs)
            return args[0]
        return kind.__torch_function__(func, types, args, kwargs)

    def _with_real(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out a call, record it, or both."""
        name = getattr(func, "__name__", "")
        # To read `x.shape` calls `__get__` of a descriptor, which is called as the attribute is.
        attribute = func.__self__.__name__ if name in ("__get__", "__set__") else None
        if args and id(args[0]) in self._resized and (attribute or name) in _OF_SIZES:
            return len(self._traced(args[0])) if name == "__len__" else self._record(func, args, kwargs)
        if name in _UNWRITTEN or (name == "__get__" and attribute_kind(attribute) == "number"):
            return func(*args, **kwargs)
        tensors = list(_tensors((args, kwargs)))
        kept = [tensor for tensor in tensors if self._is_kept(tensor)]
        if name == "__set__":
            return self._set(func, attribute, args, kept)
        effect = _effect(func, args, kwargs)
        if func in _AUTOCAST:
            return self._record(func, args, kwargs)
        written = _written_by(effect, args, kwargs, tensors)
        draws = effect is not None and (effect.kind == "random" or effect.draws)
        if written:
            if draws or kept or not all(map(self._may_be_written, written)):
                return self._write(name, func, args, kwargs, written)
        elif draws or (kept and not self._can_compute(name, effect, args, kept)):
            return self._record(func, args, kwargs)
        elif kept:
            return self._compute(name, func, args, kwargs, kept)
        result = func(*args, **kwargs)
        made = list(_tensors(result))
        if made or written:
            self._calls.append(_Call(func, args, kwargs, result, tuple(written), self._tracer.graph))
            self._made.update((id(tensor), tensor) for tensor in made)
        return result

    def _is_kept(self, tensor: torch.Tensor) -> bool:
        """Return whether what is done with a tensor is recorded."""
        return id(tensor) in self._recorded or self._tracer.is_state(tensor) or self._is_stale(tensor)

    def _is_stale(self, tensor: torch.Tensor) -> bool:
        return bool(self._stale) and share_memory(tensor, self._stale)

    def _may_be_written(self, tensor: torch.Tensor) -> bool:
        """Return whether a write can be carried out: the traced code made the tensor, and no node uses it yet."""
        return id(tensor) in self._made and not (self._fixed and share_memory(tensor, self._fixed))

    def _can_compute(self, name: str, effect: Effect | None, args: tuple[Any, ...], kept: list[torch.Tensor]) -> bool:
        """Return whether a recorded call may also be carried out, for what its result looks like."""
        if (effect is not None and effect.kind != "check") or any(map(self._is_stale, kept)):
            return False
        if name == "__getitem__":
            return not any(index.dtype in (torch.bool, torch.uint8) for index in _tensors(args[1]))
        return name not in _OF_VALUES or (name == "where" and len(args) > 1)

    def _compute(
        self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], kept: list[torch.Tensor]
    ) -> Any:
        """Carry out a call on recorded tensors, and record it."""
        result = func(*args, **kwargs)
        if next(_tensors(result), None) is None:
            return self._read_values(name, func, args, kwargs, result)
        if any(result is given for given in _tensors((args, kwargs))):
            result = torch.ops.aten.alias(result)
        recorded = self._record(func, args, kwargs)
        return result if self._know(result, recorded) else recorded

    def _know(self, result: Any, recorded: Proxy) -> bool:
        """Note which nodes compute the tensors that a call has returned; return whether they are all of its result."""
        if isinstance(result, torch.Tensor):
            self._recorded[id(result)] = (result, recorded.node)
            return True
        if not isinstance(result, (tuple, list)):
            return False
        elements = list(enumerate(cast("list[Any]", result)))
        known = [
            self._know(one, self.element(recorded, place)) for place, one in elements if isinstance(one, torch.Tensor)
        ]
        return len(known) == len(elements)

    def element(self, whole: Proxy, key: Any) -> Proxy:
        """An element of a value, whose node goes where nobody uses it."""
        return self._noted(whole[key])  # type: ignore[index]

    def _noted(self, proxy: Proxy) -> Proxy:
        self._nodes.append(proxy.node)
        return proxy

    def _read_values(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """Numbers that the traced code reads out of recorded tensors: the program checks that they still are these."""
        if name in METHODS and METHODS[name].reads == "value":
            func, args, value = torch.Tensor.item, args[:1], args[0].item()
        else:
            value = result
        if name in _OF_EAGER or not _is_plain(value):
            raise self._tracer._refusal(
                "cannot read the values of a tensor of the module while it is captured",
                where=_here(),
                value=f"{name} gives {type(result).__name__}",
                why="they would be constants of the program, whatever the tensor holds later",
                remedy="compute it with functions of torch, or put the line in a function marked fx.wrap",
            )
        found = self._record(func, args, kwargs)
        message = f"the program was captured where this was {value!r}: {_here()}"
        self._tracer.create_proxy("call_function", check_value, (found, value, message), {})
        return result

    # Writes.

    def _write(
        self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: tuple[torch.Tensor, ...]
    ) -> Any:
        """Record a write to tensors that the program keeps."""
        if changes_layout(name) and any(map(self._tracer.is_state, written)):
            raise self._tracer._refusal(
                "cannot change the layout of a tensor of the module while it is captured",
                where=_here(),
                value=name,
                why="what follows would see the tensor as it was",
                remedy="use the function that returns a new tensor, or make the module a leaf",
            )
        self._will_write(name, written, kwargs)
        recorded = self._record(func, args, kwargs)
        return args[0] if name in _AUGMENTED else None if name == "__setitem__" else recorded

    def _set(self, func: Any, attribute: str | None, args: tuple[Any, ...], kept: list[torch.Tensor]) -> Any:
        """Set an attribute of a tensor, as ``requires_grad`` or ``data``."""
        if kept or id(args[0]) not in self._made:
            raise self._tracer._refusal(
                f"cannot set {attribute} of a tensor of the module while it is captured",
                where=_here(),
                value=f"a tensor of shape {tuple(args[0].shape)}",
                why="a captured program has no assignment to attributes, so it would be lost",
                remedy="write in place (copy_, requires_grad_), or make the module a leaf",
            )
        return func(*args)

    def _will_write(self, name: str, written: tuple[torch.Tensor, ...], kwargs: dict[str, Any]) -> None:
        """Record what leads to tensors that a call is about to write to, and note whether it gives them other sizes."""
        for tensor in written:
            self._record_history(tensor)
            if "out" in kwargs or name == "__set__" or changes_layout(name):
                self._resized[id(tensor)] = tensor

    def _record_history(self, tensor: torch.Tensor) -> None:
        """Record all that led to a tensor which is about to be written to, unless the program has it anyway."""
        if id(tensor) in self._made and id(tensor) not in self._recorded:
            for call in self._history(tensor):
                with within(self._tracer, call.graph):
                    self._replay(call)
        self._stale[id(tensor)] = tensor

    def _history(self, tensor: torch.Tensor) -> list[_Call]:
        """The calls that what is in a tensor's memory comes from, and those that look at that memory, in order."""
        needed, found = {id(tensor): tensor}, set[int]()
        grows = True
        while grows:
            grows = False
            for number in reversed(range(len(self._calls))):
                call = self._calls[number]
                made = (*_tensors(call.result), *call.written)
                if number not in found and any(share_memory(one, needed) for one in made):
                    found.add(number)
                    grows = True
                    given = [one for one in _tensors((call.args, call.kwargs)) if id(one) in self._made]
                    needed.update((id(one), one) for one in (*made, *given))
        calls = [self._calls[number] for number in sorted(found)]
        self._calls = [call for number, call in enumerate(self._calls) if number not in found]
        return calls

    def _replay(self, call: _Call) -> None:
        recorded = self._record(call.function, call.args, call.kwargs)
        if not any(call.result is given for given in _tensors((call.args, call.kwargs))):
            self._know(call.result, recorded)

    # Nodes.

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Proxy:
        """The proxy of a new node for a call."""
        name = getattr(func, "__name__", "")
        if name == "__get__":
            func, args = getattr, (args[0], func.__self__.__name__)
        elif name == "__setitem__":
            func = operator.setitem
        elif is_tensor_method(func) and args and isinstance(args[0], (torch.Tensor, Proxy)):
            first = args[0] if isinstance(args[0], Proxy) else self._traced(args[0])
            if name in _AUGMENTED:
                name = f"{name[3:-2]}_" if hasattr(torch.Tensor, f"{name[3:-2]}_") else name
            return self._noted(getattr(first, name)(*args[1:], **kwargs))
        return self._noted(self._tracer.create_proxy("call_function", func, args, kwargs))

    def _traced(self, tensor: torch.Tensor) -> Proxy:
        node = self.node_of(tensor)
        if node is None:
            node = self._tracer.create_arg(tensor)
            self._nodes.append(node)
        return self._tracer.proxy(node)


def leave_ended() -> None:
    """Take the modes of traces that have ended off the stack of the calling thread, where they are its innermost."""
    while count := _torch._C._len_torch_function_stack():
        mode = _torch._C._get_function_stack_at(count - 1)
        if not isinstance(mode, RealTensors) or mode.is_tracing():
            break
        _torch._C._pop_torch_function_stack()


def enter(mode: RealTensors) -> None:
    """Put the mode of a trace onto the stack of the calling thread."""
    _torch._C._push_on_torch_function_stack(mode)


def share_memory(one: torch.Tensor, others: dict[int, torch.Tensor]) -> bool:
    """Return whether a tensor is one of ``others``, which are by their identities, or lies in the memory of one."""
    return id(one) in others or any(_torch._C._is_alias_of(one, other) for other in others.values())


def _effect(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Effect | None:
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return None
    rule = find_rule(name if is_tensor_method(func) else func)
    return rule if rule is None or isinstance(rule, Effect) else rule(args, kwargs)


def _written_by(
    effect: Effect | None, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The real tensors that a call writes to."""
    if effect is None or effect.kind != "write":
        return ()
    place = effect.written
    if place is None:
        return tuple(tensors)
    value = args[place] if isinstance(place, int) and place < len(args) else kwargs.get(place)  # type: ignore[call-overload]
    return tuple(_tensors(value if value is not None else (args, kwargs)))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a value."""
    return (one for one in leaves_of(value) if isinstance(one, torch.Tensor))


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= _MOST_VALUES and all(map(_is_plain, value))
    return isinstance(value, (bool, int, float))


def _here() -> Any:
    return user_location(sys._getframe(1), {})
