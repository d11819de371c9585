"""What a function says of its parameters: annotations, as text or as what that stands for, and defaults."""

from __future__ import annotations

import functools
import inspect
import sys
from types import CodeType, FunctionType
from typing import Any

from fx.provenance import GENERATED_FILES

if sys.version_info >= (3, 14):
    import annotationlib


def evaluated_annotations(function: Any) -> dict[str, Any]:
    """The annotations of ``function``, as objects where its strings can be evaluated.

    Those of generated code are what its graph holds, which may come from a file: they stay what they are.
    """
    behind = inspect.unwrap(function)
    if getattr(getattr(behind, "__code__", None), "co_filename", None) in GENERATED_FILES:
        return annotations_of(behind)
    try:
        if sys.version_info >= (3, 14) or getattr(behind, "__type_params__", ()):
            return inspect.get_annotations(function, eval_str=True)
        namespace = getattr(behind, "__globals__", {})
        held = getattr(function, "__annotations__", None) or {}
        return {name: eval(_compiled(one), namespace) if isinstance(one, str) else one for name, one in held.items()}
    except Exception:  # evaluating the user's annotations may do anything; as strings they are just names
        return annotations_of(function)


@functools.lru_cache(maxsize=1000)
def _compiled(annotation: str) -> CodeType:
    """The code of an annotation that is kept as text."""
    return compile(annotation.lstrip(" \t"), "<annotation>", "eval", dont_inherit=True)


def defaults_of(function: Any) -> dict[str, Any]:
    """The defaults of a function's parameters."""
    if not isinstance(function, FunctionType) or "__signature__" in function.__dict__:
        given = inspect.signature(function).parameters.items()
        return {name: parameter.default for name, parameter in given if parameter.default is not parameter.empty}
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    return {**dict(zip(names, defaults, strict=True)), **(function.__kwdefaults__ or {})}


def annotations_of(owner: Any) -> dict[str, Any]:
    """The annotations of a function, or of a class without its bases, where text stays text.

    Python 3.14 evaluates them when somebody asks, and may lack a name then: such a one is a forward reference.
    """
    if sys.version_info >= (3, 14):
        return annotationlib.get_annotations(owner, format=annotationlib.Format.FORWARDREF)
    held = vars(owner).get("__annotations__") if isinstance(owner, type) else getattr(owner, "__annotations__", None)
    return dict(held or {})
