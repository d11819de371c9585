"""The operators of torch: its own lists of functions and methods that take tensors, of factories, and of modules."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from pytest_fx.generation.signatures import overloads_of, type_of
from pytest_fx.generation.spelled_targets import Target, path_of

STATED: dict[str, str] = {
    r"(fbgemm|miopen|quantize|choose_qparams|q_per|q_scale|q_zero|int_repr|fused_moving_avg|mkldnn)":
        "is for a library of a vendor, or for quantized storage",
    r"((gru|lstm|rnn_tanh|rnn_relu)(_cell)?$|batch_norm_)":
        "is the kernel of a layer, and crashes on weights of other sizes",
    r"(storage\w*|(const_)?data_ptr|set_|resize\w*|share_memory_|module_load|new|pin_memory|element_size|qscheme)$":
        "is about memory, and not about values",
    r"(apply_|map_|map2_)$": "calls a function of Python on each element",
    r"(backward|register_\w+|retain_grad|requires_grad_|detach_|reinforce)$":
        "is about gradients, and not about values",
    r"(empty\w*|new_empty\w*)$": "leaves the values of its result undefined",
    r"(from_file|frombuffer|from_numpy|as_tensor|asarray|from_dlpack|cuda|ipu|xpu|mtia|cpu|record_stream)$":
        "is about other libraries, files or devices",
    r"(multi_head_attention_forward)$": "is the kernel of nn.MultiheadAttention, with nothing of its own",
    r"(hsmm|hspmm|saddmm|smm|sspaddmm|native_norm|\w*indices|values|(is_)?coalesced?|sparse_\w+|to_padded_tensor)$":
        "takes sparse or nested tensors",
    r"(as_subclass|index|type|new_tensor|tolist|numpy|autocast)$": "is about Python's data",
    r"lu_solve$": "is deprecated for that of torch.linalg",
    r"(sym_\w+|hash_tensor|slice_inverse|values_copy|\w*indices_copy)$": "is part of torch's own compiler",
}  # fmt: skip
"""Reasons why some operators are in no program, by a pattern for the last part of their names."""
_OF_NONZERO = ("argwhere", "unique", "unique_consecutive", "combinations")
"""Operators that call ``nonzero`` or similar ones, and lack the tag of a dynamic size."""
_NAMESPACES = {"torch": torch, "F": F, "torch.linalg": torch.linalg, "torch.fft": torch.fft,
               "torch.special": torch.special}  # fmt: skip


@functools.cache
def torch_operators() -> dict[str, Target]:
    """Return all public functions, methods and modules of torch that take or make tensors, by their spelling.

    >>> names = torch_operators()
    >>> names["torch.addmv"] is torch.addmv, names[".addmv"], names["nn.Fold"] is torch.nn.Fold
    (True, 'addmv', True)
    """
    return dict(_operators())


def is_listed(target: Target) -> bool:
    """Return whether an operator is on torch's lists, and no reason excludes it."""
    if isinstance(target, str):
        name = f".{target}"
    else:
        name = f"nn.{target.__name__}" if inspect.isclass(target) else (path_of(target) or ("",))[0]
    listed = torch_operators().get(name)
    return listed is not None and (listed is target or not inspect.isclass(target)) and stated_reason(name) is None


def has_dynamic_size(target: Target) -> bool:
    """Return whether the size of an operator's result depends on the values of its operands.

    >>> has_dynamic_size("nonzero"), has_dynamic_size(torch.masked_select), has_dynamic_size("argwhere")
    (True, True, True)
    """
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    packet = getattr(torch.ops.aten, name, None)
    overloads = () if packet is None else (getattr(packet, each) for each in packet.overloads())
    return name in _OF_NONZERO or any(torch.Tag.dynamic_output_shape in each.tags for each in overloads)


@functools.cache
def stated_reason(name: str) -> str | None:
    """Return why an operator is in no program, if that is known without calling it.

    >>> stated_reason(".share_memory_"), stated_reason("torch.relu")
    ('is about memory, and not about values', None)
    """
    last = name.rpartition(".")[2]
    target = getattr(nn, last, None) if name.startswith("nn.") else None
    if target is not None and issubclass(target, LazyModuleMixin):
        return "has no parameters before it is called"
    if target is not None and getattr(target, "forward", nn.Module.forward) is nn.Module.forward:
        return "is a base class or a container, and computes nothing itself"
    if name == f"torch.{last}" and _is_internal(getattr(torch, last)):
        return "is not documented, and what calls it checks its arguments"
    return next((reason for form, reason in STATED.items() if re.match(form, last)), None)


def _is_internal(function: Any) -> bool:
    """Return whether torch has no documentation of a function of several tensors: some crash on other sizes."""
    method = getattr(torch.Tensor, getattr(function, "__name__", ""), None)
    if inspect.getdoc(function) or inspect.getdoc(method):
        return False
    parts = [part for each in overloads_of(function) for part in _parameters(each)]
    types = [type_of(part.annotation, part.name) for part in parts if part.name != "out"]
    return "tensors" in types or types.count("tensor") > len(overloads_of(function))


def _operators() -> Iterator[tuple[str, Target]]:
    overridable: dict[Any, list[Any]] = torch.overrides.get_overridable_functions()
    functions = {id(function) for listed in overridable.values() for function in listed}
    for path, module in _NAMESPACES.items():
        for name, value in vars(module).items():
            if name[0] != "_" and (id(value) in functions or (inspect.isroutine(value) and _is_factory(value))):
                yield f"{path}.{name}", value
    for name in dir(torch.Tensor):
        if name[0] != "_" and inspect.isroutine(getattr(torch.Tensor, name)):
            yield f".{name}", name
    for name in nn.modules.__all__:
        yield f"nn.{name}", getattr(nn, name)


def _is_factory(function: Any) -> bool:
    """Return whether a function makes a tensor without taking one."""
    return any(
        each.signature.return_annotation is torch.Tensor
        and all(
            part.annotation is not torch.Tensor or name == "out" for name, part in each.signature.parameters.items()
        )
        for each in overloads_of(function)
    )


def _parameters(overload: Any) -> Iterator[inspect.Parameter]:
    yield from overload.signature.parameters.values()
