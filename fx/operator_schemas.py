"""What an operator's arguments are: signatures of torch's functions, and calls rewritten to follow them.

A function of torch that is implemented in C++ has no Python signature. It has operator schemas, one for each overload,
and this module turns them into :class:`inspect.Signature` objects, so that calls spelled in different ways can be
brought into one form.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, overload

import torch

from fx.arguments import expect, expect_callable, refusal
from fx.errors import GraphError
from fx.schema_types import create_type_hint, python_type, type_matches

if TYPE_CHECKING:
    from torch._C import Argument as SchemaArgument
    from torch._C import FunctionSchema

__all__ = [
    "ArgsKwargsPair",
    "Overload",
    "check_for_mutable_operation",
    "create_type_hint",
    "get_overloads",
    "get_python_signature",
    "get_signature_for_torch_op",
    "normalize_function",
    "normalize_module",
    "type_matches",
]


class ArgsKwargsPair(NamedTuple):
    """The arguments of a call after normalization."""

    args: tuple[Any, ...]
    """Positional arguments, in order."""
    kwargs: dict[str, Any]
    """Keyword arguments by name, in the order of the signature."""


@dataclass(frozen=True, slots=True, eq=False)
class Overload:
    """One overload of an operator: its schema, and what is asked of a schema again and again, worked out once."""

    schema: FunctionSchema
    """The operator's schema as torch declares it."""
    signature: Signature
    """The same as a Python signature, in which ``self`` is called ``input``."""
    positional: tuple[str, ...]
    """Names of the arguments that may be passed by position."""
    by_keyword: frozenset[str]
    """Names of the arguments that may be passed by keyword."""
    required: frozenset[str]
    """Names of the arguments without a default."""
    written: frozenset[str]
    """Names of the arguments that the operator writes to."""

    def accepts(self, count: int, keywords: Iterable[str]) -> bool:
        """Whether a call with ``count`` positional arguments and these ``keywords`` fits, whatever their types are."""
        if count > len(self.positional):
            return False
        missing = self.required.difference(self.positional[:count])
        for keyword in keywords:
            if keyword not in self.by_keyword or keyword in self.positional[:count]:
                return False
            missing = missing - {keyword}
        return not missing


_torch: Any = torch  # for the parts of it that have no types
_OPERATORS: Any = (_torch._ops.OpOverload, _torch._ops.OpOverloadPacket)
_BUILTINS: Any = (types.BuiltinFunctionType, *_OPERATORS)

_overloads: dict[int, tuple[Callable[..., Any], tuple[Overload, ...]]] = {}
"""By identity, as some functions of torch compare equal without being the same; the function is kept alive with it."""


def _make_parameter(argument: SchemaArgument, name: str, positional_only: bool) -> Parameter:
    """Return ``argument`` of a schema as a parameter of a Python signature."""
    kind = Parameter.KEYWORD_ONLY if argument.kwarg_only else Parameter.POSITIONAL_OR_KEYWORD
    if positional_only and not argument.kwarg_only:
        kind = Parameter.POSITIONAL_ONLY
    default = argument.default_value if argument.has_default_value() else Parameter.empty
    return Parameter(name, kind, default=default, annotation=python_type(argument.type))


def _name_in_python(argument: SchemaArgument, names: list[str]) -> str:
    """What Python calls an argument: `input` where the schema says `self`, if it is a tensor, not a number or list."""
    is_receiver = argument.name == "self" and str(argument.type) == "Tensor" and "input" not in names
    return "input" if is_receiver else argument.name


