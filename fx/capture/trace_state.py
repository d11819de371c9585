"""``TraceState``: the state of one run of a traced program, and the changes that another run would need."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, NoneType
from typing import Any

import torch

from fx.assertions import ASSERTIONS, check_value
from fx.bytecode.mentions import call_of_starred, identities, unpacks
from fx.capture.bodies import Body
from fx.capture.leaf_calls import called_method, calls_classes, record_classes, record_methods, recording
from fx.capture.modes import Modes
from fx.capture.patching import Trace
from fx.capture.real_tensors import RealTensors
from fx.capture.recorded_calls import RecordedCalls
from fx.capture.restore.earlier_calls import AssignedAttributes
from fx.capture.restore.record import Record
from fx.capture.shared_values import (
    check_entries,
    expect_given,
    expect_known,
    fails_for_none,
    is_of_torch,
    tests_of,
    write_where_it_shows,
)
from fx.capture.training_flag import TrainingFlags
from fx.checks.questions import ask, check_once
from fx.checks.traced_values import kind_of, outside_fx
from fx.code.wrapping import wrapped_globals
from fx.errors import TracedValueError, TraceError
from fx.frames import users_frame
from fx.node import Node
from fx.provenance import SourceLocation
from fx.proxy import Proxy, RecordingState


@dataclass(frozen=True, slots=True)
class Needs:
    """The differences of a run from a first one, which was refused."""

    calls: bool = False
    """True to record calls of Python's classes (``int(x)``), and of methods of concrete tensors, with traced values."""
    namespaces: tuple[dict[str, Any], ...] = ()
    """The globals of code that has called such classes."""
    methods: frozenset[str] = frozenset()
    """The methods of tensors that were called."""
    optional_inputs: bool = False
    """True to give the optional inputs that the program tests, instead of leaving them out."""
    unchecked: frozenset[str] = frozenset()
    """The inputs to give without a check, to see whether the program is another one without them."""
    how: str = ""
    """The difference from the first run, in words."""
    why: str | None = None
    """The reason that the first run was refused, with the user's line."""


NO_NEEDS = Needs()
"""The needs of a first run."""
_SIZES_FROM = {
    name: start
    for start, names in (
        (1, "expand flip new_empty new_ones new_zeros permute repeat reshape tile view"),
        (0, "empty ones rand randn zeros"),
    )
    for name in names.split()
}
"""Methods and functions that take sizes one by one or as a tuple, with the number of arguments before the sizes."""


class SpreadShape(Proxy):
    """A placeholder, among the arguments of a call, for all elements of a traced shape."""

    __slots__ = ("frame", "place", "refusal", "whole")

    def __init__(self, whole: Proxy, frame: FrameType, place: tuple[int, int], refusal: TraceError) -> None:
        super().__init__(whole.node, whole.tracer)
        self.whole = whole
        """The traced shape."""
        self.frame = frame
        """The frame that makes the call."""
        self.place = place
        """The first and last offset of the call in the frame's byte code."""
        self.refusal = refusal
        """The error to raise if anything but that call reads the elements."""

    @property
    def node(self) -> Node:  # type: ignore[override]
        """Refuse: the placeholder is not a value of the program."""
        raise self.refused()

    @node.setter
    def node(self, _: Node) -> None:  # type: ignore[override]
        """Ignore the assignment."""

    def refused(self) -> TraceError:
        """Return this error, which ends the trace even if it is caught."""
        self.tracer._state.refused = self.refusal
        return self.refusal


