"""The references of a pass: the operations that its code and data name, and the patterns that it looks for.

Random programs are of little use to a pass that finds nothing in them, so :func:`pytest_fx.check_pass` makes the
references of the pass frequent. They are collected from the pass's code, fields, closures and constants, and from the
functions and classes of the same package that these refer to:

* functions of ``torch``, ``torch.nn.functional`` and ``operator``: ``torch.relu``, ``F.gelu``, ``operator.add``;
* operators of ATen: the operations that become these in an exported program;
* classes of ``torch.nn`` modules, and modules themselves;
* names of tensor methods, as texts: ``"permute"``;
* the operators of a family that the pass queries in :mod:`fx.operators.families`: ``is_one_of(kind, "convolution")``;
* ``"get_attr"``, or a use of all buffers or parameters, if neither operations nor kinds of calls are named;
* functions that wait (:mod:`pytest_fx.generation.waiting`), if the pass queries :mod:`fx.operators.asynchronous`;
* checks (``torch._assert``), by that name, or if the pass queries which nodes must not be erased;
* other constants, such as the ``8.0`` of ``node.args[1] == 8.0``, and ``"reflect"``;
* patterns: functions with ``pattern`` in their name, or if there are none, those that a caller of ``replace_pattern``
  names; and modules, which are captured.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch._ops import OpOverload, OpOverloadPacket

from fx.bytecode.dialects import CONSTANTS, steps
from fx.interop import AdaptedPass
from fx.operators.asynchronous import halves_of
from fx.operators.facts import FAMILIES
from fx.operators.families import operators
from pytest_fx.forms import FormedPass
from pytest_fx.generation.bias import ATTRIBUTE
from pytest_fx.generation.spelled_targets import ATTRIBUTES, CHECK
from pytest_fx.generation.waiting import WAITING
from pytest_fx.harness.capture import GraphModule, capture
from pytest_fx.harness.pass_run import parts_of
from pytest_fx.search.aten_spellings import spellings_of
from pytest_fx.search.inductor_patterns import is_expression, programs_of

MOST_OBJECTS = 5000
"""The most objects that are visited."""
MOST_CONSTANTS = 50
"""The most constants that are collected, those nearest to the pass first."""
LONGEST_TEXT = 13
"""The length of the longest collected text: ``"reflect"``, ``"call_function"``."""
LARGEST_NUMBER = 1000
"""The largest collected number: with larger ones the values of a program are soon infinite."""
MOST_ELEMENTS = 300
"""The most elements of a container that are visited."""
_OPERATIONS = frozenset(
    "torch torch.functional torch.nn.functional torch._C._nn torch._C._linalg torch._C._special torch._C._fft "
    "torch.special torch.linalg operator _operator math".split()
)
_CLOSED = sys.stdlib_module_names | {"torch", "fx"}
"""Packages whose functions and classes are not entered, except for :data:`_OPEN`."""
_OPEN = ("fx.passes.", "fx.pipelines.", "torch.fx.passes.", "torch.fx.experimental.")
"""The packages of passes, which other passes may call, and of their base classes."""
_NO_OPERATIONS = frozenset(
    "no_grad enable_grad manual_seed is_tensor finfo iinfo equal allclose is_floating_point compile typename "
    "set_grad_enabled inference_mode tensor as_tensor asarray scalar_tensor from_numpy".split()
)
_NO_METHODS = frozenset(
    "name names data type device dtype shape grad dim stride backward apply_ register_hook numpy tolist item "
    "data_ptr storage storage_offset untyped_storage is_contiguous cpu cuda requires_grad_ retain_grad".split()
)
_CALLS = frozenset({"call_function", "call_method", "call_module"})
_STATE = frozenset({"named_buffers", "named_parameters", "buffers", "parameters", "get_buffer", "get_parameter"})
_ERASURE = frozenset({"eliminate_dead_code", "is_impure", "is_side_effectful"})
_LOADS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


@dataclass(frozen=True, slots=True)
class PassReferences:
    """The references of a pass."""

    operations: tuple[Any, ...] = ()
    """Functions, names of methods and classes of modules, in the order in which they are found."""
    operators: tuple[Any, ...] = ()
    """Operators of ATen."""
    patterns: tuple[GraphModule, ...] = ()
    """Programs that it looks for."""
    constants: tuple[float | str, ...] = ()
    """Numbers and texts that the pass may look for among the arguments."""
    replaces: bool = False
    """True if it uses the ``replace_pattern`` of torch.fx."""
    removes: bool = False
    """True if it calls ``eliminate_dead_code``, which in torch.fx drops some writes."""
    codes: tuple[types.CodeType, ...] = ()
    """The code of its functions and methods, except for patterns, which are captured and not run."""

    @property
    def names(self) -> frozenset[str]:
        """The names and texts in its code: the pass does not inspect arguments of other names."""
        return frozenset(name for code in self.codes for name in (*_names_in(code), *_texts_in(code)))


def references_of(pass_: Any) -> PassReferences:
    """Return the references of ``pass_``.

    >>> def fuse(graph_module):
    ...     for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
    ...         node.target = torch.nn.functional.gelu
    ...     for node in graph_module.graph.find_nodes(op="call_method", target="relu"): ...
    >>> [getattr(operation, "__name__", operation) for operation in references_of(fuse).operations]
    ['relu', 'gelu', 'relu']
    """
    search = _ReferenceWalk()
    search.run(pass_.pass_ if isinstance(pass_, FormedPass) else pass_)
    texts = set(search.constants.values())
    attributes = (ATTRIBUTE,) if ATTRIBUTE in texts and texts.isdisjoint(_CALLS) else ()
    named = FAMILIES.intersection(texts).difference(dir(torch.Tensor)) if search.reads_table else ()
    families = [row for row in operators() if row.family in named]
    operations = {kind: None for row in families for kind in (row.function, *row.modules)} | search.operations
    return PassReferences(
        (
            *(WAITING if search.asks_what_waits else ()),
            *(operations or attributes),
            *([CHECK] if search.checks else []),
        ),
        tuple(search.operators),
        tuple(search.patterns),
        tuple(search.constants.values())[:MOST_CONSTANTS],
        search.replaces,
        search.removes,
        tuple(search.codes),
    )


class _ReferenceWalk:
    """A walk over the objects that a pass refers to, each object once, those nearest to the pass first."""

    def __init__(self) -> None:
        self.operations: dict[Any, None] = {}
        self.operators: list[OpOverload | OpOverloadPacket] = []
        self.patterns: list[GraphModule] = []
        self.constants: dict[str, float | str] = {}  # by their text, as 1 and 1.0 are equal
        self.codes: list[types.CodeType] = []
        self.replaces = self.removes = self.checks = self.reads_table = self.asks_what_waits = False
        self._seen: set[int] = set()
        self._alive: list[Any] = []  # an id may be reused after its object is freed
        self._made_before: set[type] = set()

    def run(self, pass_: Any) -> None:
        self._made_before = {kind for part in parts_of(pass_) for kind in type(part).__mro__}
        pending: list[Any] = [pass_]
        while pending and len(self._seen) < MOST_OBJECTS:
            value = pending.pop(0)
            if id(value) not in self._seen:
                self._seen.add(id(value))
                self._alive.append(value)
                pending.extend(self._parts(value))

    def _parts(self, value: Any) -> Iterator[Any]:
        """Record the references in ``value``, and yield the objects that it refers to."""
        if value is CHECK or (isinstance(value, str) and value == CHECK.__name__):  # others may not be comparable
            self.checks = True
        elif isinstance(value, str):
            is_method = value not in _NO_METHODS and callable(getattr(torch.Tensor, value, None))
            if (value[:1] != "_" and is_method) or value in ATTRIBUTES:
                self.operations[value] = None
            if len(value) <= LONGEST_TEXT or value in FAMILIES:
                self.constants[repr(value)] = value
        elif type(value) in (int, float):
            if abs(value) <= LARGEST_NUMBER:
                self.constants[repr(value)] = value
            if math.isinf(value):  # -math.inf is two instructions
                self.constants |= {repr(number): number for number in (math.inf, -math.inf)}
        elif _is_operation(value):
            self.operations[value] = None
        elif isinstance(value, (OpOverload, OpOverloadPacket)):
            self.operators.append(value)
            self.operations |= dict.fromkeys(spellings_of(value))
        elif isinstance(value, type):
            if issubclass(value, nn.Module) and value.__module__.startswith("torch.nn.modules"):
                self.operations[value] = None
            elif is_open(value):
                special = self._special_methods(value)
                yield from (part for name, part in vars(value).items() if name[:2] != "__" or name in special)
                yield from value.__bases__
        elif isinstance(value, types.FunctionType):
            self.replaces |= value.__module__ == "torch.fx.subgraph_rewriter"
            self.reads_table |= value.__module__ == operators.__module__
            self.asks_what_waits |= value.__module__ == halves_of.__module__
            if is_open(value):
                yield from self._parts_of_function(value)
        elif isinstance(value, nn.Module):
            yield type(value)
            self._add_pattern(value)
        elif is_expression(value):
            self.patterns += programs_of(value)
            yield [*vars(value).values()]
        else:
            yield from _parts_of_value(value)

    def _special_methods(self, kind: type) -> tuple[str, ...]:
        """Return the special methods that run with the pass: for its helpers also the constructor."""
        if kind in self._made_before or dataclasses.is_dataclass(kind):  # a dataclass has a generated constructor
            return ("__call__",)
        return ("__call__", "__init__")

    def _parts_of_function(self, function: types.FunctionType) -> Iterator[Any]:
        names = set(_names_in(function.__code__))
        self.removes |= "eliminate_dead_code" in names
        self.checks |= not _ERASURE.isdisjoint(names)
        if not _STATE.isdisjoint(names):
            self.constants.setdefault(repr(ATTRIBUTE), ATTRIBUTE)
        if "pattern" in function.__name__.lower():
            self._add_pattern(function)
        elif "replacement" not in function.__name__.lower():
            self.codes.append(function.__code__)
        yield from function.__defaults__ or ()
        for cell in function.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not filled yet
                continue
        named = list(_named_in(function.__code__, function.__globals__))
        if any("replace_pattern" in name for name in names):
            own = [part for part in named if isinstance(part, types.FunctionType) and is_open(part)]
            if not any("pattern" in part.__name__.lower() for part in own):
                for part in own:  # functions of any name, but no lambdas
                    self._add_pattern(part)
        yield from named
        if (wrapped := getattr(function, "__wrapped__", None)) is not None:
            yield wrapped

    def _add_pattern(self, pattern: Any) -> None:
        if isinstance(pattern, GraphModule):
            self.patterns.append(pattern)
            return
        try:
            self.patterns.append(capture(pattern))
        except Exception:  # a function with such a name that is not a pattern may raise anything
            return


def _is_operation(value: Any) -> bool:
    if isinstance(value, type) or not callable(value):
        return False
    name = getattr(value, "__name__", "")
    if not isinstance(name, str):  # of an object that answers for every attribute
        return False
    module = getattr(value, "__module__", None)
    if module is None:  # torch's own built-in functions
        return getattr(torch, name, None) is value and name not in _NO_OPERATIONS
    if getattr(torch.nn.functional, name.lstrip("_"), None) is value:  # F.threshold is called _threshold
        return True
    return module in _OPERATIONS and name[:1] != "_" and name not in _NO_OPERATIONS


def is_open(value: Any) -> bool:
    """Return whether a function or class is in a module whose functions may be part of a pass."""
    module = str(getattr(value, "__module__", None))
    return module.startswith(_OPEN) or module.partition(".")[0] not in _CLOSED


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in the code and its inner code."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _texts_in(code: types.CodeType) -> Iterator[str]:
    """Yield the texts in the code and its inner code."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _texts_in(constant)
        elif isinstance(constant, str):
            yield constant


