"""Rules for the effects of functions and methods, by target: from schemas, from signatures, from short lists.

A target counts as pure only if there is evidence: its operator schema, its place among Python's or torch's pure
functions, or the user's declaration. Everything else counts as an effect.
"""

from __future__ import annotations

import builtins
import cmath
import functools
import math
import operator
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter, Signature
from typing import Any, Literal, TypeAlias

import torch
from torch._higher_order_ops import effects as registered_effects
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from fx.assertions import ASSERTIONS, is_false
from fx.naming.targets import home_of, words
from fx.operators.families import find_in_place, find_operator
from fx.operators.overloads import Overload, get_overloads, get_python_signature
from fx.operators.python import BUILTINS, IN_PLACE
from fx.operators.tensor_queries import FUNCTIONS


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect of one operation, besides computing its value."""

    kind: Literal["interface", "write", "random", "check", "state", "unknown"]
    """``interface``: an input or the output. ``write``: writes to a value or buffer. ``random``: moves a random
    generator. ``check``: may raise on purpose. ``state``: changes something outside. ``unknown``: perhaps any."""
    does: str
    """A description of the effect, in words that follow the node's name."""
    written: int | str | None = None
    """The written argument, by position or keyword; ``None`` if it is not an argument."""
    draws: bool = False
    """True if it also draws random numbers, as in-place dropout does, which counts as a write."""
    sets_modes: bool = False
    """True if it may change the results of other operations, as setting the gradient mode does."""


Rule: TypeAlias = "Effect | Callable[[Sequence[Any], Mapping[str, Any]], Effect | None] | None"
"""The rule for a target: an effect, none, or a function from the arguments of one call to its effect."""

CHECKS = Effect("check", "checks a condition")
COMMUNICATES = Effect("state", "communicates with other processes")
DRAWS = Effect("random", "draws random numbers")
RENORMALIZES = Effect("write", "renormalizes its weight")
SETS_STATE = Effect("state", "changes state outside of the program", sets_modes=True)
UNKNOWN = Effect("unknown", "has no operator schema and is not declared pure")
UNKNOWN_OF_TORCH = replace(UNKNOWN, sets_modes=True)
UPDATES_STATISTICS = Effect("write", "updates running statistics")
WRITES_FIRST = Effect("write", "writes to", 0)
WRITES_SEVERAL = Effect("write", "writes to several of its arguments")
DRAWS_INTO_FIRST = replace(WRITES_FIRST, draws=True)

_torch: Any = torch  # for the functions that torch leaves without types

rules: dict[Any, Rule] = {
    _torch._assert: CHECKS,
    **dict.fromkeys(ASSERTIONS, CHECKS),
    _torch._C._set_grad_enabled: SETS_STATE,
    _torch.amp._enter_autocast: SETS_STATE,
    _torch.amp._exit_autocast: SETS_STATE,
    _torch.asarray: None,
    _torch.from_numpy: None,
    _torch.frombuffer: None,
    is_false: None,
}
"""The user's declarations, and the derived rules of functions of torch and Python and of names of methods.

The user's own functions are not added unless declared: the table would keep them alive."""


_WRITING_OPERATORS = frozenset(function.__name__ for function in IN_PLACE)
_PURE_MODULES = ("torch.nn.functional", "torch.functional", "torch._linalg_utils")
"""Modules of torch whose functions only compute, unless their arguments say otherwise."""

_VALUE_TYPES = (str, bytes, bool, int, float, complex, tuple, list, dict, set, frozenset, slice, range, torch.Size)
_PURE_CLASSES = frozenset({*_VALUE_TYPES, torch.device, torch.Tensor, enumerate, zip, reversed, type})
CONTAINER_WRITES = frozenset(
    words(
        "append appendleft clear difference_update discard extend extendleft insert intersection_update move_to_end "
        "pop popitem popleft remove reverse rotate setdefault symmetric_difference_update update"
    )
)
"""Methods that change containers, except those whose names tensors have, too."""
_WRITING_DUNDERS = frozenset(f"__{name}__" for name in (*_WRITING_OPERATORS, "idiv", "setattr", "delattr", "setstate"))
_UNKNOWN_DUNDERS = frozenset({"__call__", "__class_getitem__", "__init__", "__init_subclass__", "__new__", "__next__"})
_TENSOR_STATE = frozenset(
    words("backward module_load record_stream register_hook register_post_accumulate_grad_hook retain_grad")
)
_TENSOR_METHODS = frozenset(dir(torch.Tensor)) - _UNKNOWN_DUNDERS
_VALUE_METHODS = frozenset(name for kind in _VALUE_TYPES for name in dir(kind)) - _UNKNOWN_DUNDERS | {
    "_asdict",
    "_replace",
}

