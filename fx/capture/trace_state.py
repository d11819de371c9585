"""``TraceState``: all that belongs to one run of a traced program, and what another run would have to do otherwise."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any

import torch

from fx.capture import higher_order_calls, recorded_calls
from fx.capture.bodies import Body
from fx.capture.modes import Modes
from fx.capture.patching import Trace, replaced_together
from fx.capture.python_functions import called_method, calls_classes, record_classes, record_methods
from fx.capture.real_tensors import RealTensors
from fx.capture.replacements import Maker
from fx.capture.restore.module_attributes import AssignedAttributes
from fx.capture.restore.record import Record
from fx.capture.training_flag import TrainingFlags
from fx.capture.whole_calls import RECORDED, behind_recording, recording
from fx.errors import TraceError
from fx.operators.asynchronous import remote_calls
from fx.proxy import RecordingState
from fx.wrapping import wrapped_globals


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run does otherwise than one without needs, which was refused."""

    calls: bool = False
    """Calls of Python's classes (``int(x)``), and of methods of concrete tensors, are recorded with traced values."""
    namespaces: tuple[dict[str, Any], ...] = ()
    """The globals of code that has called such classes."""
    methods: frozenset[str] = frozenset()
    """The methods of tensors that were called."""
    given: bool = False
    """Optional inputs that the program asks for are given, and not left out."""
    how: str = ""
    """How it differs from the first run, in words."""
    why: str | None = None
    """What the first run was refused for, with the user's line."""


NO_NEEDS = Needs()
"""The needs of a first run."""


