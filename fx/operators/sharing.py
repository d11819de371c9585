"""The arguments with which the result of a call may share memory, by target: from schemas, and from short lists.

An operator's schema declares the arguments of which its result is a view, but only for operators with their own
kernels. Operators composed of others (``einsum``, ``type_as``, ``dropout``) may return an argument without declaring
it. So a composed operator is assumed to share memory, unless the table of operators or a list here proves that it
computes a new result. The same holds for all targets without a schema.
"""

from __future__ import annotations

import builtins
import cmath
import math
import operator
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from fx.assertions import ASSERTIONS, is_false
from fx.naming.targets import home_of, words
from fx.operators.facts import Operator
from fx.operators.families import find_operator
from fx.operators.overloads import Overload, get_overloads
from fx.operators.python import BUILTINS
from fx.operators.tensor_queries import ATTRIBUTES, FUNCTIONS, METHODS

Declared = TypeVar("Declared", bound=Callable[..., Any])
Kind: TypeAlias = Literal["number", "tensor", "tensors", "iterator", "any", "arithmetic", "element", "attribute"]
"""The kind of a result:

- ``number``: a value without tensor memory, such as a size, name or flag;
- ``tensor``: a tensor or a number;
- ``tensors``: a tuple or list of tensors;
- ``iterator``: an iterator, which is used up when read;
- ``any``: perhaps a container of anything;
- ``arithmetic``, ``element`` and ``attribute``: the result of ``+`` and the like, of ``[]``, of ``getattr``, which
  depends on the operands.
"""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The memory of the result of calling one target."""

    kind: Kind
    """The kind of the result."""
    places: tuple[tuple[int, str], ...] | None
    """The arguments with which it may share memory, by position and name; ``None`` for all."""
    takes_tensor: bool = False
    """True if the first argument can only be a tensor."""


NUMBER = Sharing("number", ())
FRESH = Sharing("tensor", ())
FRESH_OF_TENSOR = Sharing("tensor", (), takes_tensor=True)
FRESH_CONTAINER = Sharing("any", ())
TENSOR_OR_TUPLE = Sharing("any", (), takes_tensor=True)
FIRST = Sharing("tensor", ((0, "input"),), takes_tensor=True)
ANY = Sharing("any", None)
ITERATOR = Sharing("iterator", None)
ARITHMETIC = Sharing("arithmetic", None)
ELEMENT = Sharing("element", ((0, "input"),))
ATTRIBUTE = Sharing("attribute", ((0, "input"),))
_BUILTINS = {sharing.kind: sharing for sharing in (NUMBER, ITERATOR, ARITHMETIC, ATTRIBUTE, ANY)}


_torch: Any = torch  # for the functions that torch leaves without types

_sharings: dict[Any, Sharing] = {
    _torch.tensor: FRESH,
    _torch.as_tensor: ANY,
    _torch.asarray: ANY,
    _torch.from_numpy: ANY,
    _torch.frombuffer: ANY,
    _torch._assert: NUMBER,
    **dict.fromkeys((*ASSERTIONS, is_false), NUMBER),
    _torch.nonzero: Sharing("any", (), takes_tensor=True),
    operator.getitem: ELEMENT,
}
"""The cache for functions of torch and Python and for names of methods; users' functions are not cached."""

_COMPUTING_COMPOSITES = frozenset(
    words(
        "__and__ __or__ __xor__ argsort argwhere cdist column_stack cross_entropy_loss det dstack float_power "
        "grid_sampler hinge_embedding_loss hstack inner isclose isfinite isreal linalg_det linalg_inv linalg_norm "
        "linalg_vecdot logdet margin_ranking_loss max max_pool1d_with_indices min msort nanmean nanquantile "
        "nll_loss2d nll_loss_nd one_hot pairwise_distance poisson_nll_loss quantile scaled_dot_product_attention "
        "special_ndtr std std_mean triplet_margin_loss upsample_bicubic2d upsample_bilinear2d upsample_linear1d "
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d var var_mean where"
    )
)
"""Operators composed of others that are in no table but always return new tensors."""

_COMPUTING_PRIVATE = frozenset(
    words(
        "_adaptive_avg_pool2d _adaptive_avg_pool3d _convolution _log_softmax _native_batch_norm_legit "
        "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training _softmax _to_copy"
    )
)
_SILENT_VIEWS = frozenset(words("dequantize native_dropout set unsafe_chunk unsafe_split unsafe_split_with_sizes"))
"""Operators with their own kernels that may return an argument, or a view of it, against their schemas."""