_NAMESPACES = {
    "profiler": SETS_STATE,
    "c10d": COMMUNICATES,
    "_c10d_functional": COMMUNICATES,
    "_c10d_functional_autograd": COMMUNICATES,
    "c10d_functional": COMMUNICATES,
    "symm_mem": COMMUNICATES,
}
"""Effects of operators that their schemas do not show, by namespace."""


def find_rule(target: Any) -> Rule:
    """Return the rule of a function, or of the method ``target``; cache it unless it is a user's function."""
    try:
        return rules[target]
    except (KeyError, TypeError):  # not in the table yet, or unhashable
        pass
    if isinstance(target, str):
        return rules.setdefault(target, _method_rule(target))
    rule = _function_rule(target)
    return rule if rule is UNKNOWN else rules.setdefault(target, rule)


def _function_rule(target: Any) -> Rule:
    if isinstance(target, type):
        return _class_rule(target)
    if isinstance(target, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        owned = issubclass(torch.Tensor, target.__objclass__) or target.__objclass__ in _VALUE_TYPES
        return find_rule(target.__name__) if owned else UNKNOWN
    if isinstance(target, (operator.itemgetter, operator.attrgetter)):
        return None
    name = getattr(target, "__name__", "")
    module = home_of(target)
    if module in (builtins, math, cmath, sys.modules["_operator"]):
        return _python_rule(module, name)
    operation = getattr(target, "_opoverload", target)  # the result of torch.library.custom_op holds its operator
    if isinstance(operation, HigherOrderOperator):
        return UNKNOWN
    if overloads := get_overloads(operation):
        return _schema_rule(operation, overloads)
    if module is torch:
        return None if name in FUNCTIONS else UNKNOWN_OF_TORCH
    path = getattr(module, "__name__", "")
    if path in _PURE_MODULES:
        return _functional_rule(target)
    if path.startswith("torch.distributed.rpc"):
        return COMMUNICATES
    return UNKNOWN_OF_TORCH if path.startswith("torch.") else UNKNOWN


def _class_rule(target: type[Any]) -> Rule:
    """Return the effect of creating an instance: none for Python's value types, named tuples and plain dataclasses."""
    is_named_tuple = tuple in target.__mro__ and ("_fields" in dir(target) or target.__module__ == "torch.return_types")
    if target in _PURE_CLASSES or is_named_tuple:
        return None
    is_dataclass = "__dataclass_params__" in target.__dict__
    if is_dataclass and not hasattr(target, "__post_init__"):
        return None
    return UNKNOWN_OF_TORCH if target.__module__.startswith("torch.") else UNKNOWN


def _python_rule(module: types.ModuleType | None, name: str) -> Rule:
    """Return the rule of a function of ``builtins``, ``math``, ``cmath`` or ``operator``."""
    if module is builtins:
        if name in ("setattr", "delattr"):
            return WRITES_FIRST
        return None if name in BUILTINS else UNKNOWN
    if name in _WRITING_OPERATORS:
        return WRITES_FIRST
    return UNKNOWN if name == "call" else None


# Operators, which have schemas.


_UPDATES = {"momentum", "exponential_average_factor"}
"""Operators' names for the share of a batch in running statistics."""


def _schema_rule(operation: Any, overloads: Sequence[Overload]) -> Rule:
    """Return the rule of an operator, or of the function of torch that calls it."""
    namespace, _, short = overloads[0].schema.name.partition("::")
    if namespace in _NAMESPACES:
        return _NAMESPACES[namespace]
    if "_assert" in short or short.startswith("sym_constrain_range"):
        return CHECKS
    writing = [candidate for candidate in overloads if candidate.written]
    reading = [candidate for candidate in overloads if not candidate.written]
    if not reading:
        return replace(_written_argument(writing[0]), draws=any(map(_is_seeded, writing)))
    if not writing and short.endswith("_") and not short.endswith("__"):
        return WRITES_FIRST  # by its name; its schema does not declare the write
    if all(not candidate.schema.returns for candidate in reading) or _is_registered(operation):
        return SETS_STATE
    if any("running_mean" in candidate.by_keyword and _UPDATES & candidate.by_keyword for candidate in reading):
        return _rule_by_arguments(writing, reading, _statistics_effect)
    if any(_is_seeded(candidate) for candidate in reading):
        return _rule_by_arguments(writing, reading, _random_effect)
    return _rule_by_arguments(writing, reading, None) if writing else None


def _written_argument(overload: Overload) -> Effect:
    """Return the effect of an operator that always writes."""
    if len(overload.written) > 1:
        return WRITES_SEVERAL
    name = next(name for name in overload.signature.parameters if name in overload.written)
    if overload.signature.parameters[name].annotation is torch.Generator:
        return SETS_STATE
    return Effect("write", "writes to", overload.positional.index(name) if name in overload.positional else name)


def _rule_by_arguments(
    writing: Sequence[Overload],
    reading: Sequence[Overload],
    otherwise: Callable[[Mapping[str, Any]], Effect | None] | None,
) -> Rule:
    """Return a rule for one call: the write of a writing overload, or else the effect from ``otherwise``."""
    outputs = frozenset[str]().union(*(overload.written.difference(overload.positional) for overload in writing))
    outputs |= {"out"} if outputs else set()  # Python functions pass several outputs as one: `out=(values, indices)`
    positional = [overload for overload in writing if overload.written.intersection(overload.positional)]
    readers = [(overload, ArgumentReader(overload.signature)) for overload in reading]
    unfitting = ArgumentReader(Signature())

    def answer(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Effect | None:
        filled = [name for name in kwargs if name in outputs and kwargs[name] is not None]
        if filled:
            return WRITES_SEVERAL if len(filled) > 1 else Effect("write", "writes to", filled[0])
        if not positional and otherwise is None:
            return None
        reader = next((reader for overload, reader in readers if overload.accepts(len(args), kwargs)), None)
        # If a call fits both, the reading overload is right: torch.sort does not call TorchScript's sort of a list.
        if reader is None and any(overload.accepts(len(args), kwargs) for overload in positional):
            return Effect("write", "writes to one of its arguments")
        return None if otherwise is None else otherwise((reader or unfitting).read(args, kwargs))

    return answer


def _is_seeded(overload: Overload) -> bool:
    """Return whether an operator draws from a random generator."""
    namespace, _, short = overload.schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), short, None)
    operation = getattr(packet, overload.schema.overload_name or "default", None)
    return operation is not None and torch.Tag.nondeterministic_seeded in operation.tags