def _make_overload(schema: FunctionSchema) -> Overload:
    """Work out what is known about one overload."""
    names = [argument.name for argument in schema.arguments]
    # A parameter called `from` cannot be passed by keyword, hence none before it can.
    last_positional_only = names.index("from") if "from" in names else -1
    parameters = [
        _make_parameter(argument, _name_in_python(argument, names), index <= last_positional_only)
        for index, argument in enumerate(schema.arguments)
    ]
    returns = tuple(python_type(returned.type) for returned in schema.returns)
    answer = None if not returns else returns[0] if len(returns) == 1 else returns
    return Overload(
        schema=schema,
        signature=Signature(parameters, return_annotation=answer),
        positional=tuple(p.name for p in parameters if p.kind is not Parameter.KEYWORD_ONLY),
        by_keyword=frozenset(p.name for p in parameters if p.kind is not Parameter.POSITIONAL_ONLY),
        required=frozenset(p.name for p in parameters if p.default is Parameter.empty),
        written=frozenset(
            parameter.name
            for parameter, argument in zip(parameters, schema.arguments, strict=True)
            if argument.alias_info is not None and argument.alias_info.is_write
        ),
    )


def get_overloads(target: Callable[..., Any]) -> tuple[Overload, ...]:
    """Return the overloads of a torch operator, or of the function of torch that calls it; empty if there are none.

    Answers are kept, so asking again costs a dictionary look-up.
    """
    known = _overloads.get(id(target))
    if known is not None:
        return known[1]
    operation: Any = target
    if isinstance(target, _OPERATORS):
        packet = hasattr(operation, "overloads")
        schemas = (
            [getattr(operation, name)._schema for name in operation.overloads()] if packet else [operation._schema]
        )
    elif (name := _builtin_name(target)) is not None:
        schemas = _torch._C._jit_get_schemas_for_operator(name)
    else:
        return ()  # not kept: the user's functions would be kept alive
    overloads = tuple(_make_overload(schema) for schema in schemas if _is_nameable(schema))
    _overloads[id(target)] = (target, overloads)
    return overloads


def _is_nameable(schema: FunctionSchema) -> bool:
    """Whether its arguments have different names, as all but one of torch's internal operators have."""
    return len({argument.name for argument in schema.arguments}) == len(schema.arguments)


def _builtin_name(target: Callable[..., Any]) -> str | None:
    """Return the name of the operator that a function of torch calls, such as ``aten::relu``."""
    return _torch.jit._builtins._find_builtin(target)


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


def get_signature_for_torch_op(
    op: Callable[..., Any], return_schemas: bool = False
) -> list[Signature] | tuple[list[Signature] | None, list[FunctionSchema] | None] | None:
    """Return the signatures of the overloads of ``op``, an operator or a function in the ``torch`` namespace.

    ``None`` stands for a function that has no schema. With ``return_schemas`` the answer is a pair: the signatures,
    and the schemas they were made from.

    >>> [str(signature) for signature in get_signature_for_torch_op(torch.relu)][0]
    '(input: torch.Tensor) -> torch.Tensor'
    """
    expect_callable(op, "get_signature_for_torch_op takes an operator or a function")
    if op is torch.nonzero:
        signatures = _nonzero_signatures()
        return (signatures, None) if return_schemas else signatures
    overloads = get_overloads(op)
    if not overloads and _builtin_name(op) is None:
        return (None, None) if return_schemas else None
    signatures = [overload_.signature for overload_ in overloads]
    return (signatures, [overload_.schema for overload_ in overloads]) if return_schemas else signatures


