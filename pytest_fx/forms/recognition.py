"""What a pass shows of its form: the classes that it has, the first annotation, and what its code uses.

Classes of other libraries are told by identity, and only looked for where their module is imported: a pass that uses
one has imported it.
"""

from __future__ import annotations

import inspect
import sys
from functools import cache
from typing import Any

import torch.fx

from fx.capture.parameters import annotations_of
from fx.interop.pass_library import form_of, mentions_of


def class_called(path: str) -> type[Any] | None:
    """Return the class ``module:name``; None where its module is not imported, so that nothing can be one of it."""
    module, _, name = path.partition(":")
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else None


def is_one_of(value: Any, *paths: str) -> bool:
    """Return whether a value is an instance of one of the classes ``module:name``."""
    classes = tuple(found for path in paths if (found := class_called(path)) is not None)
    return isinstance(value, classes)


def called(pass_: Any) -> Any:
    """Return the function that runs when a pass is called."""
    if inspect.isroutine(pass_) or isinstance(pass_, type):
        return pass_
    return type(pass_).__call__ if callable(pass_) else pass_


def first_annotation(pass_: Any) -> Any:
    """Return what a pass says of its first parameter; None where it says nothing that can be looked up."""
    function = called(pass_)
    parameters = [each for each in _parameters(pass_) if each.name != "self"]
    if not parameters:
        return None
    annotation = annotations_of(inspect.unwrap(function)).get(parameters[0].name)
    if not isinstance(annotation, str):
        return annotation
    known = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return eval(annotation, dict(known))
    except Exception:  # names that only type checkers import
        return None


def required(pass_: Any) -> int:
    """Return how many positional arguments a call of a pass needs."""
    needed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in needed and each.default is each.empty for each in _parameters(pass_))


def takes_module(pass_: Any) -> bool:
    """Return whether a pass takes a ``torch.fx.GraphModule``, or does not say what it takes."""
    return first_annotation(pass_) in (None, torch.fx.GraphModule)


def uses_aten(pass_: Any) -> bool:
    """Return whether a pass looks for operators of ATen, or hands the program to what does."""
    return form_of(pass_) == "aten" or any(map(_is_for_aten, mentions_of(pass_)))


def uses_patterns(pass_: Any) -> bool:
    """Return whether a pass uses a pattern matcher of Inductor's."""
    return any(is_one_of(mentioned, *PATTERN_MATCHERS) for mentioned in mentions_of(pass_))


def _parameters(pass_: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(pass_).parameters.values())
    except (TypeError, ValueError):  # a builtin that does not say
        return []


def _is_for_aten(mentioned: Any) -> bool:
    """Return whether what a pass uses works on exported programs alone.

    Those are Inductor's pattern matchers, quantizers, and functions that say that they take a quantizer or a program
    that was exported.
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
    known = getattr(function, "__globals__", {})
    return any(known.get(kind.__name__) is kind and kind.__name__ in text for kind in kinds)


PATTERN_MATCHERS = ("torch._inductor.pattern_matcher:PatternMatcherPass",)
"""Inductor's set of patterns with their replacements."""
QUANTIZERS = (
    "torchao.quantization.pt2e.quantizer.quantizer:Quantizer",
    "torch.ao.quantization.quantizer.quantizer:Quantizer",
)
"""What annotates an exported program for PT2E."""