def _has_tag(name: str, tag: torch.Tag) -> bool:
    """Return whether an overload of the operator of this name has a tag."""
    packet = getattr(torch.ops.aten, name, None)  # the namespace has a name, too
    return isinstance(packet, OpOverloadPacket) and any(
        tag in getattr(packet, name).tags for name in packet.overloads()
    )


@functools.cache
def changes_layout(name: str) -> bool:
    """Return whether the function or method of this name changes the sizes or strides of the tensor that it writes.

    >>> changes_layout("transpose_"), changes_layout("add_")
    (True, False)
    """
    return name.endswith("_") and name != "detach_" and _has_tag(name, torch.Tag.inplace_view)


def _is_registered(operation: Any) -> bool:
    """Return whether an operator was registered as effectful with ``torch.library``."""
    ask = getattr(registered_effects, "_get_effect", None)
    return ask is not None and isinstance(operation, OpOverload) and ask(operation) is not None


# Functions of torch written in Python, which have signatures.


class ArgumentReader:
    """A reader of the arguments that effects depend on, by name, without binding the whole call."""

    __slots__ = ("_places",)

    _NAMES = frozenset(
        words("_random_samples dropout dropout_p inplace max_norm out p running_mean train training use_input_stats")
    )

    def __init__(self, signature: Signature) -> None:
        self._places: list[tuple[str, int, Any]] = []
        for position, (name, parameter) in enumerate(signature.parameters.items()):
            if name in self._NAMES:
                place = sys.maxsize if parameter.kind is Parameter.KEYWORD_ONLY else position
                self._places.append((name, place, None if parameter.default is Parameter.empty else parameter.default))

    @property
    def names(self) -> frozenset[str]:
        """The names of these arguments in the signature."""
        return frozenset(name for name, _, _ in self._places)

    def read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of one call by name, defaults included."""
        count = len(args)
        return {
            name: args[place] if place < count else kwargs.get(name, default) for name, place, default in self._places
        }


def _functional_rule(target: Callable[..., Any]) -> Rule:
    """Return the rule of a Python function of ``torch.nn.functional``, from its parameters."""
    row = find_operator(target) or find_in_place(target)
    draws = row is not None and row.draws
    if target.__name__.endswith("_"):
        return DRAWS_INTO_FIRST if draws else WRITES_FIRST
    signature = get_python_signature(target)
    reader = ArgumentReader(signature or Signature())
    names = reader.names
    always_draws = "_random_samples" in names or (draws and "training" not in names)
    if not always_draws and names <= {"p"}:
        return None

    def answer(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Effect | None:
        arguments = reader.read(args, kwargs)
        if arguments.get("out") is not None:
            return Effect("write", "writes to", "out")
        if arguments.get("max_norm") is not None:
            return RENORMALIZES
        if "running_mean" in names:
            return _statistics_effect(arguments)
        drawn = _random_effect(arguments) if always_draws or "training" in names else None
        # Functions with `p` are dropouts: those that drop nothing return their input as it is, also with `inplace`.
        if arguments.get("inplace", False) is not False and ("p" not in names or drawn):
            return DRAWS_INTO_FIRST if drawn else WRITES_FIRST
        return drawn

    return answer


def _random_effect(arguments: Mapping[str, Any]) -> Effect | None:
    """Return the effect of a random function; ``None`` for dropout outside of training, or with probability 0."""
    if arguments.get("_random_samples") is not None:
        return None
    flags = [name for name in ("train", "training") if name in arguments]
    if any(arguments[name] is False for name in flags):
        return None
    rates = ["dropout", "dropout_p", *(["p"] if flags else [])]
    return None if any(_is_zero(arguments.get(name)) for name in rates) else DRAWS


def _is_zero(value: object) -> bool:
    return isinstance(value, (int, float)) and value == 0


def _statistics_effect(arguments: Mapping[str, Any]) -> Effect | None:
    """Return the effect of batch and instance norm; their schemas don't declare the write of running statistics."""
    frozen = arguments.get("training") is False or arguments.get("use_input_stats") is False
    return None if frozen or arguments.get("running_mean") is None else UPDATES_STATISTICS


