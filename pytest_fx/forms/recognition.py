"""Evidence of a pass's form: its classes, its first annotation, and the names that its code uses.

Classes of other libraries are compared by identity, and only if their module is imported: a pass that uses such a class
has imported its module.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch.fx

from fx.capture.parameters import annotations_of
from fx.interop.pass_library import form_of, mentions_of
from pytest_fx.named_objects import class_called, is_one_of


def called(pass_: Any) -> Any:
    """Return the function behind a call of a pass."""
    if inspect.isroutine(pass_) or isinstance(pass_, type):
        return pass_
    return type(pass_).__call__ if callable(pass_) else pass_


def first_annotation(pass_: Any) -> Any:
    """Return the annotation of a pass's first parameter; None if there is none, or its names cannot be resolved."""
    function = called(pass_)
    parameters = [parameter for parameter in parameters_of(pass_) if parameter.name != "self"]
    if not parameters:
        return None
    annotation = annotations_of(inspect.unwrap(function)).get(parameters[0].name)
    if not isinstance(annotation, str):
        return annotation
    namespace = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return eval(annotation, dict(namespace))
    except Exception:  # names that only type checkers import
        return None


def required(pass_: Any) -> int:
    """Return the number of required positional arguments of a pass."""
    needed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in needed and parameter.default is parameter.empty for parameter in parameters_of(pass_))


def takes_module(pass_: Any) -> bool:
    """Return whether a pass is annotated to take a ``torch.fx.GraphModule``, or has no annotation."""
    return first_annotation(pass_) in (None, torch.fx.GraphModule)


def uses_aten(pass_: Any) -> bool:
    """Return whether a pass uses ATen operators, or a class or function for exported programs."""
    return form_of(pass_) == "aten" or any(map(_is_for_aten, mentions_of(pass_)))


def uses_patterns(pass_: Any) -> bool:
    """Return whether a pass uses one of Inductor's pattern matchers."""
    return any(is_one_of(mentioned, *PATTERN_MATCHERS) for mentioned in mentions_of(pass_))


def parameters_of(pass_: Any) -> list[inspect.Parameter]:
    """Return the parameters of a pass; none if it has no signature."""
    try:
        return list(inspect.signature(pass_).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return []


def _is_for_aten(mentioned: Any) -> bool:
    """Return whether a name that a pass uses works on exported programs only.

    These are Inductor's pattern matchers, quantizers, and functions with a parameter annotated as a quantizer.
    """
    if is_one_of(mentioned, *PATTERN_MATCHERS, *QUANTIZERS):
        return True
    if isinstance(mentioned, type):
        return any(kind is not None and issubclass(mentioned, kind) for kind in map(class_called, QUANTIZERS))
    return inspect.isfunction(mentioned) and _takes_quantizer(mentioned)


@cache
def _takes_quantizer(function: Any) -> bool:
    text = " ".join(map(str, annotations_of(function).values()))
    kinds = [kind for kind in map(class_called, QUANTIZERS) if kind is not None]
    namespace = getattr(function, "__globals__", {})
    return any(namespace.get(kind.__name__) is kind and kind.__name__ in text for kind in kinds)


PATTERN_MATCHERS = ("torch._inductor.pattern_matcher:PatternMatcherPass",)
"""Inductor's class for a set of patterns with replacements."""
QUANTIZERS = (
    "torchao.quantization.pt2e.quantizer.quantizer:Quantizer",
    "torch.ao.quantization.quantizer.quantizer:Quantizer",
)
"""The base classes of quantizers for PT2E."""
