"""One run of a tracer: what it does with modules that the tracing thread uses, and with functions by their names."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from fx.capture import modes, recorded_calls
from fx.capture.assigned_attributes import AssignedAttributes
from fx.capture.patching import Trace, replaced_together
from fx.capture.python_functions import record_classes
from fx.capture.replacements import Maker
from fx.capture.training_flag import TrainingFlags
from fx.capture.whole_calls import RECORDED, behind_recording, recording


class TracerSession:
    """One run of a tracer: what it does with uses of modules by the tracing thread."""

    def __init__(self, tracer: Any, flags: TrainingFlags, modules_are_themselves: bool) -> None:
        """The session of ``tracer``, its training flags, and whether modules that are read are what they are."""
        self.tracer = tracer
        self.modes = modes.Modes(tracer)
        self.flags = flags
        self.assigned = AssignedAttributes()
        self.trace: Trace | None = None
        self.modules_are_themselves = modules_are_themselves  # then the session is not told which were read
        self.parameter_proxies: dict[str, Any] = {}
        self.searched: set[int] = set()
        self.makers: dict[int, Maker] | None = None

    def module_called(
        self, original: Callable[..., Any], module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Let the tracer decide: ``module(*args, **kwargs)`` was called."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            self.autowrap_function(type(module).forward)
            return original(module, *args, **kwargs)

        caught = self.tracer._caught
        if caught is None or not caught.pause():
            return self.tracer.call_module(module, forward, args, kwargs)
        try:
            return self.tracer.call_module(module, caught.resumed(forward), args, kwargs)
        finally:
            caught.resume()

    def attribute_read(self, module: torch.nn.Module, name: str, value: Any) -> Any:
        """Let the tracer decide: ``module.name`` was read and found to be ``value``."""
        return self.tracer.getattr(name, value, self.parameter_proxies)

    def autowrap_function(self, function: Any) -> None:
        """Do so in the globals of a function, and of all that its decorators call."""
        while function is not None:
            self.autowrap(getattr(function, "__globals__", {}))
            function = getattr(function, "__wrapped__", None)

    def autowrap(self, namespace: dict[str, Any]) -> None:
        """Record the tracer's autowrap functions where ``namespace``, or one that it reaches, refers to them."""
        trace = self.trace
        if trace is None or id(namespace) in self.searched:
            return
        if self.makers is None:
            self.makers = recorded_calls.makers_of(trace, self.tracer._autowrap_functions)
        pending = [namespace]
        for one in pending:
            if id(one) in self.searched:
                continue
            self.searched.add(id(one))
            if str(one.get("__name__")).startswith(("torch.", "math")):
                self._record_whole(trace, one)
            else:
                if self.tracer._needs.calls:
                    record_classes(trace, one)
                pending.extend(recorded_calls.replace_in(trace, one, self.makers))

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


_OF_MATH = replaced_together(
    math.__dict__,
    {name: recording for name, value in vars(math).items() if not name.startswith("_") and callable(value)},
)