# Methods. The receiver's type is not known: tensor, number, string or container.


def _method_rule(name: str) -> Rule:
    if name in _WRITING_DUNDERS:
        return WRITES_FIRST
    if name.endswith("_") and not name.endswith("__"):
        return DRAWS_INTO_FIRST if _has_tag(name, torch.Tag.nondeterministic_seeded) else WRITES_FIRST
    if name in ("add", "sort"):
        return _tensor_or_container
    if name in _TENSOR_STATE:
        return SETS_STATE
    if name in _TENSOR_METHODS:
        return DRAWS if not name.startswith("__") and _has_tag(name, torch.Tag.nondeterministic_seeded) else None
    if name in CONTAINER_WRITES:
        return WRITES_FIRST
    return None if name in _VALUE_METHODS else UNKNOWN


def _tensor_or_container(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Effect | None:
    """Return the effect of ``add`` or ``sort``: pure on a tensor, but sets and lists have writing methods so named."""
    receiver = args[0] if args else None
    op, target = getattr(receiver, "op", None), getattr(receiver, "target", None)
    if op == "call_method":
        return WRITES_FIRST if target == "tolist" or target not in _TENSOR_METHODS else None
    if op == "call_function" and (isinstance(target, type) or target is sorted or find_rule(target) is UNKNOWN):
        return WRITES_FIRST
    return None
