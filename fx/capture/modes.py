"""Modes that the traced code sets or asks for: recording of gradients, autocast, and the training flag of modules.

The first two become operations of the program, which set the mode and set it back to what it was when the program ran.
What the traced code asks about a mode is answered as it is now, and the program checks that it is the same.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any, Protocol

import torch
from torch.amp.autocast_mode import autocast

from fx.assertions import check_value
from fx.capture import patching
from fx.capture.patching import Trace
from fx.checks.bytecode import steps
from fx.errors import TraceError
from fx.frames import is_users, is_users_file, user_location
from fx.modules.attributes import fetch_attribute
from fx.naming.printing import describe
from fx.node import Node
from fx.provenance import GENERATED_FILES, SourceLocation
from fx.proxy import Proxy

_torch: Any = torch
_set_grad_enabled: Any = _torch._C._set_grad_enabled
_enter_autocast: Any = _torch.amp._enter_autocast
_exit_autocast: Any = _torch.amp._exit_autocast
_is_grad_enabled = torch.is_grad_enabled
_is_autocast_enabled: Any = torch.is_autocast_enabled
_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)


class Recorder(Protocol):
    """The tracer that operations are recorded by."""

    root: torch.nn.Module
    submodule_paths: dict[torch.nn.Module, str] | None

    def create_proxy(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Proxy:
        """Make a node and its proxy."""
        ...

    def _refusal(self, what: str, **lines: Any) -> TraceError: ...


class Modes:
    """The modes of one trace."""

    def __init__(self, tracer: Recorder) -> None:
        self._tracer = tracer
        self._gradients: list[tuple[bool, bool, Proxy]] = []
        """Of each switch that was not undone: what it was before, what it was set to, what it was at run time."""
        self._is_to_switch = False
        """Whether the code of a program that is traced again has asked for the mode, to set it back to that."""
        self._autocasts: dict[int, list[Proxy]] = {}
        self._asked: set[str] = set()
        self._overridden = False
        self.watches_leaves = False
        """Whether :meth:`leaf_called` has something to do."""
        self._leaves: set[type] = set()
        """The classes of torch among those of all modules, but for containers."""
        self._flags: dict[int, bool] | None = None
        self._switches: SourceLocation | None = None
        self._enabled = _is_grad_enabled()

    def restore(self) -> None:
        """Set what belongs to the thread back to what it was before the trace."""
        if _is_grad_enabled() != self._enabled:
            _set_grad_enabled(self._enabled)

    # Gradients.

    def set_gradients(self, enabled: bool, frame: FrameType | None) -> None:
        """Record that the traced code switches the recording of gradients, and switch it."""
        where = _entering_or_leaving(frame)
        now = _is_grad_enabled()
        innermost = self._gradients[-1] if self._gradients else None
        if where == "__enter__" and innermost is not None and innermost[1] == enabled == now and _is_switch(frame):
            return  # set_grad_enabled(…) has done so when it was made
        _set_grad_enabled(enabled)
        undoes = where == "__exit__" or (where is None and innermost is not None and innermost[:2] == (enabled, now))
        if frame is not None and frame.f_code.co_filename in GENERATED_FILES:  # which asks before it switches
            undoes, self._is_to_switch = not self._is_to_switch, False
        if undoes and innermost is not None:
            self._gradients.pop()
            self._record(_set_grad_enabled, innermost[2])
            return
        before = self._record(_is_grad_enabled)
        self._gradients.append((now, enabled, before))
        self._record(_set_grad_enabled, enabled)

    def _record(self, function: Any, *args: Any) -> Proxy:
        return self._tracer.create_proxy("call_function", function, args, {})

    def are_gradients_enabled(self, frame: FrameType) -> bool:
        """Answer the traced code, and let the program check the answer where it was not the program that set it."""
        answer = _is_grad_enabled()
        if not _asks(frame):
            self._is_to_switch = True
        elif not self._gradients:
            self._check(_is_grad_enabled, (), answer, frame)
        return answer

    # Autocast.

    def enter_autocast(self, context: Any) -> None:
        """Record that an autocast region begins."""
        settings = (context.device, context.fast_dtype, context._enabled, context._cache_enabled)
        self._autocasts.setdefault(id(context), []).append(self._record(_enter_autocast, *settings))

    def leave_autocast(self, context: Any) -> None:
        """Record that an autocast region ends."""
        if entered := self._autocasts.get(id(context)):
            self._record(_exit_autocast, entered.pop())

    def is_autocast_enabled(self, args: tuple[Any, ...], frame: FrameType) -> bool:
        """Answer the traced code, and let the program check the answer where it was not the program that set it."""
        answer = _is_autocast_enabled(*args)
        if not any(self._autocasts.values()) and _asks(frame):
            self._check(_is_autocast_enabled, args, answer, frame)
        return answer

    # The training flag.

    def start(self) -> None:
        """Look for classes that decide themselves what ``train()`` does."""
        kinds = set(map(type, self._tracer.submodule_paths or ()))
        self._leaves = {
            one for one in kinds if one.__module__.startswith("torch.") and not issubclass(one, _CONTAINERS)
        }
        for kind in kinds:
            own = kind.train is not torch.nn.Module.train or kind.eval is not torch.nn.Module.eval
            if own and not kind.__module__.startswith("torch."):
                self._overridden = self.watches_leaves = True

    def module_entered(self, module: torch.nn.Module) -> None:
        """Let the program check the mode of a module whose forward is traced, if its code names the training flag."""
        kind = type(module)
        if kind.__module__.startswith("torch."):
            return
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
            if any(
                "training" in code.co_names
                for code in _codes(hook if hasattr(hook, "__code__") else vars(type(hook)).get("__call__"))
            ):
                self._check_training(module, module.__dict__["training"], SourceLocation(_code_of(kind.forward), 0))
        for flag in _flags_unchecked(module):
            owner = fetch_attribute(module, str(flag.target).rpartition(".")[0])
            self._check_training(owner, owner.__dict__["training"], flag.source)
        self._look_at(module, frozenset({"forward"}))

    def _look_at(self, module: torch.nn.Module, methods: frozenset[str]) -> None:
        """Let the program check the flags that methods of a module name, and what they call of its children by name."""
        mentions = mentions_of_training(type(module), methods)
        checks_itself = mentions.reads and _code_of(type(module).forward).co_filename in GENERATED_FILES
        for child, location in () if checks_itself else mentions.reads:
            owner = module if child is None else module._modules.get(child)
            if owner is not None:
                self._check_training(owner, owner.__dict__["training"], location)
        if mentions.switches is not None:
            self._switches = mentions.switches
            self.watches_leaves = True
            if self._flags is None:
                paths = self._tracer.submodule_paths or {}
                self._flags = {id(one): one.__dict__["training"] for one in paths}
        for child in self._users_children(module):
            if called := mentions.names & _methods_of(type(child)):
                self._look_at(child, called)

    def _users_children(self, module: torch.nn.Module) -> Iterator[torch.nn.Module]:
        """The children of a module that are of the user's classes, also those in containers."""
        for child in module._modules.values():
            if type(child) in self._leaves or child is None:
                continue
            if isinstance(child, _CONTAINERS):
                yield from self._users_children(child)
            yield child

    def expect_modes_kept(self) -> None:
        """Refuse a program that has switched the mode of a module, and has not switched it back."""
        for module in (self._tracer.submodule_paths or {}) if self._flags is not None else ():
            self._expect_mode_kept(module)

    def _expect_mode_kept(self, module: torch.nn.Module) -> None:
        before = (self._flags or {}).get(id(module))
        if before is not None and before != module.__dict__["training"]:
            raise TraceError(
                "cannot switch a module between training and evaluation while it is captured",
                where=self._switches,
                value=f"{type(module).__name__}, which {'was' if before else 'was not'} in training mode",
                why="a captured program has no assignment to attributes, so the switch would be lost",
                remedy="switch the mode before the module is captured, or make the module that does it a leaf",
            )

    def _check_training(self, module: torch.nn.Module, value: bool, where: object, message: str | None = None) -> None:
        paths = self._tracer.submodule_paths
        path = paths.get(module) if paths else None
        if path is None:
            return
        name = f"{path}.training" if path else "training"
        if name not in self._asked:
            self._asked.add(name)
            mode = "training" if value else "evaluation"
            message = message or f"the program was captured in {mode} mode, and depends on it: {where}"
            flag = self._tracer.create_proxy("get_attr", name, (), {})
            self._record(check_value, flag, value, message)

    def check_again(self, program: torch.nn.Module, line: int, message: str) -> None:
        """Record that a program which is traced again checks a flag, in that line of its code."""
        path = _flag_checked(program, line, message)
        if path is not None:
            owner = fetch_attribute(program, path.rpartition(".")[0])
            self._check_training(owner, owner.__dict__["training"], None, message)

    def leaf_called(self, module: torch.nn.Module) -> None:
        """Let the program check the mode of a leaf, where a module decides by itself what ``train()`` does."""
        if self._flags is not None:
            self._expect_mode_kept(module)
            self._check_training(module, module.__dict__["training"], self._switches)
        if self._overridden:
            root = self._tracer.root
            for one in (root, module):
                self._check_training(one, one.__dict__["training"], user_location(sys._getframe(2), {}))

    def _check(self, function: Any, args: tuple[Any, ...], answer: bool, frame: FrameType) -> None:
        key = f"{function.__name__}{args}"
        if key not in self._asked:
            self._asked.add(key)
            message = f"the program was captured where {key.strip('()')} was {answer}: {user_location(frame, {})}"
            self._record(check_value, self._record(function, *args), answer, message)


