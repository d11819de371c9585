"""The ways to call operators of torch: signatures of functions, methods and modules, and types of arguments."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

import torch
from torch import nn

from fx.operators.overloads import get_overloads, get_python_signature
from pytest_fx.generation.spelled_targets import path_of

_QUOTED = re.compile(r"""(?<![\w\\])["'](\w+)["']""")
_IGNORED = re.compile(r"^(out|generator|size_average|reduce|_.*)$")
"""Parameters for the destination of results, and parameters that do not affect results."""
MOST_TEXTS = 8
"""The most quoted texts of a documentation that are used as arguments."""


_KEYS = (
    "CPU",
    *(f"Composite{kind}" for kind in ("ImplicitAutograd", "ExplicitAutograd", "ExplicitAutogradNonFunctional")),
)


@dataclass(frozen=True, slots=True)
class Spelled:
    """A way to call an operator."""

    path: str
    """``"torch.linalg.svd"``, ``".add_"`` or ``"nn.Fold"``."""
    parameters: tuple[Parameter, ...]
    """The parameters; the first one of a method is the receiver."""
    forward: tuple[Parameter, ...] = ()
    """The parameters of a module's call."""
    writes_out: bool = False
    """True if a further overload writes its result to ``out=``."""
    imports: str = ""
    """A module that the path imports."""


def calls_of(target: Any) -> Iterator[Spelled]:
    """Yield the ways to call a function, a method by its name, or a class of modules of torch; none of others.

    >>> [spelled.path for spelled in calls_of(torch.linalg.det)]
    ['torch.linalg.det']
    >>> [parameter.name for parameter in next(calls_of("addmv")).parameters]
    ['input', 'mat', 'vec', 'beta', 'alpha']
    """
    if inspect.isclass(target):
        if issubclass(target, nn.Module) and getattr(nn, target.__name__, None) is target:
            forward = tuple(inspect.signature(target.forward).parameters.values())[1:]
            if target.forward is nn.Module.forward:  # a base class, or a container
                return
            yield Spelled(f"nn.{target.__name__}", (*inspect.signature(target).parameters.values(),), forward)
        return
    path, imports = (f".{target}", "") if isinstance(target, str) else path_of(target) or ("", "")
    if not path:
        return
    overloads = [
        (each, _own(each.signature))
        for each in overloads_of(target)
        if _is_of_tensors(each.signature) and runs_on_cpu(each.schema)
    ]
    with_out = any("out" in each.written for each, _ in overloads)
    results = [parameters for each, parameters in overloads if not _has_result(each.signature, each.written)]
    if (not overloads_of(target) or inspect.isfunction(target)) and (
        signature := _python_signature(target)
    ) is not None:
        results.append(_own(signature))
    if not results and not overloads_of(target):  # an unknown operator: it may be a method without other arguments
        results = [(Parameter("self", Parameter.POSITIONAL_OR_KEYWORD, annotation=torch.Tensor),)]
    for parameters in {str(inspect.Signature(each)): each for each in results}.values():
        yield Spelled(path, parameters, writes_out=with_out and path[0] != ".", imports=imports)


def overloads_of(target: Any) -> tuple[Any, ...]:
    """Return the overloads that torch declares for a function, or for a method by its name.

    >>> len(overloads_of("index_add_")), len(overloads_of(torch.linalg.det))
    (1, 2)
    """
    if not isinstance(target, str):
        return get_overloads(target)
    packet = getattr(torch.ops.aten, target, None)
    return () if packet is None else get_overloads(packet)


def runs_on_cpu(schema: Any) -> bool:
    """Return whether torch has a kernel for dense tensors on the CPU, or one for all devices.

    >>> [runs_on_cpu(overload.schema) for overload in overloads_of("addcdiv")]
    [True, True]
    """
    name = f"{schema.name}.{schema.overload_name}".rstrip(".")
    try:
        return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in _KEYS)
    except RuntimeError:  # an operator of TorchScript alone
        return False


