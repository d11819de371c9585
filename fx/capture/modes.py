"""Modes that the traced code sets or queries: recording of gradients, and autocast.

They become operations of the program, which set a mode and later restore the mode at run time.
A query of a mode gets the current answer, and the program checks that it is the same at run time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.amp.autocast_mode import autocast

from fx.assertions import check_value
from fx.bytecode.dialects import steps
from fx.capture.patching import Maker, replaced_always, running_tracer, while_tracing
from fx.checks.questions import ask
from fx.frames import is_users, user_location
from fx.provenance import GENERATED_FILES
from fx.proxy import Proxy, TracerBase

_torch: Any = torch
set_grad_enabled: Any = _torch._C._set_grad_enabled
enter_autocast: Any = _torch.amp._enter_autocast
exit_autocast: Any = _torch.amp._exit_autocast
# While programs are traced, these two are replaced in torch.
is_grad_enabled = torch.is_grad_enabled
_is_autocast_enabled: Any = torch.is_autocast_enabled


class Modes:
    """The modes of one trace."""

    def __init__(self, tracer: TracerBase) -> None:
        self._tracer = tracer
        self._gradients: list[tuple[bool, bool, Proxy]] = []
        """For each switch that was not undone: the mode before, the new mode, and the former's proxy at run time."""
        self._is_to_switch = False
        """True if the code of a program that is traced again has queried the mode, in order to restore it later."""
        self._autocasts: dict[int, list[Proxy]] = {}
        self._asked: set[tuple[str, int]] = set()
        """The queries that are already checked, each with the identity of its graph."""
        self._enabled = is_grad_enabled()

    def restore(self) -> None:
        """Restore the thread's mode from before the trace."""
        if is_grad_enabled() != self._enabled:
            set_grad_enabled(self._enabled)

    # Gradients.

    def set_gradients(self, enabled: bool, frame: FrameType | None) -> None:
        """Record that the traced code switches the recording of gradients, and switch it."""
        enabled = bool(enabled)  # a real bool, not a flag of a module that is read at run time
        where = _entering_or_leaving(frame)
        now = is_grad_enabled()
        innermost = self._gradients[-1] if self._gradients else None
        if where == "__enter__" and innermost is not None and innermost[1] == enabled == now and _is_switch(frame):
            return  # set_grad_enabled(…) has already switched when it was created
        set_grad_enabled(enabled)
        undoes = where == "__exit__" or (where is None and innermost is not None and innermost[:2] == (enabled, now))
        if (
            frame is not None and frame.f_code.co_filename in GENERATED_FILES
        ):  # generated code queries the mode before it switches
            undoes, self._is_to_switch = not self._is_to_switch, False
        if undoes and innermost is not None:
            self._gradients.pop()
            self._record(set_grad_enabled, innermost[2])
            return
        before = self._record(is_grad_enabled)
        self._gradients.append((now, enabled, before))
        self._record(set_grad_enabled, enabled)

    def _record(self, function: Any, *args: Any) -> Proxy:
        return self._tracer.create_proxy("call_function", function, args, {})

    def are_gradients_enabled(self, args: tuple[()], frame: FrameType) -> bool:
        """Answer the traced code. If the program has not set the mode itself, let it check the answer."""
        answer = is_grad_enabled()
        if not _asks(frame):
            self._is_to_switch |= frame.f_code.co_filename in GENERATED_FILES  # functorch queries it too
        elif not self._gradients:
            self._check(is_grad_enabled, args, answer, frame)
        return answer

    # Autocast.

    def enter_autocast(self, context: Any) -> None:
        """Record that an autocast region begins."""
        settings = (context.device, context.fast_dtype, context._enabled, context._cache_enabled)
        self._autocasts.setdefault(id(context), []).append(self._record(enter_autocast, *settings))

    def leave_autocast(self, context: Any) -> None:
        """Record that an autocast region ends."""
        if entered := self._autocasts.get(id(context)):
            self._record(exit_autocast, entered.pop())

    def is_autocast_enabled(self, args: tuple[Any, ...], frame: FrameType) -> bool:
        """Answer the traced code. If the program has not set the mode itself, let it check the answer."""
        answer = _is_autocast_enabled(*args)
        if not any(self._autocasts.values()) and _asks(frame):
            self._check(_is_autocast_enabled, args, answer, frame)
        return answer

    def _check(self, function: Any, args: tuple[Any, ...], answer: bool, frame: FrameType) -> None:
        key = f"{function.__name__}{args}"
        check = (key, id(self._tracer.graph))
        if check not in self._asked:
            self._asked.add(check)
            message = f"the program was captured where {key.strip('()')} was {answer}: {user_location(frame, {})}"
            self._record(check_value, self._record(function, *args), answer, message)