@dataclass(frozen=True, slots=True)
class Mentions:
    """Where the code of a class of modules names the training flag, as far as its ``forward`` reaches."""

    reads: tuple[tuple[str | None, SourceLocation], ...]
    """The submodule whose flag it is, None for the module itself, and the line."""
    switches: SourceLocation | None
    """The line that calls ``train`` or ``eval``."""
    names: frozenset[str]
    """All that the code names."""


_mentions: weakref.WeakKeyDictionary[type, dict[frozenset[str], Mentions]] = weakref.WeakKeyDictionary()
_methods: weakref.WeakKeyDictionary[type, frozenset[str]] = weakref.WeakKeyDictionary()


def mentions_of_training(kind: type[torch.nn.Module], methods: frozenset[str]) -> Mentions:
    """Where ``methods``, and the methods that they name, name the training flag, or what switches it.

    The flag stands in the ``__dict__`` of each module, where nothing tells that it is read.
    """
    of_kind = _mentions.setdefault(kind, {})
    known = of_kind.get(methods)
    if known is None:
        names: set[str] = set()
        reads: list[tuple[str | None, SourceLocation]] = []
        switches: SourceLocation | None = None
        for code in _reached(kind, methods):
            names.update(code.co_names)
            shown = code if is_users_file(code.co_filename) else _code_of(kind.forward)
            steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
            for before, step in itertools.pairwise(steps):
                if step.argval == "training" and step.opname.startswith(("LOAD_ATTR", "LOAD_CONST", "LOAD_METHOD")):
                    child = before.argval if before.opname == "LOAD_ATTR" else None
                    reads.append((child, SourceLocation(shown, step.offset if shown is code else 0)))
                elif step.argval in ("train", "eval") and step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                    switches = SourceLocation(code, step.offset)
        known = of_kind[methods] = Mentions(tuple(reads), switches, frozenset(names))
    return known


