"""Arguments that no row names: further parameters of signatures, away from their defaults.

A pass that replaces one call by another often forgets an argument that most programs leave at its default.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fx.operator_schemas import get_signature_for_torch_op
from pytest_fx.generation.operands import one_of
from pytest_fx.generation.productions import MODULE, NAMESPACE, Argument
from pytest_fx.generation.signatures import documented_texts, overloads_of, type_of

_CALL = re.compile(r"^(?P<name>(?:torch|F)(?:\.\w+)+|\{0\}\.\w+)\(.*\{\*\}\)(?:\[\d\]|\.\w+)?$")
_NEVER = frozenset(
    "bias inplace out generator device layout pin_memory requires_grad memory_format training train size_average "
    "reduce sparse sorted dropout dropout_p p cudnn_enable enable_nested_tensor affine elementwise_affine output_size "
    "half_to_float momentum".split()
)
"""Arguments that rows decide on, that do not affect the result, or that programs cannot hold."""
_BY_NAME: dict[str, tuple[Any, ...]] = {
    "dtype": (torch.float64,),
    "max_norm": (0.5,),
    "divisor_override": (3,),
    "ignore_index": (1, 0),
    "padding_idx": (0, 1),
    "recompute_scale_factor": (True,),
}
"""Values for arguments whose default and type do not show which values there are."""
_BY_TYPE: dict[str, tuple[Any, ...]] = {
    "bool": (True, False),
    "int": (1, 2, 0),
    "float": (0.5, 0.1, 2.0),
    "number": (2, 0.5),
}
"""Values for the others; those of texts are quoted in the documentation."""


@functools.lru_cache(maxsize=4096)
def further_arguments(template: str, known: frozenset[str]) -> tuple[Argument, ...]:
    """Return the arguments, beside the ``known`` ones, of the torch function or module that a template calls.

    >>> [argument.name for argument in further_arguments("torch.topk({0}, 1{*})", frozenset({"dim"}))]
    ['largest']
    >>> [argument.name for argument in further_arguments("{0}.sort({*})", frozenset({"dim"}))]
    ['descending']
    >>> [argument.name for argument in further_arguments("nn.AvgPool2d({*})", frozenset({"kernel_size", "stride"}))]
    ['padding', 'ceil_mode', 'count_include_pad', 'divisor_override']
    """
    arguments: dict[str, Argument] = {}
    for called, signature in _signatures(template):
        for parameter in signature.parameters.values():
            is_known = parameter.name in (*known, *arguments) or f"{parameter.name}=" in template
            if not is_known and (values := _values(called, parameter)):
                arguments[parameter.name] = Argument(parameter.name, one_of(*values))
    return tuple(arguments.values())


def _signatures(template: str) -> Iterator[tuple[Any, inspect.Signature]]:
    if "{*}" not in template:
        return
    if template.startswith(("nn.", MODULE)):
        kind = _resolved(template.removeprefix(MODULE).partition("(")[0])
        if inspect.isclass(kind) and issubclass(kind, nn.Module):
            yield kind, inspect.signature(kind)
        return
    match = _CALL.match(template)
    if match is None:
        return
    name = match["name"]
    if name[0] == "{":
        yield from ((name[4:], each.signature) for each in overloads_of(name[4:]) if _is_plain(each.signature))
    function = _resolved(name if name[0] != "{" else f"torch.{name[4:]}")
    for called in (function, getattr(torch, getattr(function, "__name__", ""), None)):  # F.max_pool2d has no signature
        if callable(called):
            overloads = get_signature_for_torch_op(called) or []
            yield from ((called, each) for each in overloads if _is_plain(each))
            if not overloads and inspect.isfunction(called):
                yield called, inspect.signature(called)


def _is_plain(signature: inspect.Signature) -> bool:
    """Return whether an overload takes a tensor first, and no tensor to write its result to."""
    first, *rest = signature.parameters.values()
    results = (part for part in rest if part.kind is part.KEYWORD_ONLY and part.default is part.empty)
    return first.annotation is torch.Tensor and all(part.annotation is not torch.Tensor for part in results)


def _resolved(name: str) -> Any:
    root, *rest = name.split(".")
    return functools.reduce(lambda owner, part: getattr(owner, part, None), rest, NAMESPACE.get(root))


def _values(called: Any, parameter: inspect.Parameter) -> tuple[Any, ...]:
    """Return the values that differ from the default; none if they are unknown."""
    name, default = parameter.name, parameter.default
    if name in _NEVER or name[0] == "_" or parameter.kind is parameter.POSITIONAL_ONLY or default is parameter.empty:
        return ()
    kind = {bool: "bool", int: "int", float: "float", str: "str"}.get(type(default))
    if default is None:
        kind = type_of(parameter.annotation, name)
    if isinstance(default, list | tuple) and all(type(each) is int for each in default):
        return tuple(type(default)([each + 1 for each in default[:1]])) if default else ()
    values = _BY_NAME.get(name) or (documented_texts(called, name) if kind == "str" else _BY_TYPE.get(kind or "", ()))
    return tuple(value for value in values if value is not default and value != default)