def _has_result(signature: inspect.Signature, written: frozenset[str]) -> bool:
    """Return whether an overload takes tensors to write its results to."""
    return any(signature.parameters[name].kind is Parameter.KEYWORD_ONLY for name in written)


def _own(signature: inspect.Signature) -> tuple[Parameter, ...]:
    return tuple(each for each in signature.parameters.values() if not _IGNORED.match(each.name) or is_required(each))


def _is_of_tensors(signature: inspect.Signature) -> bool:
    """Return whether an operand or the result is a tensor."""
    types = {type_of(each.annotation, each.name) for each in signature.parameters.values()}
    return signature.return_annotation is torch.Tensor or not types.isdisjoint(("tensor", "tensors"))


def is_required(parameter: Parameter) -> bool:
    """Return whether an argument is required."""
    return parameter.default is Parameter.empty


def _python_signature(target: Any) -> inspect.Signature | None:
    """Return the Python signature of a function or method; of two that a flag selects, the one without it."""
    function = getattr(torch.Tensor, target, None) if isinstance(target, str) else target
    try:
        dispatched: Any = getattr(torch, "_jit_internal").boolean_dispatched.get(function)  # noqa: B009
        if dispatched is not None:
            return inspect.signature(dispatched["if_false"])
        return get_python_signature(function)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):  # there is none for a built-in function
        return None


@functools.lru_cache(maxsize=4096)
def type_of(annotation: Any, name: str) -> str:
    """Return the type of an argument: ``"tensor"``, ``"tensors"``, ``"int"``, ``"ints"`` and so on; empty if unknown.

    >>> type_of(torch.Tensor | None, "weight"), type_of("int | tuple[int, int]", "kernel_size"), type_of(None, "size")
    ('tensor', 'ints', 'ints')
    """
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    text = text if text and not hasattr(annotation, "__args__") else str(annotation)
    if "Callable" in text or "Module" in text:
        return ""
    if name == "dtype":
        return name
    has_several = re.search(r"[Ll]ist|[Ss]equence|[Tt]uple|Size|_size", text) is not None
    for word, kind in _TYPES.items():
        if re.search(rf"\b{word}\b", text):
            is_number = kind == "int" and not has_several and re.search(r"\b(float|complex)\b", text)
            return "number" if is_number else f"{kind}s" if has_several and kind in _SEVERAL else kind
    if text in ("_empty", "None", "NoneType"):  # not annotated, or with a type of torch's own compiler
        if name in ("tensors", "operands", "matrices"):
            return "tensors"
        return "tensor" if re.match(r"^(self|input|tensor|other|[abABx])\d?$", name) else "ints"
    return "ints" if has_several else ""


_TYPES = {"Tensor": "tensor", "str": "str", "bool": "bool", "int": "int", "float": "float", "dtype": "dtype",
          "Number": "number", "complex": "number", "Any": "number"}  # fmt: skip
_SEVERAL = ("tensor", "int", "float")


@functools.lru_cache(maxsize=4096)
def documented_texts(target: Any, name: str) -> tuple[str, ...]:
    """Return the quoted texts in an operator's documentation, preferably those about an argument.

    >>> documented_texts(torch.nn.Conv2d, "padding_mode"), documented_texts("scatter_reduce", "reduce")
    (('zeros', 'reflect', 'replicate', 'circular'), ('sum', 'prod', 'mean', 'amax', 'amin'))
    """
    about = rf"^\s*:?(?:attr:)?`*{name}`*[ (:].*(?:\n(?!\s*\w+`? ?\().+)*"
    for document in _documents(target):
        parts = re.findall(about, document, re.MULTILINE)
        for text in ("\n".join(parts), document):
            if words := _QUOTED.findall(text):
                return tuple(dict.fromkeys(words))[:MOST_TEXTS]
    return ()


def _documents(target: Any) -> Iterator[str]:
    """Yield the documentation of an operator, and of others of its name, which it may refer to."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    others = (getattr(owner, each, None) for owner in (torch, torch.Tensor) for each in (name, f"{name}_"))
    for documented in (target, *others):
        if documented is not None and not isinstance(documented, str):
            yield inspect.getdoc(documented) or ""
