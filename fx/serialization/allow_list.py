"""The names that a data-only file may contain: functions, methods, attributes and classes that ``fx.load`` resolves.

A name in a file is looked up in tables of single entries. It is never imported, and no path of attributes is followed.
The tables are built from facts that can be checked, such as whether a function of ``torch`` calls an operator of its
dispatcher. They omit functions that

- read or write files, or set state of the process;
- make classes or code, or reach into Python's internals;
- access memory without checks of their arguments.

Users add names with :func:`allow`.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import math
import operator
import re
import types
from functools import lru_cache
from types import NoneType
from typing import Any, TypeVar

import torch
import torch.nn.functional

from fx.arguments import expect, refusal
from fx.assertions import ASSERTIONS, is_false
from fx.container_kinds import classes_in_files
from fx.errors import FxError
from fx.higher_order import BODIES
from fx.naming.targets import qualified_name, torch_path, words
from fx.operators.python import OPERATORS
from fx.registry import Registry
from fx.serialization.safe_operators import is_overload, operators

T = TypeVar("T")

_torch: Any = torch  # for the parts of it that have no types


class Refused(Exception):
    """The error of writers and readers of a part: the part cannot be stored, or a file may not contain it.

    A caller that knows the place of the part raises the user's error, by :meth:`as_error`.
    """

    def __init__(self, what: str, why: str | None = None, remedy: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.remedy = remedy

    def as_error(self, kind: type[FxError], beginning: str, **place: object) -> FxError:
        """Return the error for users, with its ``place``: ``where``, and the ``value`` there."""
        return kind(f"{beginning}: {self.what}", why=self.why, remedy=self.remedy, **place)


_allowed: Registry[Any] = Registry("allowed name", "allowed functions or classes")
_ROOM = "fx.quantize"
"""The package of the library whose functions and classes are allowed: it is imported for the first name in it."""
_own_names: dict[int, str] = {}
"""The names of objects that the user allowed, by identity; the registry keeps the objects alive."""
_own_attributes: set[str] = set()
"""The fields of named tuples and dataclasses that the user allowed."""


def allow(target: T, name: str | None = None) -> T:
    """Let saved programs use ``target``: a function, or a class of modules, named tuples, enums or annotations.

    Usable as a decorator. Before a program is loaded, the same names must be allowed. Files may call the target with
    any arguments, so never allow a function that runs commands or a class that opens files.

    >>> import fx
    >>> from fx.serialization.allow_list import allow
    >>> @allow
    ... def halve(x):
    ...     return x / 2

    Args:
        target: a function or a class. A class of modules is stored as its name and the arguments of its constructor,
            taken from attributes of the same names.
        name: its name in files; by default its module and qualified name.

    Returns:
        ``target``.

    Raises:
        FxError: it is not a function or class, has no name, or the name belongs to another object.
    """
    named: Any = target
    if not callable(named):
        raise refusal("a file may name functions and classes", target, error=FxError)
    expect(name, (str, NoneType), "a name in files is text", error=FxError)
    if name is None:
        name = torch_path(named)
    if name is None:
        module, path = getattr(named, "__module__", None), getattr(named, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(path, str) or "<lambda>" in path:
            raise FxError(f"{target!r} has no name that a file could use", remedy='give one: allow(target, "my.name")')
        name = f"{module}.{path}".replace(".<locals>", "")
    if name.partition(".")[0] in _OWN_MODULES and (listed := _listed(name)) is not None:
        if listed[0] is target:
            return target
        raise FxError(f"{name!r} means {listed[0]!r} in saved programs", remedy="pass another name")
    if _is_redefined(_allowed._entries.get(name), named):
        _own_names.pop(id(_allowed._entries.pop(name)), None)
    _allowed.register(name, named)
    _own_names[id(named)] = name
    _own_attributes.update(getattr(named, "_fields", ()), getattr(named, "__dataclass_fields__", ()))
    return target


def _is_redefined(old: Any, new: Any) -> bool:
    """Return whether ``new`` comes from another run of the definition of ``old``, as in a notebook or on a reload."""
    described = [(getattr(kind, "__module__", None), getattr(kind, "__qualname__", None)) for kind in (old, new)]
    return old is not None and described[0] == described[1] and None not in described[0]


_OWN_MODULES = frozenset(words("builtins math operator torch types"))
"""The first parts of the names in the tables."""

# Python's own.

_BUILTIN_FUNCTIONS = words(
    "abs all any bin chr divmod getattr hex isinstance issubclass len max min oct ord pow repr round sorted sum"
)
_BUILTIN_CLASSES = words(
    "bool bytes complex dict enumerate float frozenset int list range reversed set slice str tuple zip"
)
_OPERATOR_FUNCTIONS = words("abs concat contains countOf delitem iconcat index indexOf is_ is_not not_ truth")

# torch's.

_PYTHON_FUNCTIONS = words(
    "_assert as_tensor cdist get_device is_tensor lobpcg norm numel pca_lowrank stft svd_lowrank sym_float sym_int "
    "sym_ite sym_max sym_min sym_not sym_sqrt sym_sum tensor tensordot unique unique_consecutive unravel_index"
)
"""Functions of torch that only compute, but in some version call no operator of the same name."""

MODES: tuple[Any, ...] = (
    _torch.is_grad_enabled,
    _torch._C._set_grad_enabled,
    _torch.is_autocast_enabled,
    _torch.amp._enter_autocast,
    _torch.amp._exit_autocast,
)
"""The functions by which captured programs set or read the modes of the thread."""

_REFUSED_FUNCTIONALS = frozenset(
    words("assert_int_or_pair ctc_loss grouped_mm scaled_grouped_mm scaled_mm triplet_margin_with_distance_loss")
)
_PYTHON_METHODS = words(
    "bfloat16 bool byte cdouble cfloat char cpu cuda dim dim_order double element_size float get_device half int "
    "is_contiguous is_shared long lu ndimension nelement new_tensor short storage_offset tolist type unique"
)
"""Methods of tensors that only compute, but in some version of torch call no operator of the same name."""

_VALUE_TYPES = (str, bytes, bool, int, float, complex, tuple, list, dict, set, frozenset, slice, range, torch.Size)
_REFUSED_METHODS = frozenset(words("format format_map indices"))
"""Refused methods: ``str.format`` follows paths of attributes; ``indices`` is of slices, but of sparse tensors too."""

_FIXED_METHODS = words(
    "_asdict _replace __abs__ __bool__ __contains__ __float__ __getitem__ __int__ __len__ __setitem__"
)
_FIXED_ATTRIBUTES = words(
    "index start step stop type bits eps max min resolution smallest_normal tiny numerator denominator"
)
_REFUSED_ATTRIBUTES = frozenset({"grad_fn"})

_CLASSES = words("device dtype finfo iinfo layout memory_format Size Tensor Generator")
MODULES = words(
    "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveLogSoftmaxWithLoss AdaptiveMaxPool1d "
    "AdaptiveMaxPool2d AdaptiveMaxPool3d AlphaDropout AvgPool1d AvgPool2d AvgPool3d BCELoss BCEWithLogitsLoss "
    "BatchNorm1d BatchNorm2d BatchNorm3d Bilinear CELU ChannelShuffle CircularPad1d CircularPad2d "
    "CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d "
    "ConvTranspose3d CosineEmbeddingLoss CosineSimilarity CrossEntropyLoss CrossMapLRN2d Dropout Dropout1d Dropout2d "
    "Dropout3d ELU Embedding EmbeddingBag FeatureAlphaDropout Flatten Fold FractionalMaxPool2d FractionalMaxPool3d "
    "GELU GLU GRU GRUCell GaussianNLLLoss GroupNorm Hardshrink Hardsigmoid Hardswish Hardtanh HingeEmbeddingLoss "
    "HuberLoss Identity InstanceNorm1d InstanceNorm2d InstanceNorm3d KLDivLoss L1Loss LPPool1d LPPool2d LPPool3d LSTM "
    "LSTMCell LayerNorm LeakyReLU Linear LocalResponseNorm LogSigmoid LogSoftmax MSELoss MarginRankingLoss MaxPool1d "
    "MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d Mish MultiLabelMarginLoss MultiLabelSoftMarginLoss "
    "MultiMarginLoss MultiheadAttention NLLLoss PReLU PairwiseDistance PixelShuffle PixelUnshuffle "
    "PoissonNLLLoss RMSNorm RNN RNNCell RReLU ReLU ReLU6 ReflectionPad1d ReflectionPad2d ReflectionPad3d "
    "ReplicationPad1d ReplicationPad2d ReplicationPad3d SELU SiLU Sigmoid SmoothL1Loss SoftMarginLoss Softmax "
    "Softmax2d Softmin Softplus Softshrink Softsign SyncBatchNorm Tanh Tanhshrink Threshold TransformerDecoderLayer "
    "TransformerEncoderLayer TripletMarginLoss Unflatten Unfold Upsample UpsamplingBilinear2d UpsamplingNearest2d "
    "ZeroPad1d ZeroPad2d ZeroPad3d"
)
"""Classes of ``torch.nn`` whose constructors take plain values."""

HOLDERS = words("Module ModuleDict ModuleList Sequential")
"""Classes of ``torch.nn`` that are created empty and filled with their children one by one."""


@lru_cache(maxsize=1)
def functions() -> dict[str, Any]:
    """Return all callable functions by name, except overloads in ``torch.ops.aten``, which are looked up one by one."""
    listed: dict[str, Any] = {}
    for row in OPERATORS:
        listed[f"operator.{row.name}"] = row.function
    listed.update((f"operator.{name}", getattr(operator, name)) for name in _OPERATOR_FUNCTIONS)
    listed.update((f"math.{name}", f) for name, f in vars(math).items() if callable(f) and not name.startswith("_"))
    listed.update((f"builtins.{name}", getattr(builtins, name)) for name in _BUILTIN_FUNCTIONS + _BUILTIN_CLASSES)
    listed.update((f"torch.{name}", getattr(torch, name)) for name in ("Size", "device", "finfo", "iinfo"))
    listed.update((f"torch.{name}", getattr(torch, name)) for name in _PYTHON_FUNCTIONS if hasattr(torch, name))
    for name, value in vars(torch).items():
        if not name.startswith("_") and _calls_operator(value):
            listed[f"torch.{name}"] = value
    for home in (torch.linalg, torch.fft, torch.special, torch.nn.functional):
        own = f"{home.__name__}."
        for name, value in vars(home).items():
            # The namespace also has its imports, such as `boolean_dispatch`, which calls any function.
            written = isinstance(value, types.FunctionType) and value.__module__ == "torch.nn.functional"
            if not name.startswith("_") and name not in _REFUSED_FUNCTIONALS and (written or _calls_operator(value)):
                listed[own + name] = value
    for function in (*ASSERTIONS, is_false, *MODES, *BODIES):
        listed[qualified_name(function)] = function
    listed.update((f"{kind.__module__}.{kind.__qualname__}", kind) for kind in classes_in_files())
    for name in methods():
        # Files call `__add__` and the like by the names of `operator`: one name for each.
        if not name.startswith("_") and callable(method := getattr(torch.Tensor, name, None)):
            listed[f"torch.Tensor.{name}"] = method
    return listed


def _calls_operator(function: Any) -> bool:
    """Return whether ``function`` of torch calls an operator that a file may name."""
    if not isinstance(function, (types.BuiltinFunctionType, types.FunctionType)):
        return False
    name = _torch.jit._builtins._find_builtin(function)
    return name is not None and name.partition("::")[2] in operators()


@lru_cache(maxsize=1)
def methods() -> frozenset[str]:
    """Return the names of methods that may be called, on any value of the program."""
    allowed = operators()
    of_tensors = {name for name in dir(torch.Tensor) if name in allowed and not name.startswith("_")}
    of_values = {name for kind in _VALUE_TYPES for name in dir(kind) if not name.startswith("_")}
    special = {f"__{row.method}__" for row in OPERATORS} | {f"__r{row.method}__" for row in OPERATORS if row.reflected}
    return frozenset(of_tensors | of_values | special | {*_PYTHON_METHODS, *_FIXED_METHODS}) - _REFUSED_METHODS


@lru_cache(maxsize=1)
def _attributes() -> frozenset[str]:
    of_tensors = {
        name
        for name in dir(torch.Tensor)
        if not name.startswith("_") and inspect.isdatadescriptor(getattr(torch.Tensor, name, None))
    }
    results = [kind for kind in vars(torch.return_types).values() if isinstance(kind, type)]
    of_results = {name for kind in results for name in getattr(kind, "__match_args__", ())}
    of_numbers = {"real", "imag"}
    return (frozenset(of_tensors | of_results | of_numbers) | frozenset(_FIXED_ATTRIBUTES)) - _REFUSED_ATTRIBUTES


def is_attribute(name: object) -> bool:
    """Return whether a program may read the attribute ``name`` of its values with ``getattr``."""
    return type(name) is str and (name in _attributes() or name in _own_attributes)


@lru_cache(maxsize=1)
def classes() -> dict[str, Any]:
    """Return all classes that may be values, annotations or modules, by name."""
    listed: dict[str, Any] = {f"builtins.{name}": getattr(builtins, name) for name in (*_BUILTIN_CLASSES, "object")}
    listed["types.NoneType"] = type(None)
    listed.update((f"torch.{name}", getattr(torch, name)) for name in _CLASSES)
    nn: Any = torch.nn
    names = (*MODULES, *HOLDERS, "Parameter")
    listed.update((f"torch.nn.{name}", getattr(nn, name)) for name in names if hasattr(nn, name))
    return listed


@lru_cache(maxsize=1)
def _names() -> dict[int, str]:
    """Return the names of the objects in the tables, by identity; public and short names first."""
    names: dict[int, str] = {}
    for name, value in (*functions().items(), *classes().items()):
        names.setdefault(id(value), name)
    return names


_OVERLOAD = re.compile(r"torch\.ops\.aten\.([a-z_][a-z0-9_]*)(?:\.([A-Za-z0-9_]+))?", re.ASCII)


def _listed(name: str) -> tuple[Any] | None:
    """Return the object called ``name`` in the tables, in a tuple of one, or None."""
    if (listed := functions().get(name)) is not None or (listed := classes().get(name)) is not None:
        return (listed,)
    if (match := _OVERLOAD.fullmatch(name)) is not None and match[1] in operators():
        packet = getattr(torch.ops.aten, match[1], None)
        if packet is not None and (match[2] is None or is_overload(match[1], match[2])):
            return (packet if match[2] is None else getattr(packet, match[2]),)
    return None


def name_of(value: Any) -> str:
    """Return the name by which a file refers to the function or class ``value``."""
    name = _own_names.get(id(value)) or _names().get(id(value))
    if name is None and isinstance(value, (_torch._ops.OpOverload, _torch._ops.OpOverloadPacket)):
        name = f"torch.ops.{value}"
        name = name if _listed(name) is not None else None
    if name is None:
        raise _not_allowed(qualified_name(value))
    return name


def own_name(value: Any) -> str | None:
    """Return the name of a function or class that users or other parts of fx allowed; None for others."""
    return _own_names.get(id(value))


def find(name: object) -> Any:
    """Return the function or class that a file calls ``name``."""
    if type(name) is not str:
        raise Refused(f"a name is a string, not {type(name).__name__}")
    if name.rpartition(".")[0] == _ROOM:
        importlib.import_module(_ROOM)
    if name in _allowed._entries:
        return _allowed.get(name)
    entry = _listed(name)
    if entry is None:
        raise _not_allowed(name)
    return entry[0]


def is_callable_target(value: Any) -> bool:
    """Return whether a program may call a result of ``find``, rather than only use it as a value."""
    name = _names().get(id(value))
    return id(value) in _own_names or name is None or name in functions()


def find_class(name: object) -> Any:
    """Return the class that a file calls ``name``."""
    kind = find(name)
    if not isinstance(kind, type):
        raise Refused(f"{name!r} is not a class")
    return kind


def _not_allowed(name: str) -> Refused:
    text = name if len(name) <= 200 else f"{name[:200]}…"
    is_path = all(part.isidentifier() for part in name.replace("<locals>", "locals").split("."))
    return Refused(
        f"{text!r} is nothing that a saved program may use",
        why="programs in files name functions and classes of a fixed list, and those that you allow",
        remedy=f"if you trust what it does with any arguments, allow it first: fx.serialization.allow({text})"
        if is_path
        else None,
    )
