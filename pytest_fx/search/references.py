"""What a pass refers to: the operations that its code and its data name, and the patterns that it looks for.

Random programs are of little use to a pass that finds nothing in them, so :func:`pytest_fx.check_pass` makes frequent
what the pass mentions. Found are, in the pass's code, fields, closures and constants, and in the functions and classes
of the same package that these lead to:

* functions of ``torch``, ``torch.nn.functional`` and ``operator``: ``torch.relu``, ``F.gelu``, ``operator.add``;
* classes of ``torch.nn`` modules, and modules themselves;
* names of tensor methods, as texts: ``"permute"``;
* the operators of a family, where it asks :mod:`fx.operators.families` about one: ``is_one_of(kind, "convolution")``;
* ``"get_attr"``, or a look at all buffers or parameters, where neither operations nor kinds of calls are named;
* functions that wait (:mod:`pytest_fx.generation.waiting`), where it asks :mod:`fx.operators.asynchronous` about one;
* checks (``torch._assert``), by that name, or where a pass asks what must not be erased;
* other constants, such as the ``8.0`` of ``node.args[1] == 8.0``, and ``"reflect"``;
* patterns: functions with ``pattern`` in their name, or those that a caller of ``replace_pattern`` names if there is
  none such, and modules, which are captured.
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

from fx.bytecode.dialects import CONSTANTS, steps
from fx.interop import AdaptedPass
from fx.operators.asynchronous import halves_of
from fx.operators.facts import FAMILIES
from fx.operators.families import operators
from pytest_fx.generation.bias import ATTRIBUTE
from pytest_fx.generation.spelled_targets import ATTRIBUTES, CHECK
from pytest_fx.generation.waiting import WAITING
from pytest_fx.harness.capture import GraphModule, capture
from pytest_fx.harness.pass_run import parts_of

MOST_OBJECTS = 5000
"""How many objects are looked at."""
MOST_CONSTANTS = 50
"""How many constants are noted, those nearest to the pass first."""
LONGEST_TEXT = 13
"""The longest text among them: ``"reflect"``, ``"call_function"``."""
LARGEST_NUMBER = 1000
"""The largest of them: a program with larger ones is soon far from anything finite."""
MOST_ELEMENTS = 300
"""How many elements of a container are looked at."""
_OPERATIONS = frozenset(
    "torch torch.functional torch.nn.functional torch._C._nn torch._C._linalg torch._C._special torch._C._fft "
    "torch.special torch.linalg operator _operator math".split()
)
_CLOSED = sys.stdlib_module_names | {"torch", "fx"}
"""Packages into whose functions and classes the search does not go, but for :data:`_OPEN`."""
_OPEN = ("fx.passes.", "torch.fx.passes.", "torch.fx.experimental.")
"""Where passes are in them, which others call."""
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
    """What a pass names."""

    operations: tuple[Any, ...] = ()
    """Functions, names of methods and classes of modules, in the order in which they are found."""
    patterns: tuple[GraphModule, ...] = ()
    """Programs that it looks for."""
    constants: tuple[float | str, ...] = ()
    """Numbers and texts that may be what it looks for among the arguments."""
    replaces: bool = False
    """Whether it uses the ``replace_pattern`` of torch.fx."""
    removes: bool = False
    """Whether it calls ``eliminate_dead_code``, which in torch.fx drops some writes."""
    codes: tuple[types.CodeType, ...] = ()
    """The code of its functions and methods, but for patterns, which are captured and not run."""

    @property
    def names(self) -> frozenset[str]:
        """Return the names and texts in its code: an argument of another name is one that it does not look at."""
        return frozenset(name for code in self.codes for name in (*_names_in(code), *_texts_in(code)))


def references_of(pass_: Any) -> PassReferences:
    """Return what ``pass_`` names.

    >>> def fuse(graph_module):
    ...     for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
    ...         node.target = torch.nn.functional.gelu
    ...     for node in graph_module.graph.find_nodes(op="call_method", target="relu"): ...
    >>> [getattr(found, "__name__", found) for found in references_of(fuse).operations]
    ['relu', 'gelu', 'relu']
    """
    search = _ReferenceWalk()
    search.run(pass_)
    texts = set(search.constants.values())
    attributes = (ATTRIBUTE,) if ATTRIBUTE in texts and texts.isdisjoint(_CALLS) else ()
    named = FAMILIES.intersection(texts).difference(dir(torch.Tensor)) if search.reads_table else ()
    families = [row for row in operators() if row.family in named]
    operations = {one: None for row in families for one in (row.function, *row.modules)} | search.operations
    return PassReferences(
        (
            *(WAITING if search.asks_what_waits else ()),
            *(operations or attributes),
            *([CHECK] if search.checks else []),
        ),
        tuple(search.patterns),
        tuple(search.constants.values())[:MOST_CONSTANTS],
        search.replaces,
        search.removes,
        tuple(search.codes),
    )


class _ReferenceWalk:
    """One walk over what a pass leads to, each object once, those nearest to the pass first."""

    def __init__(self) -> None:
        self.operations: dict[Any, None] = {}
        self.patterns: list[GraphModule] = []
        self.constants: dict[str, float | str] = {}  # by their text, as 1 and 1.0 are equal
        self.codes: list[types.CodeType] = []
        self.replaces = self.removes = self.checks = self.reads_table = self.asks_what_waits = False
        self._seen: set[int] = set()
        self._alive: list[Any] = []  # as an id may be used again
        self._made_before: set[type] = set()

    def run(self, pass_: Any) -> None:
        self._made_before = {kind for part in parts_of(pass_) for kind in type(part).__mro__}
        pending: list[Any] = [pass_]
        while pending and len(self._seen) < MOST_OBJECTS:
            found = pending.pop(0)
            if id(found) not in self._seen:
                self._seen.add(id(found))
                self._alive.append(found)
                pending.extend(self._parts(found))

    def _parts(self, found: Any) -> Iterator[Any]:
        """Note what ``found`` is, and yield what it leads to."""
        if found is CHECK or found == CHECK.__name__:
            self.checks = True
        elif isinstance(found, str):
            is_method = found not in _NO_METHODS and callable(getattr(torch.Tensor, found, None))
            if (found[:1] != "_" and is_method) or found in ATTRIBUTES:
                self.operations[found] = None
            if len(found) <= LONGEST_TEXT or found in FAMILIES:
                self.constants[repr(found)] = found
        elif type(found) in (int, float):
            if abs(found) <= LARGEST_NUMBER:
                self.constants[repr(found)] = found
            if math.isinf(found):  # -math.inf is two instructions
                self.constants |= {repr(one): one for one in (math.inf, -math.inf)}
        elif _is_operation(found):
            self.operations[found] = None
        elif isinstance(found, type):
            if issubclass(found, nn.Module) and found.__module__.startswith("torch.nn.modules"):
                self.operations[found] = None
            elif is_open(found):
                special = self._special_methods(found)
                yield from (part for name, part in vars(found).items() if name[:2] != "__" or name in special)
                yield from found.__bases__
        elif isinstance(found, types.FunctionType):
            self.replaces |= found.__module__ == "torch.fx.subgraph_rewriter"
            self.reads_table |= found.__module__ == operators.__module__
            self.asks_what_waits |= found.__module__ == halves_of.__module__
            if is_open(found):
                yield from self._parts_of_function(found)
        elif isinstance(found, nn.Module):
            yield type(found)
            self._add_pattern(found)
        else:
            yield from _parts_of_value(found)

    def _special_methods(self, kind: type) -> tuple[str, ...]:
        """Return the special methods that run with the pass: also how its helpers are made, but not the pass itself."""
        if kind in self._made_before or dataclasses.is_dataclass(kind):  # whose constructor is generated
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
                for part in own:  # by whatever name, if it has one: a lambda has none
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
        except Exception:  # whatever a function that is called so, but is not a pattern, raises
            return


def _is_operation(found: Any) -> bool:
    if isinstance(found, type) or not callable(found):
        return False
    name = getattr(found, "__name__", "")
    module = getattr(found, "__module__", None)
    if module is None:  # torch's own built-in functions
        return getattr(torch, name, None) is found and name not in _NO_OPERATIONS
    if getattr(torch.nn.functional, name.lstrip("_"), None) is found:  # F.threshold is called _threshold
        return True
    return module in _OPERATIONS and name[:1] != "_" and name not in _NO_OPERATIONS


def is_open(found: Any) -> bool:
    """Return whether a function or class is of a module whose functions may be part of a pass."""
    module = str(getattr(found, "__module__", None))
    return module.startswith(_OPEN) or module.partition(".")[0] not in _CLOSED


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in the code, and in what is defined inside."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _texts_in(code: types.CodeType) -> Iterator[str]:
    """Yield the texts in the code, and in what is defined inside."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _texts_in(constant)
        elif isinstance(constant, str):
            yield constant