def _methods_of(kind: type[torch.nn.Module]) -> frozenset[str]:
    """The names of the methods that classes of the user define."""
    known = _methods.get(kind)
    if known is None:
        classes = [one for one in kind.__mro__ if not one.__module__.startswith("torch.")]
        found = (name for one in classes for name, value in vars(one).items() if isinstance(value, FunctionType))
        known = _methods[kind] = frozenset(found)
    return known


def _code_of(function: Any) -> CodeType:
    return inspect.unwrap(function).__code__


def _reached(kind: type[torch.nn.Module], methods: frozenset[str]) -> Iterator[CodeType]:
    """The code of ``methods``, and of all that they name: methods, in classes up to ``torch.nn.Module``, and functions.

    Functions are those that the user wrote, whether they stand in the same file or are imported from another.
    """
    classes = [one for one in kind.__mro__ if one is not torch.nn.Module and one is not object]
    pending: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in methods]
    seen = set(methods)
    while pending:
        name, namespace = pending.pop()
        found: list[Any] = [vars(one).get(name) for one in classes]
        function = namespace.get(name)
        behind = inspect.unwrap(function) if isinstance(function, FunctionType) else None
        if isinstance(behind, FunctionType) and is_users_file(behind.__code__.co_filename):  # and no builtin behind it
            found.append(function)
        for one in found:
            one = inspect.unwrap(getattr(one, "fget", None) or getattr(one, "__func__", one))
            for code in _codes(one):
                yield code
                named = [other for other in code.co_names if other not in seen]
                seen.update(named)
                pending += [(other, one.__globals__) for other in named]


def _codes(function: Any) -> Iterator[CodeType]:
    """The code of a function, and of those that are written in it."""
    pending = [getattr(function, "__code__", None)]
    for code in pending:
        if isinstance(code, CodeType):
            yield code
            pending += [one for one in code.co_consts if isinstance(one, CodeType)]


class Session(Protocol):
    """A trace whose tracer has modes."""

    modes: Modes


def replace(trace: Trace) -> None:
    """Let a trace see what the traced code does with modes."""
    trace.replace(torch.__dict__, ("is_grad_enabled",), _make_question(Modes.are_gradients_enabled, takes_args=False))
    trace.replace(torch.__dict__, ("is_autocast_enabled",), _make_question(Modes.is_autocast_enabled, takes_args=True))
    trace.replace(torch.inference_mode, ("__enter__", "__exit__"), _make_inference_mode)
    trace.replace(autocast, ("__init__",), _make_autocast_settings)
    trace.replace(autocast, ("__enter__",), _make_autocast(Modes.enter_autocast))
    trace.replace(autocast, ("__exit__",), _make_autocast(Modes.leave_autocast))


