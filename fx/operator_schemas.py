"""Arguments of operators: signatures of torch's functions, and calls rewritten to follow them.

A torch function that is implemented in C++ has no Python signature. It has operator schemas, one for each overload.
This module turns them into :class:`inspect.Signature` objects, so that different spellings of a call can be brought
into one form.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, overload

import torch

from fx.argument_types import checked
from fx.errors import GraphError, type_in_words
from fx.operators.overloads import BUILTINS, builtin_name, get_overloads, get_python_signature, signature_of_schema
from fx.operators.schemas import create_type_hint, python_type, type_matches

if TYPE_CHECKING:
    from torch._C import FunctionSchema

__all__ = [
    "ArgsKwargsPair",
    "check_for_mutable_operation",
    "create_type_hint",
    "get_signature_for_torch_op",
    "normalize_function",
    "normalize_module",
    "type_matches",
]


_torchscript_type_to_python_type = python_type  # names that client code of torch.fx imports
_torchscript_schema_to_signature = signature_of_schema


class ArgsKwargsPair(NamedTuple):
    """The arguments of a call after normalization."""

    args: tuple[Any, ...]
    """Positional arguments, in order."""
    kwargs: dict[str, Any]
    """Keyword arguments by name, in the order of the signature."""


def _nonzero_signatures() -> list[Signature]:
    """Return the signatures of ``torch.nonzero``, whose Python binding has an argument that no schema mentions."""
    tensor = Parameter("input", Parameter.POSITIONAL_OR_KEYWORD, annotation=torch.Tensor)
    as_tuple = Parameter("as_tuple", Parameter.KEYWORD_ONLY, annotation=bool)
    return [Signature([tensor], return_annotation=None), Signature([tensor, as_tuple], return_annotation=None)]


@overload
def get_signature_for_torch_op(
    op: Callable[..., Any], return_schemas: Literal[True]
) -> tuple[list[Signature] | None, list[FunctionSchema] | None]: ...


@overload
def get_signature_for_torch_op(
    op: Callable[..., Any], return_schemas: Literal[False] = ...
) -> list[Signature] | None: ...


@checked()
def get_signature_for_torch_op(
    op: Callable[..., Any], return_schemas: bool = False
) -> list[Signature] | tuple[list[Signature] | None, list[FunctionSchema] | None] | None:
    """Return the signatures of the overloads of ``op``, an operator or a function in the ``torch`` namespace.

    The result is ``None`` for a function without a schema. With ``return_schemas`` it is a pair: the signatures, and
    the schemas that they were made from.

    >>> [str(signature) for signature in get_signature_for_torch_op(torch.relu)][0]
    '(input: torch.Tensor) -> torch.Tensor'
    """
    signatures, schemas = None, None
    if op is torch.nonzero:
        signatures = _nonzero_signatures()
    elif (overloads := get_overloads(op)) or builtin_name(op) is not None:
        signatures = [overload.signature for overload in overloads]
        schemas = [overload.schema for overload in overloads]
    return (signatures, schemas) if return_schemas else signatures


@checked()
def check_for_mutable_operation(
    target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, where: object = None
) -> None:
    """Raise :class:`~fx.errors.GraphError` if this call of ``target`` certainly writes to one of its arguments.

    It does so if every overload that fits the call writes. If some write and some don't, nothing is raised: the
    overload depends on types that are not known yet.
    """
    fitting = [candidate for candidate in get_overloads(target) if candidate.accepts(len(args), kwargs)]
    if fitting and all(candidate.written for candidate in fitting):
        raise GraphError(
            f"Tried to trace mutable operation {fitting[0].schema}",
            where=where,
            why="the tracer was told to capture operations without side effects only, and this one writes to "
            + " and ".join(f"`{name}`" for name in sorted(fitting[0].written)),
            remedy="call its functional form, or trace with check_mutable_operations=False",
        )


@checked()
def normalize_function(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    arg_types: tuple[Any, ...] | None = None,
    kwarg_types: Mapping[str, Any] | None = None,
    normalize_to_only_use_kwargs: bool = False,
) -> ArgsKwargsPair | None:
    """Return the arguments of a call with all defaults filled in, named and ordered as in the signature.

    Arguments given by position stay positional, unless ``normalize_to_only_use_kwargs`` makes all of them keywords.
    Nodes and other placeholders are accepted as arguments: values are never inspected. If several overloads fit,
    ``arg_types`` and ``kwarg_types`` decide. Returns ``None`` if the signature is not known or takes ``*args``,
    ``**kwargs`` or positional-only arguments.

    Raises :class:`~fx.errors.GraphError` if several overloads fit and no types are given, and ``TypeError`` if a
    Python function cannot be called like that.

    >>> normalize_function(torch.nn.functional.relu, ("x",), normalize_to_only_use_kwargs=True).kwargs
    {'input': 'x', 'inplace': False}
    """
    kwargs = {} if kwargs is None else kwargs
    if not isinstance(target, BUILTINS):
        # An operator of an edge dialect wraps the operator that has the schema.
        target = cast("Callable[..., Any]", getattr(target, "_op", target))
    if isinstance(target, BUILTINS):
        signature = _choose_signature(target, args, kwargs, arg_types, kwarg_types)
    else:
        signature = get_python_signature(target)
    if signature is None:
        return None
    return _bind_and_fill(signature, args, kwargs, normalize_to_only_use_kwargs)


def normalize_function_or_error(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    arg_types: tuple[Any, ...] | None = None,
    kwarg_types: Mapping[str, Any] | None = None,
    normalize_to_only_use_kwargs: bool = False,
) -> ArgsKwargsPair:
    """Call :func:`normalize_function`, and raise :class:`~fx.errors.GraphError` where it returns ``None``."""
    normalized = normalize_function(target, args, kwargs, arg_types, kwarg_types, normalize_to_only_use_kwargs)
    if normalized is None:
        raise GraphError(
            f"the arguments of {torch.typename(target)} cannot be normalized",
            value=f"args {args}, kwargs {kwargs}",
            why="no signature is known for it in which each argument has a name",
            remedy="call normalize_function, which returns None here",
        )
    return normalized


_normalize_function_or_error = normalize_function_or_error


@checked()
def normalize_module(
    root: torch.nn.Module,
    target: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    normalize_to_only_use_kwargs: bool = False,
) -> ArgsKwargsPair | None:
    """Return the arguments of a call of the submodule ``target`` of ``root``, as :func:`normalize_function` does.

    Returns ``None`` for classes that are not torch's own. Raises :class:`~fx.errors.GraphError` if ``root`` has no
    such submodule.
    """
    try:
        module = root.get_submodule(target)
    except AttributeError as error:
        raise GraphError(
            f"there is no module {target!r} whose arguments could be normalized",
            value=f"the root is {type_in_words(root)}",
            why=str(error),
            remedy="pass the module that owns the graph as root",
        ) from error
    if getattr(torch.nn, type(module).__name__, None) is not type(module):
        return None
    signature = inspect.signature(inspect.unwrap(module.forward))
    return _bind_and_fill(signature, args, {} if kwargs is None else kwargs, normalize_to_only_use_kwargs)


def _choose_signature(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    arg_types: tuple[Any, ...] | None,
    kwarg_types: Mapping[str, Any] | None,
) -> Signature | None:
    """Return the signature of the overload that is called, or ``None`` if none fits."""
    # No schema has `as_tuple`, which decides between a tuple and a tensor as result.
    if target is torch.nonzero:
        signature = _nonzero_signatures()["as_tuple" in kwargs]
        return signature if len(args) + len(kwargs) == len(signature.parameters) else None
    overloads = get_overloads(target)
    fitting = [candidate.signature for candidate in overloads if candidate.accepts(len(args), kwargs)]
    if len(fitting) <= 1:
        return fitting[0] if fitting else None
    if arg_types is None and kwarg_types is None:
        raise GraphError(
            f"the arguments of {torch.typename(target)} fit more than one overload: the schema match was ambiguous",
            value="; ".join(str(signature) for signature in fitting),
            why="which of them is called depends on the types of the arguments",
            remedy="pass arg_types and kwarg_types",
        )
    types_by_position, types_by_name = arg_types or (), kwarg_types or {}
    for candidate in overloads:
        if candidate.accepts(len(types_by_position), types_by_name):
            bound = candidate.signature.bind(*types_by_position, **types_by_name).arguments
            parameters = candidate.signature.parameters
            if all(type_matches(parameters[name].annotation, kind) for name, kind in bound.items()):
                return candidate.signature
    return None


def _bind_and_fill(
    signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], only_keywords: bool
) -> ArgsKwargsPair | None:
    """Bind a call to its signature and fill in defaults; ``None`` for a signature that keywords cannot spell."""
    nameable = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    names = list(signature.parameters)
    # Random fills are positional-only because of `from`, yet take keywords when called through a dictionary.
    is_random_fill = names == ["input", "from", "to", "generator"]
    if not is_random_fill and any(parameter.kind not in nameable for parameter in signature.parameters.values()):
        return None
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    count = 0 if only_keywords else len(args)
    positional = tuple(bound.arguments[name] for name in names[:count])
    return ArgsKwargsPair(positional, {name: bound.arguments[name] for name in names[count:]})