class TraceState(RecordingState):
    """The state of one run, and its handling of the tracing thread's use of modules."""

    trace: Trace | None = None
    """The replacements in the process while the run goes on."""
    calls: RecordedCalls | None = None
    """The replacements in the globals of traced code."""
    modules: Record | None = None
    """The contents of modules, to be restored."""
    modes: Modes
    """The gradient and autocast modes that the traced code sets and queries."""
    flags: TrainingFlags | None = None
    """The training flags that the traced code reads."""
    real: RealTensors | None = None
    """The operations of the traced code on real tensors."""
    body: Body | None
    none: Node | None = None
    """The latest node, if its value is compared by identity, and is None for the example inputs."""
    attribute_paths: dict[int, tuple[Any, str]] | None = None
    """The tensors in attributes of modules, with their paths, by identity."""
    parameter_paths: dict[int, str] | None = None
    """The paths of parameters, by identity."""
    is_verified: bool = False
    """True if the program was run again to verify that it does the same."""
    has_raised: bool = False
    """True if this run or an earlier one has raised an exception, whose traceback holds traced values."""

    def __init__(
        self, tracer: Any = None, needs: Needs = NO_NEEDS, examples: Any = None, fake_mode: Any = None
    ) -> None:
        """Create the state at the start of a run, or an empty one without a tracer."""
        super().__init__()
        self.tracer = tracer
        self.needs = needs
        self.examples = examples
        self.fake_mode = fake_mode
        self.spread_shapes, self.indexed = [], []
        self.called_in: dict[int, dict[str, Any]] = {}
        """The globals of code that was refused because it calls Python's classes, by identity."""
        self.left_out: dict[str, str] = {}
        """The inputs that were left out, each with the kind of the question about it."""
        self.checks_of_inputs: list[Node] = []
        """The checks that inputs without a default are given."""
        self.assigned = AssignedAttributes()
        """The attributes of modules that the traced code assigns."""
        self.parameter_proxies: dict[str, Any] = {}

    # Another run.

    def again(self, needs: Needs) -> TraceState:
        """Return the state of another run of the same program, with the same inputs."""
        state = type(self)(self.tracer, needs, self.examples, self.fake_mode)
        state.has_raised = self.has_raised
        return state

    def drop(self) -> None:
        """Drop traced values, and references to the tracer, at the end of the run."""
        self.trace = self.calls = self.flags = self.real = self.body = self.exceptions = self.guide = self.none = None
        self.parameter_proxies, self.written, self.spread_shapes, self.indexed = {}, {}, [], []
        vars(self).pop("modes", None)

    @property
    def runs_again(self) -> bool:
        """True if there will be another run, which records the calls that this one was refused for."""
        return bool(self.called_in) and not self.needs.calls

    def needs_after(self, error: Exception) -> Needs | None:
        """Return the changes that another run needs after this one has failed; None if nothing helps."""
        if self.is_verified or self.needs.calls:
            return None
        if isinstance(error, TraceError):
            method = called_method(error.__cause__)
            if method is None and not self.called_in:
                return self._with_optional_inputs(error) if "unknown" in self.left_out.values() else None
            how, methods = "with calls of Python's classes recorded", frozenset({method} if method else ())
            return Needs(True, tuple(self.called_in.values()), methods, how=how, why=_why(error, how))
        return self._with_optional_inputs(error) if self.left_out else None

    def _with_optional_inputs(self, error: Exception) -> Needs:
        how = "with its optional inputs"
        return Needs(True, optional_inputs=True, how=how, why=_why(error, how))

    def needs_to_compare(self) -> Needs | None:
        """Return the changes of a run that shows whether inputs matter of which byte code does not show it."""
        unknown = frozenset(name for name, kind in self.left_out.items() if kind == "unknown")
        if not unknown or self.needs is not NO_NEEDS or self.is_verified:
            return None
        return Needs(unchecked=unknown, how="with its optional inputs", why=f"to compare it with {', '.join(unknown)}")

    # Queries of the traced code (``fx.checks.questions``).

    def answer(self, question: str, asked: Proxy, what: str, kind: type[TraceError] = TraceError, **lines: Any) -> Any:
        """Return the answer of the example inputs about a traced value, which the program checks.

        Raises:
            TraceError: there are no example inputs, or they do not determine the answer.
        """
        if question == "bool" and asked.node in self.flag_defaults:
            return self._default_of_flag(asked, lines["where"])
        if self.guide is None or self.runs_again:
            raise self.tracer._refusal(what, kind, **lines)
        return self.guide.answer(question, asked, what, kind, **lines)

    def _default_of_flag(self, flag: Proxy, where: object) -> bool:
        """Capture the program with the default of a flag, and let it check that."""
        name, value = flag.node.target, flag.node.args[0]
        other = f"concrete_args={{{name!r}: {not value}}} captures it otherwise"
        check_once(check_value, flag, value, f"the program was captured where {name} was {value} ({other}): {where}")
        return bool(value)

    def index(self, value: Proxy, frame: FrameType) -> int:
        """Return the integer value of a traced value for the example inputs.

        Raises:
            TracedValueError: they do not determine it.
        """
        if self.guide is None:
            raise TracedValueError("a traced value is used as an integer after its trace is over")
        number, guard = self.guide.index(value, frame)
        caller = users_frame(frame)
        self.indexed.append((caller, caller.f_lasti, guard))
        return number

    def take_back_guards(self, args: Any, kwargs: Any) -> None:
        """Remove guards of integers that the calling instruction took: it is recorded with the traced values."""
        frame = users_frame(sys._getframe(1))
        pending, self.indexed = self.indexed, []
        guards = [guard for asking_frame, place, guard in pending if asking_frame is frame and place == frame.f_lasti]
        if self.guide is not None and any(guards):
            self.guide.take_back(guards, (args, kwargs))

    def value_compared(self, node: Node, location: SourceLocation) -> None:
        """Let the program check what its comparisons of a value by identity assume, or refuse them."""
        code = location._code
        if code is None or not identities(code):
            location.is_compared = False
        elif not (tests := tests_of(node, location)):
            location.is_compared = unpacks(code, location._offset)
        elif self.guide is not None and node.target not in ASSERTIONS and self._is_none(node):
            self.none = node
        else:
            expect_known(self.tracer, node, tests, code)

    def _is_none(self, node: Node) -> bool:
        """Return whether the value of a node is None for the example inputs: all that leads to it is run on fakes."""
        return self.guide.kind_of(Proxy(node, self.tracer)) is NoneType

    def expect_given(self, node: Node) -> None:
        """Let the program check that a value is not None, which code of torch compares."""
        expect_given(self.tracer, node, node.source)

    def none_or(self, value: Proxy) -> Any:
        """Return None, under a guard, if the value is compared by identity and is None for the example inputs."""
        if self.none is not value.node:
            return value
        self.none = None
        # proxies answer for attributes themselves
        return value if value.node.target is getattr else ask("identity", value, sys._getframe(1))

    def spread_elements(self, value: Proxy, frame: FrameType, refusal: TraceError) -> Any:
        """Return a placeholder for all elements of a shape that ``frame`` spreads in a call; None if it does not."""
        if self.guide is not None and self.guide.knows(value):
            return None
        is_asked = self.trace is not None and kind_of(value.node) == (torch.Size, True)
        place = call_of_starred(frame) if is_asked else None
        if place is None:
            return None
        self.spread_shapes.append(SpreadShape(value, frame, place, refusal))
        return self.spread_shapes[-1]

    def take_spread(
        self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call with traced tuples in place of the placeholders for shapes.

        Raises:
            TraceError: this call does not spread the shapes, or it takes no tuple of sizes.
        """
        frame = outside_fx(sys._getframe(1))

        def is_here(shape: SpreadShape) -> bool:
            return shape.frame is frame and shape.place[0] <= frame.f_lasti <= shape.place[1]

        def whole(argument: Any) -> Any:
            shapes = [part for part in argument if type(part) is SpreadShape] if type(argument) in (list, tuple) else []
            used.extend(shapes)
            return self._joined(argument) if shapes else argument

        used: list[SpreadShape] = []
        expected = list(filter(is_here, self.spread_shapes))
        # A function of the user may do anything with the elements: `counts(*x.shape)`.
        is_torch = kind == "call_method" or (kind == "call_function" and is_of_torch(target))
        if not expected or not is_torch:
            return args, kwargs
        self.spread_shapes = [shape for shape in self.spread_shapes if not is_here(shape)]
        start = _SIZES_FROM.get(target if kind == "call_method" else getattr(target, "__name__", ""), len(args))
        if any(type(argument) is SpreadShape for argument in args[:start]):
            raise expected[0].refused()
        if any(type(argument) is SpreadShape for argument in args):
            args = (*args[:start], args[start:])
        args, kwargs = tuple(map(whole, args)), {name: whole(argument) for name, argument in kwargs.items()}
        # A call inside this one has taken some of the elements: `x.view(counts(*x.shape), -1)`.
        if len(used) != len(expected):
            raise expected[0].refused()
        return args, kwargs

    def _joined(self, elements: Any) -> Any:
        """Return a traced tuple of the sizes: those of the spread shapes and the single sizes between them."""
        parts: list[Any] = []
        for element in elements:
            if type(element) is SpreadShape:
                parts.append(element.whole)
            elif parts and type(parts[-1]) is tuple:
                parts[-1] += (element,)
            else:
                parts.append((element,))
        joined = parts[0]
        for part in parts[1:]:
            joined = self.tracer.create_proxy("call_function", operator.add, (joined, part), {})
        return joined

    def note_class_called(self, frame: FrameType) -> None:
        """Note that ``frame`` is refused because it called a Python class, which takes concrete values."""
        namespace = frame.f_globals
        if not self.needs.calls and id(namespace) not in self.called_in and calls_classes(frame):
            self.called_in[id(namespace)] = namespace

    # Replacements.

    def replace_functions(self, trace: Trace, function: Callable[..., Any]) -> None:
        """Replace functions in traced code, which begins with ``function``, by ones that record their calls."""
        self.trace = trace
        self.calls = RecordedCalls(trace, self.tracer._autowrap_functions, self.needs.calls)
        if self.modules is not None:
            self.assigned.watch(trace, self.modules.facts)
            if self.needs.calls:
                around = self.modules.facts
                record_methods(trace, self.needs.methods | around.read)
                for namespace in (*self.needs.namespaces, *around.namespaces.values()):
                    record_classes(trace, namespace)
        for namespace, name in wrapped_globals():
            trace.replace(namespace, (name,), recording)
        for module in self.tracer._autowrap_search:
            self.calls.search(module.__dict__)
        self.calls.search_function(function)

    # Nodes.

    def simplify(self) -> None:
        """Remove unused nodes and checks of inputs that fail anyway, and write in place where that is visible."""
        for check in self.checks_of_inputs:
            if not check._erased and any(
                fails_for_none(user, check.args[0]) for user in check.all_input_nodes[0].users
            ):
                check.graph.erase_node(check)
        check_entries(self.tracer)
        if self.real is not None:
            self.real.drop_unused()
        if self.guide is not None:
            self.guide.drop_unused()
        write_where_it_shows(self.augmented, self.tracer.root)

    # The tracing thread's use of modules.

    def module_called(
        self, original: Callable[..., Any], module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Let the tracer handle the call ``module(*args, **kwargs)``."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self.calls is not None:
                self.calls.search_function(type(module).forward)
            return original(module, *args, **kwargs)

        exceptions = self.exceptions
        if exceptions is None or not exceptions.pause():
            return self.tracer.call_module(module, forward, args, kwargs)
        try:
            return self.tracer.call_module(module, exceptions.resumed(forward), args, kwargs)
        finally:
            exceptions.resume()


def _why(error: Exception, how: str) -> str:
    """Return the reason for a second run, in one line, and the difference from the first."""
    what, *lines = str(error).splitlines() or [type(error).__name__]
    where = next((line[9:] for line in lines if line.startswith("  where")), "")
    return f"{how}: {what}" + (f", {where}" if where else "")
