"""The training flags of modules: passed on by the traced code, and checked where it depends on their value.

``F.dropout(x, 0.5, self.training)`` becomes an operation that reads the flag when the program runs. Where the traced
code needs the value (``if self.training:``), it gets the current one, and the program checks that it has not changed.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy
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
    """The training flag of a module, which the program reads. Other uses get the value, which the program checks."""

    __slots__ = ("_flags", "_name", "_value")

    def __init__(self, flags: TrainingFlags, name: str, value: bool) -> None:
        self._flags = flags
        self._name = name
        self._value = value
        self.tracer = flags.tracer

    @property
    def node(self) -> Node:  # type: ignore[override]
        """The ``get_attr`` node that reads the flag, made on first use."""
        return self._flags.node_of(self._name)

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return bool

    def _decided(self) -> bool:
        """Return the value, and let the program check it from now on."""
        self._flags.check(self._name, self._value, self._flags.reads[self._name])
        return self._value

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return numpy.asarray(self._decided(), *args, **kwargs)


def _of_value(function: Callable[..., Any], reflected: bool = False) -> Callable[..., Any]:
    def decided(flag: TrainingFlag, *operands: Any) -> Any:
        if any(isinstance(operand, Proxy) and type(operand) is not TrainingFlag for operand in operands):
            return NotImplemented  # the other traced value records the operation, with the flag as an argument
        values = [operand._decided() if type(operand) is TrainingFlag else operand for operand in (flag, *operands)]
        return function(*(reversed(values) if reflected else values))

    return decided


for _row in OPERATORS:
    if not _row.in_place:
        setattr(TrainingFlag, f"__{_row.method}__", _of_value(_row.function))
        if _row.reflected:
            setattr(TrainingFlag, f"__r{_row.method}__", _of_value(_row.function, reflected=True))
for _function in (bool, int, float, complex, str, repr, hash, format, round, abs, divmod, operator.index):
    setattr(TrainingFlag, f"__{_function.__name__}__", _of_value(_function))
setattr(TrainingFlag, "__rdivmod__", _of_value(divmod, reflected=True))  # noqa: B010 - as the methods above


class TrainingFlags:
    """The training flags that one trace reads."""

    def __init__(self, tracer: Any, follows: bool) -> None:
        self.tracer = tracer
        self.follows = follows
        """True if the program reads flags when it runs; otherwise it only checks them."""
        self.watches_leaves = False
        """True if :meth:`leaf_called` has something to do."""
        self.opened: set[int] = set()
        """The torch modules, by identity, that are leaves and yet are traced through."""
        self._foreign: ForeignModuleError | None = None
        """The error to raise if the running module reads its flag; set while a module runs that is not below the root.
        """
        self.reads: dict[str, object] = {}
        """The line that first read each followed flag, by its path."""
        self._nodes: dict[str, Node] = {}
        self._checked: set[str] = set()
        self._overridden = False
        self._before: dict[int, bool] | None = None
        """The flags of all modules before the traced code first sets one."""
        self._set: set[int] = set()
        """The modules, by identity, whose flags the program has set."""
        self._switches: SourceLocation | None = None

    def start(self) -> None:
        """Look for classes that override ``train()`` or ``eval()``."""
        for kind in set(map(type, self.tracer.submodule_paths or ())):
            own = kind.train is not torch.nn.Module.train or kind.eval is not torch.nn.Module.eval
            if own and not kind.__module__.startswith("torch."):
                self._overridden = self.watches_leaves = True

    # Reads.

    def read(self, module: torch.nn.Module, value: bool, frame: FrameType | None) -> Any:
        """Return the value of ``module.training`` for the code that runs in ``frame``."""
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
            return value  # it expects the same flag of all modules whose state it stacks, and does nothing else with it
        if id(module) in self._set:
            return value  # the program has set it, so the value before does not matter
        name = f"{path}.training".lstrip(".")
        where = user_location(frame, self.tracer._state.locations)
        if self.follows and not compares_with_truth(frame.f_code):
            self.reads.setdefault(name, where)
            return TrainingFlag(self, name, value)
        self.check(name, value, where)
        return value

    def with_foreign(self, error: ForeignModuleError, run: Callable[[], Any]) -> Any:
        """Return ``run()``, the forward of a module without state that is not below the root.

        Raise the error if the result depends on the module's mode, which the program cannot read.
        """
        before, self._foreign = self._foreign, error
        try:
            return run()
        finally:
            self._foreign = before

    def node_of(self, name: str) -> Node:
        """Return the node that reads a flag at run time."""
        node = self._nodes.get(name)
        if node is None or node._erased:
            with outermost(self.tracer):
                node = self._nodes[name] = self.tracer.create_proxy("get_attr", name, (), {}).node
        return node

    def check(self, name: str, value: bool, where: object) -> None:
        """Let the program check that a flag has the same value as now."""
        if name not in self._checked and not self.tracer._state.is_finished:
            self._checked.add(name)
            mode = "training" if value else "evaluation"
            message = f"the program was captured in {mode} mode, and depends on it: {where}"
            flag = Proxy(self.node_of(name), self.tracer)
            with outermost(self.tracer):
                self.tracer.create_proxy("call_function", check_value, (flag, value, message), {})

    def drop_unused(self) -> None:
        """Remove unused reads of flags."""
        for node in self._nodes.values():
            if not node._erased and not node.users:
                node.graph.erase_node(node)

    # Writes.

    def write(self, module: torch.nn.Module, frame: FrameType | None) -> None:
        """Record that the code in ``frame`` is about to set ``module.training``.

        A graph cannot set it. So the program checks the flag of every module whose ``train()`` or ``eval()`` was
        called, and every other flag that it reads.
        """
        paths = self.tracer.submodule_paths or {}
        if (path := paths.get(module)) is None:
            return
        self._switches = user_location(frame, {})
        self.watches_leaves = True
        if self._before is None:
            self._before = {id(each): each.__dict__["training"] for each in paths if "training" in each.__dict__}
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
        """Let the program check the mode of a leaf, if flags have been set or a class overrides ``train()``."""
        if self._before is not None:
            self._expect_kept(module)
            self._check_of(module, self._switches)
        if self._overridden:
            for owner in (self.tracer.root, module):
                self._check_of(owner, user_location(sys._getframe(2), {}))

    def _check_of(self, module: torch.nn.Module, where: object) -> None:
        path = (self.tracer.submodule_paths or {}).get(module)
        if path is not None and "training" in module.__dict__:
            self.check(f"{path}.training".lstrip("."), module.__dict__["training"], where)


class _Descriptor:
    """``training`` of ``torch.nn.Module`` during traces; the value itself is in the ``__dict__`` of each module."""

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
    """Return whether ``train()`` of the parent module sets the flag."""
    train = torch.nn.Module.train.__code__
    while frame is not None and frame.f_code.co_name == "__setattr__":
        frame = frame.f_back
    caller = None if frame is None else frame.f_back
    return frame is not None and caller is not None and frame.f_code is train and caller.f_code is train