def check_for_mutable_operation(target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise :class:`~fx.errors.GraphError` if this call of ``target`` certainly writes to one of its arguments.

    It does so if every overload that fits the call writes. Where some write and some don't, nothing is raised: which of
    them is meant depends on types that are not known yet.
    """
    if not callable(target) or not isinstance(kwargs, Mapping) or not isinstance(args, (tuple, list)):
        raise refusal("check_for_mutable_operation takes a function, its args and its kwargs", (target, args, kwargs))
    fitting = [candidate for candidate in get_overloads(target) if candidate.accepts(len(args), kwargs)]
    if fitting and all(candidate.written for candidate in fitting):
        raise GraphError(
            f"Tried to trace mutable operation {fitting[0].schema}",
            why="the tracer was told to capture operations without side effects only, and this one writes to "
            + " and ".join(f"`{name}`" for name in sorted(fitting[0].written)),
            remedy="call its functional form, or trace with check_mutable_operations=False",
        )


def normalize_function(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    arg_types: tuple[Any, ...] | None = None,
    kwarg_types: Mapping[str, Any] | None = None,
    normalize_to_only_use_kwargs: bool = False,
) -> ArgsKwargsPair | None:
    """Return the arguments of a call with all defaults filled in, named and ordered as the signature has them.

    Arguments given by position stay positional, unless ``normalize_to_only_use_kwargs`` makes all of them keywords.
    Nodes and other stand-ins are accepted as arguments: values are never looked at. If several overloads fit,
    ``arg_types`` and ``kwarg_types`` decide. Returns ``None`` if the signature is not known or takes ``*args``,
    ``**kwargs`` or positional-only arguments.

    Raises :class:`~fx.errors.GraphError` if several overloads fit and no types are given, and ``TypeError`` if a
    Python function cannot be called like that.

    >>> normalize_function(torch.nn.functional.relu, ("x",), normalize_to_only_use_kwargs=True).kwargs
    {'input': 'x', 'inplace': False}
    """
    _check_call("normalize_function", args, kwargs, arg_types, kwarg_types)
    expect_callable(target, "normalize_function takes a function")
    kwargs = {} if kwargs is None else kwargs
    if not isinstance(target, _BUILTINS):
        # An operator of an edge dialect wraps the operator that has the schema.
        target = cast("Callable[..., Any]", getattr(target, "_op", target))
    if isinstance(target, _BUILTINS):
        signature = _choose_signature(target, args, kwargs, arg_types, kwarg_types)
    else:
        signature = get_python_signature(target)
    if signature is None:
        return None
    return _bind_and_fill(signature, args, kwargs, normalize_to_only_use_kwargs)


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
    _check_call("normalize_module", args, kwargs)
    if not isinstance(root, torch.nn.Module):
        raise refusal("normalize_module takes the module that owns the graph", root)
    expect(target, str, "normalize_module takes the path of a submodule")
    try:
        module = root.get_submodule(target)
    except AttributeError as error:
        raise GraphError(
            f"there is no module {target!r} whose arguments could be normalized",
            value=f"the root is a {type(root).__name__}",
            why=str(error),
            remedy="pass the module that owns the graph as root",
        ) from error
    if getattr(torch.nn, type(module).__name__, None) is not type(module):
        return None
    signature = inspect.signature(inspect.unwrap(module.forward))
    return _bind_and_fill(signature, args, {} if kwargs is None else kwargs, normalize_to_only_use_kwargs)


def _check_call(who: str, args: object, kwargs: object, arg_types: object = None, kwarg_types: object = None) -> None:
    expect(args, (tuple, list), f"args of {who} is a tuple")
    expect(kwargs, (Mapping, NoneType), f"kwargs of {who} is a dict")
    expect(arg_types, (tuple, list, NoneType), f"arg_types of {who} is a tuple")
    expect(kwarg_types, (Mapping, NoneType), f"kwarg_types of {who} is a dict")


def get_python_signature(target: Callable[..., Any]) -> Signature | None:
    """Return the signature of a function written in Python, or ``None`` if it stands for two that differ."""
    # Some functionals call one of two functions, depending on a flag such as `return_indices`.
    dispatched: Mapping[str, Callable[..., Any]] | None = _torch._jit_internal.boolean_dispatched.get(target)
    if dispatched is None:
        return inspect.signature(inspect.unwrap(target))
    when_true, when_false = (inspect.signature(dispatched[key]) for key in ("if_true", "if_false"))
    return when_true if when_true.parameters == when_false.parameters else None


def _choose_signature(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    arg_types: tuple[Any, ...] | None,
    kwarg_types: Mapping[str, Any] | None,
) -> Signature | None:
    """Return the signature of the overload that is called, or ``None`` if none fits."""
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
            if all(type_matches(parameters[name].annotation, given) for name, given in bound.items()):
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