_NUMBER_METHODS = frozenset({*METHODS, "count", "index"})  # the last two are methods of tuples and strings
_COMPUTING_METHODS = frozenset(words("new_tensor norm istft stft tolist"))
_CONTAINER_OPERATORS = frozenset(words("add and_ concat mul or_ sub xor"))
"""Functions of ``operator`` that also work on lists, dicts or sets: the result then holds the same elements."""
TENSOR_METHODS = frozenset(dir(torch.Tensor))
"""Names of methods and attributes of tensors."""
TENSOR_ONLY_METHODS = TENSOR_METHODS.difference(
    *(dir(kind) for kind in (object, str, tuple, list, dict, set, int, float, complex, torch.Size)),
)
"""Methods that only tensors have: their receiver is a tensor."""


def find_sharing(target: Any) -> Sharing:
    """Return the sharing of the result of a function, or of the method ``target``."""
    try:
        return _sharings[target]
    except (KeyError, TypeError):  # not cached yet, or unhashable
        pass
    if isinstance(target, str):
        return _sharings.setdefault(target, _method_sharing(target))
    sharing = _function_sharing(target)
    return sharing if sharing is ANY else _sharings.setdefault(target, sharing)


def declare_new(target: Declared) -> Declared:
    """Declare that calls of a function return new tensors, each with memory of its own; usable as a decorator."""
    _sharings[target] = FRESH_CONTAINER
    return target


def module_sharing(module: nn.Module) -> Sharing | None:
    """Return the sharing of a call of ``module``, or ``None`` if the result may also share memory with its state."""
    kind = type(module)
    if kind in (nn.Identity, nn.Flatten, nn.Unflatten):
        return FIRST
    row = find_operator(kind)
    sharing = ANY if row is None else _row_sharing(row)
    if sharing is TENSOR_OR_TUPLE:
        return replace(sharing, kind="tensors" if getattr(module, "return_indices", False) else "tensor")
    return None if sharing is ANY else sharing


def attribute_kind(name: object) -> Kind:
    """Return the kind of ``getattr(x, name)``: a number, or a value that may share memory with ``x``."""
    return "number" if name in ATTRIBUTES else "any"