def _named_in(code: types.CodeType, names: dict[str, Any]) -> Iterator[Any]:
    """Yield the objects that the code refers to by global names, its constants and its inner functions.

    Names and loaded constants come in the order of the code.
    """
    current: Any = None
    for step in steps(code):
        if isinstance(current, types.ModuleType) and step.name in _LOADS:
            current = getattr(current, step.value, None)
            continue
        if current is not None:
            yield current
        current = names.get(step.value) if step.name in ("LOAD_GLOBAL", "LOAD_NAME") else None
        if step.name in CONSTANTS and not isinstance(step.value, types.CodeType):
            yield step.value
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            # A function cannot be made without the variables that it closes over.
            if constant.co_freevars:
                yield from _named_in(constant, names)
            else:
                yield types.FunctionType(constant, names)
        else:
            yield constant


def name_of(value: Any) -> str:
    """Return a sort key for elements of a set, whose own order differs in each process."""
    if isinstance(value, tuple):
        return " ".join(map(name_of, cast("tuple[Any, ...]", value)))
    name = getattr(value, "__qualname__", None)
    return repr(value) if name is None else f"{getattr(value, '__module__', None)}.{name}"


def _parts_of_value(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key, element in list(cast("Mapping[Any, Any]", value).items())[:MOST_ELEMENTS]:
            yield key
            yield element
    elif isinstance(value, (list, tuple)):
        yield from cast("Any", value)[:MOST_ELEMENTS]
    elif isinstance(value, (set, frozenset)):
        # Sets of strings have another order in each process, but programs of a seed must be the same.
        yield from sorted(cast("set[Any]", value), key=name_of)[:MOST_ELEMENTS]
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, (staticmethod, classmethod, types.MethodType)):
        yield value.__func__
        yield getattr(value, "__self__", None)
    elif isinstance(value, property):
        yield value.fget
    elif isinstance(value, AdaptedPass):
        yield value.pass_
    elif dataclasses.is_dataclass(value):
        yield from (getattr(value, field.name, None) for field in dataclasses.fields(value))
        yield type(value)
    elif is_open(type(value)):
        yield type(value)
        yield getattr(value, "__dict__", None)