def _modes() -> Modes | None:
    session: Any = patching.running_session()
    return None if session is None else session.modes


def _make_question(ask: Callable[..., bool], takes_args: bool) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def answer(*args: Any) -> bool:
            modes = _modes()
            if modes is None:
                return original(*args)
            return ask(modes, args, sys._getframe(1)) if takes_args else ask(modes, sys._getframe(1))

        answer.__wrapped__ = original  # type: ignore[attr-defined]
        return answer

    return make


def _make_inference_mode(original: Any) -> Any:
    """Inference mode is captured as what it is for the values of a program: gradients are not recorded."""
    if original.__name__ == "__enter__":

        def __enter__(self: Any) -> None:
            if _modes() is None:
                return original(self)
            self._before_trace = _is_grad_enabled()
            _torch._C._set_grad_enabled(not self.mode and self._before_trace)
            return None

        return __enter__

    def __exit__(self: Any, *exception: Any) -> None:
        if "_before_trace" not in vars(self):
            return original(self, *exception)
        _torch._C._set_grad_enabled(vars(self).pop("_before_trace"))
        return None

    return __exit__


def _make_autocast_settings(original: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if _modes() is not None:
            args = tuple(map(_setting, args))
            kwargs = {name: _setting(value) for name, value in kwargs.items()}
        original(self, *args, **kwargs)

    return __init__


def _setting(value: Any) -> Any:
    """What a setting of autocast is: the context takes no traced device, dtype or flag."""
    if not isinstance(value, Proxy):
        return value
    return value.tracer.answer(
        "identity",
        value,
        "cannot set autocast by a traced value",
        where=user_location(sys._getframe(2), {}),
        value=describe(value.node),
        why="what it is is known only when the module runs",
        remedy="set it by a module attribute or a constant, or give symbolic_trace example_inputs, which say it",
    )


def _make_autocast(record: Callable[[Modes, Any], None]) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def method(self: Any, *exception: Any) -> Any:
            if (modes := _modes()) is not None and exception[:1] in ((), (None,)):
                record(modes, self)
            return original(self, *exception)

        return method

    return make


def _entering_or_leaving(frame: FrameType | None) -> str | None:
    """``__enter__`` or ``__exit__``, if it is one of them, of torch's or a replaced one, that switches."""
    for _ in range(3):
        if frame is None or is_users(frame):
            return None
        if frame.f_code.co_name in ("__enter__", "__exit__"):
            return frame.f_code.co_name
        frame = frame.f_back
    return None


def _is_switch(frame: FrameType | None) -> bool:
    if frame is None or frame.f_code.co_name != "__enter__":  # no_grad makes a switch when it is entered
        return False
    return type(frame.f_locals.get("self")) is torch.set_grad_enabled


def _asks(frame: FrameType) -> bool:
    """Whether it is the user's code that asks, not torch's; of the code of a program, whether it checks the answer."""
    if not is_users(frame):
        return False
    if frame.f_code.co_filename not in GENERATED_FILES:
        return True
    following = [
        str(step.value) for step in steps(frame.f_code) if step.offset > frame.f_lasti and step.value is not None
    ]
    return any(value.endswith("check_value") for value in following[:4])


def _flags_unchecked(program: torch.nn.Module) -> Iterator[Node]:
    """The nodes of a program, which is traced again, that read flags which it does not check itself."""
    graph = vars(program).get("_graph")
    for node in graph.find_nodes(op="get_attr") if graph is not None else ():
        is_flag = str(node.target).rpartition(".")[2] == "training"
        if is_flag and node.users and not any(user.target is check_value for user in node.users):
            yield node


def make_check_value(original: Any) -> Any:
    """What stands for ``check_value`` in the code of programs that are traced again: flags are read by no call."""

    def check_value(value: Any, expected: Any, message: str) -> None:
        frame, modes = sys._getframe(1), _modes()
        if modes is not None and type(value) is bool and frame.f_code.co_filename in GENERATED_FILES:
            modes.check_again(frame.f_locals["self"], frame.f_lineno, message)
        original(value, expected, message)

    return check_value


def _flag_checked(program: Any, line: int, message: str) -> str | None:
    """The path of the flag that a program checks in a line of its code, or that it checks first with such a message."""
    checks = program.graph.find_nodes(op="call_function", target=check_value)
    read = [(check, check.args[0]) for check in checks if check.args[2] == message and isinstance(check.args[0], Node)]
    flags = [(check, flag) for check, flag in read if flag.op == "get_attr"]
    if len(flags) > 1:
        number = program._python_code.node_number(line)
        at_line = next(itertools.islice(program.graph.nodes, number, None), None) if number is not None else None
        flags.sort(key=lambda one: one[0] is not at_line)
    return str(flags[0][1].target) if flags else None