def _named_in(code: types.CodeType, names: dict[str, Any]) -> Iterator[Any]:
    """Yield what the code refers to by names that are known before it runs, its constants and its inner functions.

    Names and the constants that are loaded come in the code's own order.
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
            # Without the variables that it closes over no function can be made of it.
            if constant.co_freevars:
                yield from _named_in(constant, names)
            else:
                yield types.FunctionType(constant, names)
        else:
            yield constant


def name_of(found: Any) -> str:
    """Return what to sort a set by, whose own order is another one in each process."""
    if isinstance(found, tuple):
        return " ".join(map(name_of, cast("tuple[Any, ...]", found)))
    name = getattr(found, "__qualname__", None)
    return repr(found) if name is None else f"{getattr(found, '__module__', None)}.{name}"


def _parts_of_value(found: Any) -> Iterator[Any]:
    if isinstance(found, Mapping):
        for key, value in list(cast("Mapping[Any, Any]", found).items())[:MOST_ELEMENTS]:
            yield key
            yield value
    elif isinstance(found, (list, tuple)):
        yield from cast("Any", found)[:MOST_ELEMENTS]
    elif isinstance(found, (set, frozenset)):
        # Sets of strings have another order in each process, and programs of a seed must be the same.
        yield from sorted(cast("set[Any]", found), key=name_of)[:MOST_ELEMENTS]
    elif isinstance(found, functools.partial):
        yield from (found.func, found.args, found.keywords)
    elif isinstance(found, (staticmethod, classmethod, types.MethodType)):
        yield found.__func__
        yield getattr(found, "__self__", None)
    elif isinstance(found, property):
        yield found.fget
    elif isinstance(found, AdaptedPass):
        yield found.pass_
    elif dataclasses.is_dataclass(found):
        yield from (getattr(found, field.name, None) for field in dataclasses.fields(found))
        yield type(found)
    elif is_open(type(found)):
        yield type(found)
        yield getattr(found, "__dict__", None)
