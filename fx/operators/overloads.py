"""Torch's declarations of an operator: overloads with their schemas, and signatures of its functions in Python."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any

import torch

from fx.operators.schemas import python_type

if TYPE_CHECKING:
    from torch._C import Argument as SchemaArgument
    from torch._C import FunctionSchema


@dataclass(frozen=True, slots=True, eq=False)
class Overload:
    """One overload of an operator: its schema, and facts derived from it once, as they are needed often."""

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
    """Names of the arguments to which the operator writes."""

    def accepts(self, count: int, keywords: Iterable[str]) -> bool:
        """Return whether a call with ``count`` positional arguments and ``keywords`` fits, whatever their types."""
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
BUILTINS: Any = (types.BuiltinFunctionType, *_OPERATORS)

_overloads: dict[int, tuple[Callable[..., Any], tuple[Overload, ...]]] = {}
"""The overloads by the function's identity, as different functions of torch may compare equal; the function is kept
alive, too."""


def _make_parameter(argument: SchemaArgument, name: str, positional_only: bool) -> Parameter:
    """Return ``argument`` of a schema as a parameter of a Python signature."""
    kind = Parameter.KEYWORD_ONLY if argument.kwarg_only else Parameter.POSITIONAL_OR_KEYWORD
    if positional_only and not argument.kwarg_only:
        kind = Parameter.POSITIONAL_ONLY
    default = argument.default_value if argument.has_default_value() else Parameter.empty
    return Parameter(name, kind, default=default, annotation=python_type(argument.type))


def _name_in_python(argument: SchemaArgument, names: list[str]) -> str:
    """Return Python's name of an argument: `input` where the schema says `self`, if that is a tensor."""
    is_receiver = argument.name == "self" and str(argument.type) == "Tensor" and "input" not in names
    return "input" if is_receiver else argument.name


def _make_overload(schema: FunctionSchema) -> Overload:
    """Derive the facts about one overload from its schema."""
    names = [argument.name for argument in schema.arguments]
    # A parameter called `from` cannot be passed by keyword, hence no parameter before it can.
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


def signature_of_schema(schema: FunctionSchema) -> Signature:
    """Return a schema as a signature of Python, in which ``self`` is called ``input``."""
    return _make_overload(schema).signature


def get_overloads(target: Callable[..., Any]) -> tuple[Overload, ...]:
    """Return the overloads of a torch operator, or of the function of torch that calls it; empty if there are none.

    Results are cached, so a second call costs a dictionary look-up.
    """
    cached = _overloads.get(id(target))
    if cached is not None:
        return cached[1]
    operation: Any = target
    if isinstance(target, _OPERATORS):
        packet = hasattr(operation, "overloads")
        schemas = (
            [getattr(operation, name)._schema for name in operation.overloads()] if packet else [operation._schema]
        )
    elif (name := builtin_name(target)) is not None:
        schemas = _torch._C._jit_get_schemas_for_operator(name)
    else:
        return ()  # not cached: the cache would keep the user's functions alive
    overloads = tuple(_make_overload(schema) for schema in schemas if _is_nameable(schema))
    _overloads[id(target)] = (target, overloads)
    return overloads


def _is_nameable(schema: FunctionSchema) -> bool:
    """Return whether its arguments have different names; a single internal operator of torch has not."""
    return len({argument.name for argument in schema.arguments}) == len(schema.arguments)


def builtin_name(target: Callable[..., Any]) -> str | None:
    """Return the name of the operator that a function of torch calls, such as ``aten::relu``."""
    return _torch.jit._builtins._find_builtin(target)


def get_python_signature(target: Callable[..., Any]) -> Signature | None:
    """Return the signature of a function written in Python, or ``None`` if it dispatches to two that differ."""
    # Some functionals call one of two functions, depending on a flag such as `return_indices`.
    dispatched: Mapping[str, Callable[..., Any]] | None = _torch._jit_internal.boolean_dispatched.get(target)
    if dispatched is None:
        return inspect.signature(inspect.unwrap(target))
    when_true, when_false = (inspect.signature(dispatched[key]) for key in ("if_true", "if_false"))
    return when_true if when_true.parameters == when_false.parameters else None
