"""The types in operator schemas: their Python types, and the arguments that they accept."""

from __future__ import annotations

import enum
import inspect
import numbers
import types
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from torch._C import JitType

_TYPES_BY_KIND: dict[str, Any] = {
    "AnyEnumType": enum.Enum,
    "AnyType": Any,
    "BoolType": bool,
    "ComplexType": complex,
    "DeviceObjType": torch.device,
    "FloatType": float,
    "GeneratorType": torch.Generator,
    "IntType": int,
    "NoneType": type(None),
    "NumberType": numbers.Number,
    "QSchemeType": torch.qscheme,
    "StorageType": torch.UntypedStorage,
    "StreamObjType": torch.Stream,
    "StringType": str,
    "SymBoolType": bool,
    "SymIntType": int,
    "TensorType": torch.Tensor,
}


def python_type(jit_type: JitType) -> Any:
    """Return the Python type of an argument of ``jit_type``; ``Any`` if Python has no name for it."""
    described: Any = jit_type  # its methods depend on its kind, which no annotation can express
    kind: str = described.kind()
    if kind in _TYPES_BY_KIND:
        return _TYPES_BY_KIND[kind]
    if kind == "OptionalType":
        return typing.Optional[python_type(described.getElementType())]  # noqa: UP045 (spelled as torch.fx does)
    if kind == "ListType":
        return typing.List[python_type(described.getElementType())]  # noqa: UP006 (spelled as torch.fx does)
    if kind == "TupleType":
        return typing.Tuple[tuple(python_type(element) for element in described.elements())]  # noqa: UP006
    if kind == "DictType":
        return typing.Dict[python_type(described.getKeyType()), python_type(described.getValueType())]  # noqa: UP006
    if kind == "VarType":
        return typing.TypeVar(described.annotation_str)  # type: ignore[misc] (the name is the schema's)
    return Any


def create_type_hint(x: object) -> object:
    """Return a type for ``x``, which is a type or a list or tuple of types.

    A list or tuple becomes ``list[T]`` or ``tuple[T, ...]``. ``T`` is the element type from which all others derive, or
    ``Any``. Everything else is returned as it is.

    >>> create_type_hint([int, int])
    list[int]
    """
    if not isinstance(x, (list, tuple)):
        return x
    elements = cast("Sequence[Any]", x)
    if not all(isinstance(element, type) for element in elements):
        return cast("object", x)
    base = next((base for base in elements if all(issubclass(element, base) for element in elements)), Any)
    return list[base] if isinstance(x, list) else tuple[base, ...]


def type_matches(signature_type: Any, argument_type: Any) -> bool:
    """Return whether an argument of ``argument_type`` may be passed where a signature says ``signature_type``.

    Follows torch's conversions: an ``int`` is accepted for a list of ``int``, a tuple for a list, a ``dtype`` for an
    ``int``, and an ``int`` or ``float`` for a number.

    >>> type_matches(list[int], int), type_matches(torch.Tensor, int)
    (True, False)
    """
    if signature_type is argument_type:
        return True
    origin = typing.get_origin(signature_type)
    if origin in (typing.Union, types.UnionType):
        return signature_type == argument_type or any(
            type_matches(alternative, argument_type) for alternative in typing.get_args(signature_type)
        )
    if origin is list:
        return _list_matches(typing.get_args(signature_type)[0], argument_type)
    if signature_type is int and argument_type is torch.dtype:
        return True
    if signature_type is numbers.Number:
        return argument_type in (int, float)
    return (
        inspect.isclass(argument_type) and inspect.isclass(signature_type) and issubclass(argument_type, signature_type)
    )


def _list_matches(element_type: Any, argument_type: Any) -> bool:
    """Return whether an argument of ``argument_type`` may be passed for a list of ``element_type``."""
    if argument_type is int and element_type is int:
        return True
    if typing.get_origin(argument_type) not in (list, tuple):
        return False
    contained = typing.get_args(argument_type)
    return all(element is Ellipsis or type_matches(element_type, element) for element in contained)
