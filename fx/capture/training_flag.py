"""The training flag of modules: followed where the traced code passes it on, checked where it decides something.

``F.dropout(x, 0.5, self.training)`` becomes an operation that reads the flag when the program runs. Where the traced
code asks for its value (``if self.training:``), the answer is what it is now, and the program checks that it still is.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from fx.assertions import check_value
from fx.bytecode.mentions import compares_with_truth
from fx.capture import patching
from fx.capture.bodies import outermost
from fx.capture.patching import replaced_always
from fx.checks.traced_values import asker
from fx.errors import ForeignModuleError, TraceError
from fx.frames import is_ours, is_users, user_location
from fx.node import Node
from fx.operators.python import OPERATORS
from fx.provenance import SourceLocation
from fx.proxy import Proxy

_STACKING = torch.func.stack_module_state.__code__.co_filename


class TrainingFlag(Proxy):
    """The training flag of a module, which the program passes on as it is when it runs.

    What Python does with it otherwise is done with what it is while the program is captured, which the program checks.
    """

    __slots__ = ("_flags", "_name", "_value")

    def __init__(self, flags: TrainingFlags, name: str, value: bool) -> None:
        """The flag with the path ``name``, which is ``value`` while the program is captured."""
        self._flags = flags
        self._name = name
        self._value = value
        self.tracer = flags.tracer

    @property
    def node(self) -> Node:  # type: ignore[override]
        """The ``get_attr`` node that reads it, made when first asked for."""
        return self._flags.node_of(self._name)

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return bool

    def _decided(self) -> bool:
        """The value, which the program checks from now on."""
        self._flags.check(self._name, self._value, self._flags.reads[self._name])
        return self._value

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return sys.modules["numpy"].asarray(self._decided(), *args, **kwargs)


def _of_value(function: Callable[..., Any], reflected: bool = False) -> Callable[..., Any]:
    def decided(flag: TrainingFlag, *given: Any) -> Any:
        if any(isinstance(one, Proxy) and type(one) is not TrainingFlag for one in given):
            return NotImplemented  # the traced value records the operation, which is given the flag
        values = [one._decided() if type(one) is TrainingFlag else one for one in (flag, *given)]
        return function(*(reversed(values) if reflected else values))

    return decided


for _row in OPERATORS:
    if not _row.in_place:
        setattr(TrainingFlag, f"__{_row.method}__", _of_value(_row.function))
        if _row.reflected:
            setattr(TrainingFlag, f"__r{_row.method}__", _of_value(_row.function, reflected=True))
for _function in (bool, int, float, complex, str, repr, hash, format, round, abs, divmod, operator.index):
    setattr(TrainingFlag, f"__{_function.__name__}__", _of_value(_function))
setattr(TrainingFlag, "__rdivmod__", _of_value(divmod, reflected=True))  # noqa: B010 - as those above


class TrainingFlags:
    """The training flags that one trace asks for."""

    def __init__(self, tracer: Any, follows: bool) -> None:
        """Flags of the modules of ``tracer``, which are followed if ``follows``, and else checked alone."""
        self.tracer = tracer
        self.follows = follows
        self.watches_leaves = False
        """Whether :meth:`leaf_called` has something to do."""
        self.opened: set[int] = set()
        """The modules of torch, by identity, that the program takes the place of though they are leaves."""
        self._foreign: ForeignModuleError | None = None
        """What to say of the module that runs, which is not below the root, should it ask for its flag."""
        self.reads: dict[str, object] = {}
        """Where the flags that are followed were read first, by their paths."""
        self._nodes: dict[str, Node] = {}
        self._checked: set[str] = set()
        self._overridden = False
        self._before: dict[int, bool] | None = None
        """The flags of all modules, from when one is set on."""
        self._set: set[int] = set()
        """The modules, by identity, whose flags the program has set."""
        self._switches: SourceLocation | None = None

    def start(self) -> None:
        """Look for classes that decide themselves what ``train()`` does."""
        for kind in set(map(type, self.tracer.submodule_paths or ())):
            own = kind.train is not torch.nn.Module.train or kind.eval is not torch.nn.Module.eval
            if own and not kind.__module__.startswith("torch."):
                self._overridden = self.watches_leaves = True

    # Reads.

    def read(self, module: torch.nn.Module, value: bool, frame: FrameType | None) -> Any:
        """Return what ``module.training`` is for the code that runs in ``frame``."""
        frame = None if frame is None else asker(frame)
        path = (self.tracer.submodule_paths or {}).get(module)
        if frame is None or is_ours(frame) or type(value) is not bool:
            return value
        if path is None:
            if self._foreign is not None:
                self.tracer._state.refused = self._foreign
                raise self._foreign
            return value
        if not is_users(frame) and type(module).__module__.startswith("torch.") and id(module) not in self.opened:
            return value
        if frame.f_code.co_filename == _STACKING:
            return value  # it expects that of all modules whose state it stacks, and does nothing else with it
        if id(module) in self._set:
            return value  # whatever it was, the program has set it to that
        name = f"{path}.training".lstrip(".")
        where = user_location(frame, self.tracer._state.locations)
        if self.follows and not compares_with_truth(frame.f_code):
            self.reads.setdefault(name, where)
            return TrainingFlag(self, name, value)
        self.check(name, value, where)
        return value

    def with_foreign(self, error: ForeignModuleError, run: Callable[[], Any]) -> Any:
        """Return ``run()``, the forward of a module without state that is not below the root.

        Raises:
            ForeignModuleError: what it does depends on its mode, which the program cannot know.
        """
        before, self._foreign = self._foreign, error
        try:
            return run()
        finally:
            self._foreign = before

    def node_of(self, name: str) -> Node:
        """The node that reads a flag at run time."""
        node = self._nodes.get(name)
        if node is None or node._erased:
            with outermost(self.tracer):
                node = self._nodes[name] = self.tracer.create_proxy("get_attr", name, (), {}).node
        return node

    def check(self, name: str, value: bool, where: object) -> None:
        """Let the program check that a flag is what it is now."""
        if name not in self._checked and not self.tracer._state.is_finished:
            self._checked.add(name)
            mode = "training" if value else "evaluation"
            message = f"the program was captured in {mode} mode, and depends on it: {where}"
            flag = Proxy(self.node_of(name), self.tracer)
            with outermost(self.tracer):
                self.tracer.create_proxy("call_function", check_value, (flag, value, message), {})

    def drop_unused(self) -> None:
        """Remove reads of flags that nobody uses."""
        for node in self._nodes.values():
            if not node._erased and not node.users:
                node.graph.erase_node(node)

    # Writes.

    def write(self, module: torch.nn.Module, frame: FrameType | None) -> None:
        """Note that ``module.training`` is about to be set by the code that runs in ``frame``.

        A graph cannot set it, so that the program checks that it is what it is now: the flag of the module on which
        ``train()`` or ``eval()`` was called, and others that it follows.
        """
        paths = self.tracer.submodule_paths or {}
        if (path := paths.get(module)) is None:
            return
        self._switches = user_location(frame, {})
        self.watches_leaves = True
        if self._before is None:
            self._before = {id(one): one.__dict__["training"] for one in paths if "training" in one.__dict__}
        name = f"{path}.training".lstrip(".")
        if name in self._nodes or not _is_of_child(frame):
            self._check_of(module, self._switches)
        self._set.add(id(module))

    def expect_kept(self) -> None:
        """Refuse a program that has switched the mode of a module, and has not switched it back."""
        for module in (self.tracer.submodule_paths or {}) if self._before is not None else ():
            self._expect_kept(module)

    def _expect_kept(self, module: torch.nn.Module) -> None:
        before = (self._before or {}).get(id(module))
        if before is not None and before != module.__dict__["training"]:
            raise TraceError(
                "cannot switch a module between training and evaluation while it is captured",
                where=self._switches,
                value=f"{type(module).__name__}, which {'was' if before else 'was not'} in training mode",
                why="a captured program has no assignment to attributes, so the switch would be lost",
                remedy="switch the mode before the module is captured, or make the module that does it a leaf",
            )

    def leaf_called(self, module: torch.nn.Module) -> None:
        """Let the program check the mode of a leaf, where a module decides by itself what ``train()`` does."""
        if self._before is not None:
            self._expect_kept(module)
            self._check_of(module, self._switches)
        if self._overridden:
            for one in (self.tracer.root, module):
                self._check_of(one, user_location(sys._getframe(2), {}))

    def _check_of(self, module: torch.nn.Module, where: object) -> None:
        path = (self.tracer.submodule_paths or {}).get(module)
        if path is not None and "training" in module.__dict__:
            self.check(f"{path}.training".lstrip("."), module.__dict__["training"], where)


class _Descriptor:
    """``training`` of ``torch.nn.Module`` while there are traces: it stands in the ``__dict__`` of each module."""

    def __get__(self, module: torch.nn.Module | None, kind: type) -> Any:
        if module is None or "training" not in module.__dict__:
            raise AttributeError("training")
        value = module.__dict__["training"]
        session: Any = patching.running_session()
        return value if session is None else session.flags.read(module, value, sys._getframe(1))

    def __set__(self, module: torch.nn.Module, value: Any) -> None:
        session: Any = patching.running_session()
        if session is not None:
            session.flags.write(module, sys._getframe(1))
        module.__dict__["training"] = value._decided() if type(value) is TrainingFlag else value

    def __delete__(self, module: torch.nn.Module) -> None:
        del module.__dict__["training"]


replaced_always(torch.nn.Module, {"training": lambda _: _Descriptor()}, absent=True)


def _is_of_child(frame: FrameType | None) -> bool:
    """Return whether a flag is set by ``train()`` of the module around it."""
    train = torch.nn.Module.train.__code__
    while frame is not None and frame.f_code.co_name == "__setattr__":
        frame = frame.f_back
    caller = None if frame is None else frame.f_back
    return frame is not None and caller is not None and frame.f_code is train and caller.f_code is train