def _make_question(ask: Callable[[Modes, Any, FrameType], bool]) -> Maker:
    return while_tracing(lambda tracer, original, *args: ask(tracer._state.modes, args, sys._getframe(2)))


def _make_inference_mode(original: Any) -> Any:
    """Make the replacement that captures inference mode by its effect on a program: gradients are not recorded."""
    if original.__name__ == "__enter__":

        def __enter__(self: Any) -> None:
            if running_tracer() is None:
                return original(self)
            self._before_trace = is_grad_enabled()
            set_grad_enabled(not self.mode and self._before_trace)
            return None

        return __enter__

    def __exit__(self: Any, *exception: Any) -> None:
        if "_before_trace" not in vars(self):
            return original(self, *exception)
        set_grad_enabled(vars(self).pop("_before_trace"))
        return None

    return __exit__


@while_tracing
def _set_autocast(tracer: Any, original: Any, context: Any, *args: Any, **kwargs: Any) -> None:
    original(context, *map(_setting, args), **{name: _setting(value) for name, value in kwargs.items()})


def _setting(value: Any) -> Any:
    """Return the concrete value of a setting of autocast, which takes no traced device, dtype or flag."""
    if not isinstance(value, Proxy):
        return value
    return ask(
        "identity",
        value,
        sys._getframe(2),
        "cannot set autocast by a traced value",
        why="its value is known only when the module runs",
        remedy="set it by a module attribute or a constant, or give symbolic_trace example_inputs, which determine it",
    )


def _make_autocast(record: Callable[[Modes, Any], None]) -> Maker:
    def method(tracer: Any, original: Any, context: Any, *exception: Any) -> Any:
        record(tracer._state.modes, context)  # also if an exception leaves the block: the traced code may handle it
        return original(context, *exception)

    return while_tracing(method)


def _entering_or_leaving(frame: FrameType | None) -> str | None:
    """Return ``__enter__`` or ``__exit__`` if such a method, of torch or a replacement, makes the switch; else None."""
    for _ in range(3):
        if frame is None or is_users(frame):
            return None
        if frame.f_code.co_name in ("__enter__", "__exit__"):
            return frame.f_code.co_name
        frame = frame.f_back
    return None


def _is_switch(frame: FrameType | None) -> bool:
    if frame is None or frame.f_code.co_name != "__enter__":  # no_grad creates a switch when it is entered
        return False
    return type(frame.f_locals.get("self")) is torch.set_grad_enabled


def _asks(frame: FrameType) -> bool:
    """Return whether the user's code makes the query, not torch; for generated code, whether it checks the answer."""
    if not is_users(frame):
        return False
    if frame.f_code.co_filename not in GENERATED_FILES:
        return True
    following = [
        str(step.value) for step in steps(frame.f_code) if step.offset > frame.f_lasti and step.value is not None
    ]
    return any(value.endswith("check_value") for value in following[:4])


replaced_always(
    torch.__dict__,
    {
        "is_grad_enabled": _make_question(Modes.are_gradients_enabled),
        "is_autocast_enabled": _make_question(Modes.is_autocast_enabled),
    },
)
replaced_always(torch.inference_mode, {"__enter__": _make_inference_mode, "__exit__": _make_inference_mode})
replaced_always(
    autocast,
    {
        "__init__": _set_autocast,
        "__enter__": _make_autocast(Modes.enter_autocast),
        "__exit__": _make_autocast(Modes.leave_autocast),
    },
)