class TraceState(RecordingState):
    """One run: what is known of it, and what it does with modules that the tracing thread uses."""

    trace: Trace | None = None
    """What is replaced in the process while the run goes on."""
    modules: Record | None = None
    """What modules hold, to be put back."""
    modes: Modes
    """The modes that the traced code sets and asks for."""
    flags: TrainingFlags | None = None
    """The training flags that it asks for."""
    real: RealTensors | None = None
    """What it does with tensors that are no traced values."""
    body: Body | None = None
    """What is captured now, where it is a function that the program hands to another one."""
    attribute_paths: dict[int, tuple[Any, str]] | None = None
    """The tensors that modules hold as attributes, with their paths, by identity."""
    parameter_paths: dict[int, str] | None = None
    """The paths of parameters, by identity."""
    leaves_out: bool = False
    """Whether an optional input was left out."""
    is_verified: bool = False
    """Whether the program was run again to see that it does the same."""
    has_raised: bool = False
    """Whether this run or one before has ended with an exception, whose traceback holds traced values."""

    def __init__(
        self, tracer: Any = None, needs: Needs = NO_NEEDS, examples: Any = None, fake_mode: Any = None
    ) -> None:
        """The state at the start of a run; without a tracer, of none.

        Args:
            tracer: the one that runs the program.
            needs: what it does otherwise than in a first run.
            examples: the inputs of a call that answer questions; None where there are none.
            fake_mode: makes fake tensors of them.
        """
        super().__init__()
        self.tracer = tracer
        self.needs = needs
        self.examples = examples
        self.fake_mode = fake_mode
        self.starred, self.indexed = [], []
        self.called_in: dict[int, dict[str, Any]] = {}
        """The globals of code that was refused because it calls classes of Python's, by identity."""
        self.assigned = AssignedAttributes()
        """The attributes of modules that the traced code assigns."""
        self.modules_are_themselves = False
        """Whether modules that are read are what they are, so that the tracer is not told which were read."""
        self.tells_leaves = False
        """Whether what is a leaf is left to the class of the tracer."""
        self._parameter_proxies: dict[str, Any] = {}
        self._searched: set[int] = set()
        self._makers: dict[int, Maker] | None = None

    # Another run.

    def again(self, needs: Needs) -> TraceState:
        """Return the state of another run of the same program, with the same inputs."""
        state = TraceState(self.tracer, needs, self.examples, self.fake_mode)
        state.has_raised = self.has_raised
        return state

    def drop(self) -> None:
        """Let go of traced values, and of what refers to the tracer, at the end of the run."""
        self.trace = self.flags = self.real = self.body = self.caught = self.guide = None
        self._parameter_proxies, self.written, self.starred, self.indexed = {}, {}, [], []
        vars(self).pop("modes", None)

    def note_class_called(self, frame: FrameType) -> None:
        """Note that ``frame`` is refused because a class of Python's, which takes concrete values, was called in it."""
        namespace = frame.f_globals
        if not self.needs.calls and id(namespace) not in self.called_in and calls_classes(frame):
            self.called_in[id(namespace)] = namespace

    @property
    def runs_again(self) -> bool:
        """Return whether there will be another run, which records calls that this one was refused for."""
        return bool(self.called_in) and not self.needs.calls

    def needs_after(self, error: Exception) -> Needs | None:
        """Return what another run has to do otherwise than this one, which has failed; None if nothing helps."""
        if self.is_verified or self.needs.calls:
            return None
        if isinstance(error, TraceError):
            method = called_method(error.__cause__)
            if method is None and not self.called_in:
                return None
            how, methods = "with calls of Python's classes recorded", frozenset({method} if method else ())
            return Needs(True, tuple(self.called_in.values()), methods, how=how, why=_why(error, how))
        how = "with its optional inputs"
        return Needs(True, given=True, how=how, why=_why(error, how)) if self.leaves_out else None

    # What is replaced.

    def replace_functions(self, trace: Trace, function: Callable[..., Any]) -> None:
        """Let traced code, which begins with ``function``, call what records calls in the place of what does not."""
        self.trace = trace
        recorded_calls.replace(trace)
        higher_order_calls.replace(trace)
        if self.modules is not None:
            self.assigned.watch(trace, self.modules.facts)
            if self.needs.calls:
                around = self.modules.facts
                record_methods(trace, self.needs.methods | around.read)
                for namespace in ({id(one): one for one in self.needs.namespaces} | around.namespaces).values():
                    record_classes(trace, namespace)
        for namespace, name in wrapped_globals():
            trace.replace(namespace, (name,), recording)
        for call in remote_calls():  # under the name where it is made, too, by which generated code calls it
            self.autowrap(call.__globals__)
            self.autowrap(vars(sys.modules["torch.distributed.rpc"]))
        for module in self.tracer._autowrap_search:
            self.autowrap(module.__dict__)
        self.autowrap_function(function)

    # What the tracing thread does with modules.

    def module_called(
        self, original: Callable[..., Any], module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Let the tracer decide: ``module(*args, **kwargs)`` was called."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            self.autowrap_function(type(module).forward)
            return original(module, *args, **kwargs)

        caught = self.caught
        if caught is None or not caught.pause():
            return self.tracer.call_module(module, forward, args, kwargs)
        try:
            return self.tracer.call_module(module, caught.resumed(forward), args, kwargs)
        finally:
            caught.resume()

    def attribute_read(self, module: torch.nn.Module, name: str, value: Any) -> Any:
        """Let the tracer decide: ``module.name`` was read and found to be ``value``."""
        return self.tracer.getattr(name, value, self._parameter_proxies)

    def autowrap_function(self, function: Any) -> None:
        """Do so in the globals of a function, and of all that its decorators call."""
        while function is not None:
            self.autowrap(getattr(function, "__globals__", {}))
            function = getattr(function, "__wrapped__", None)

    def autowrap(self, namespace: dict[str, Any]) -> None:
        """Record the tracer's autowrap functions where ``namespace``, or one that it reaches, refers to them."""
        trace = self.trace
        if trace is None or id(namespace) in self._searched:
            return
        if self._makers is None:
            self._makers = recorded_calls.makers_of(trace, self.tracer._autowrap_functions)
        pending = [namespace]
        for one in pending:
            if id(one) in self._searched:
                continue
            self._searched.add(id(one))
            if str(one.get("__name__")).startswith(("torch.", "math")):
                self._record_whole(trace, one)
            else:
                if self.needs.calls and self.modules is not None and id(one) not in self.modules.facts.namespaces:
                    record_classes(trace, one)
                pending.extend(recorded_calls.replace_in(trace, one, self._makers))

    def _record_whole(self, trace: Trace, namespace: dict[str, Any]) -> None:
        """Record the functions where globals of torch's, or those of ``math``, refer to them."""
        functions = self.tracer._autowrap_functions
        names = [
            name
            for name, value in list(namespace.items())
            if id(value) in functions
            or (type(value) is FunctionType and value.__code__ is RECORDED and id(behind_recording(value)) in functions)
        ]
        if names and namespace is _OF_MATH.owner and names == list(_OF_MATH.makers):
            trace.replace_all(_OF_MATH)
        else:
            trace.replace(namespace, names, recording)


def _why(error: Exception, how: str) -> str:
    """Return why there is a second run, in one line, and how it differs."""
    what, *lines = str(error).splitlines() or [type(error).__name__]
    where = next((line[9:] for line in lines if line.startswith("  where")), "")
    return f"{how}: {what}" + (f", {where}" if where else "")


_OF_MATH = replaced_together(
    math.__dict__,
    {name: recording for name, value in vars(math).items() if not name.startswith("_") and callable(value)},
)