def _function_sharing(target: Any) -> Sharing:
    if isinstance(target, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return find_sharing(target.__name__) if issubclass(torch.Tensor, target.__objclass__) else ANY
    name = getattr(target, "__name__", "")
    home = home_of(target)
    if home in (math, cmath):
        return NUMBER
    if home is sys.modules["_operator"]:
        return _operator_sharing(name)
    if home is builtins:
        return _BUILTINS[BUILTINS.get(name, "any")]
    # Queries written in Python, such as torch.is_tensor, have no schema.
    if home is torch and name in FUNCTIONS:
        return NUMBER
    # torch.library.custom_op returns an object around its overload.
    operation = getattr(target, "_opoverload", target)
    if overloads := get_overloads(operation):
        return _schema_sharing(overloads)
    row = find_operator(target)
    return ANY if row is None else _row_sharing(row)


def _row_sharing(row: Operator) -> Sharing:
    """Return the sharing of an operator of the table whose function has no schema, as it is written in Python."""
    if row.family == "dropout":
        return FIRST
    if row.family == "max pooling":
        return TENSOR_OR_TUPLE
    return FRESH_OF_TENSOR if row.is_new else ANY


def _operator_sharing(name: str) -> Sharing:
    """Return the sharing of a function of ``operator``; ``+``, for one, also joins lists, and shares their elements."""
    name = name if name in _CONTAINER_OPERATORS else name.strip("_")
    if name in ("getitem", "call", "itemgetter", "attrgetter", "methodcaller"):
        return ELEMENT if name == "getitem" else ANY
    if name in _CONTAINER_OPERATORS:
        return ARITHMETIC
    if name in words("contains countOf indexOf index is is_not not truth length_hint setitem delitem"):
        return NUMBER
    if name.startswith("i") and name not in ("inv", "invert"):
        return ARITHMETIC  # the effect of the call adds the written operand
    return Sharing("any", None) if name == "pos" else FRESH


def _method_sharing(name: str) -> Sharing:
    if name in _NUMBER_METHODS:
        return NUMBER
    if name == "__getitem__":
        return ELEMENT
    if name in _COMPUTING_METHODS:
        return FRESH_CONTAINER if name == "tolist" else FRESH_OF_TENSOR
    if name.startswith("__") and name.endswith("__"):
        plain = name[2:-2]
        return (
            _operator_sharing(plain if plain not in ("and", "or") else f"{plain}_") if hasattr(operator, name) else ANY
        )
    if name not in TENSOR_METHODS:
        return ANY
    packet = getattr(torch.ops.aten, name, None)
    sharing = _schema_sharing(get_overloads(packet)) if packet is not None else ANY
    # Methods written in Python may return tuples where the operator of that name does not, and so does nonzero.
    differs = isinstance(getattr(torch.Tensor, name), types.FunctionType) or name == "nonzero"
    kind: Kind = "any" if differs and sharing.kind != "number" else sharing.kind
    return replace(sharing, kind=kind, takes_tensor=name in TENSOR_ONLY_METHODS)


# Operators, which have schemas.


@cache
def _is_computing(name: str) -> bool:
    """Return whether an operator of ATen has the name of a function in the table whose result is always new."""
    for home in (torch, F, torch.special, torch.linalg):
        function = getattr(home, name.removeprefix(f"{home.__name__.rpartition('.')[2]}_"), None)
        row = None if function is None else find_operator(function)
        if row is not None and row.is_new:
            return True
    return False


def _schema_sharing(overloads: Sequence[Overload]) -> Sharing:
    """Return the sharing of an operator: every memory that any of its overloads may share."""
    with_tensors = [overload for overload in overloads if _has_tensors(overload)]
    if not with_tensors:
        return NUMBER
    # overloads for names of dimensions, in torch before 2.13, call the others
    with_tensors = [overload for overload in with_tensors if not _takes_names(overload)] or with_tensors
    kinds: set[Kind] = {_kind_of(overload) for overload in with_tensors}
    places: set[tuple[int, str]] = set()
    for overload in with_tensors:
        if _kind_of(overload) != "number":
            places |= _shared_places(overload)
    first = [overload.schema.arguments[0] for overload in with_tensors if overload.schema.arguments]
    takes_tensor = bool(first) and all(str(argument.type) == "Tensor" for argument in first)
    kind: Kind = next(iter(kinds)) if len(kinds) == 1 else "any"
    if kind != "number" and not all(map(_declares_all, with_tensors)):
        return Sharing(kind, None, takes_tensor)
    return Sharing(kind, tuple(sorted(places)), takes_tensor)


def _has_tensors(overload: Overload) -> bool:
    schema = overload.schema
    return any("Tensor" in str(value.type) for value in (*schema.arguments, *schema.returns))


def _takes_names(overload: Overload) -> bool:
    schema = overload.schema
    names = (
        argument for argument in schema.arguments if argument.name.startswith("dim") and "str" in str(argument.type)
    )
    return schema.name.startswith("aten::") and any(names)


def _kind_of(overload: Overload) -> Kind:
    returned = [str(value.type) for value in overload.schema.returns]
    if not any("Tensor" in kind or kind in ("Any", "t") or "Dict" in kind for kind in returned):
        return "number"
    if len(returned) == 1:
        return "tensor" if returned[0] == "Tensor" else "tensors" if returned[0] == "List[Tensor]" else "any"
    return "tensors" if all(kind == "Tensor" for kind in returned) else "any"


def _shared_places(overload: Overload) -> set[tuple[int, str]]:
    """Return the arguments with which the result of ``overload`` may share memory."""
    if not _is_annotated(overload):
        return set()
    positional = overload.positional
    return {
        (positional.index(name) if name in positional else sys.maxsize, name)
        for name, argument in zip(overload.signature.parameters, overload.schema.arguments, strict=True)
        if argument.alias_info is not None
    }


def _is_annotated(overload: Overload) -> bool:
    return any(value.alias_info is not None for value in overload.schema.returns)


def _declares_all(overload: Overload) -> bool:
    """Return whether the result of ``overload`` shares no more memory than its schema declares."""
    if _is_annotated(overload):
        return True
    schema = overload.schema
    namespace, _, short = schema.name.partition("::")
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    if namespace == "aten" and (short in _COMPUTING_COMPOSITES or short in _COMPUTING_PRIVATE or _is_computing(short)):
        return True
    private = short.startswith("_") and not short.startswith("_scaled_dot_product")
    if namespace == "prims" or (namespace == "aten" and (private or short in _SILENT_VIEWS or "nested" in short)):
        return False
    has_kernel: Callable[[str, str], bool] = _torch._C._dispatch_has_kernel_for_dispatch_key
    try:
        return not has_kernel(name, "CompositeImplicitAutograd")
    except RuntimeError:  # not an operator of the dispatcher; some are TorchScript's
        return False
