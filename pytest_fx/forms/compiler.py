"""The form ``compiler``: functions of a module and an example call that return something to call in its place."""

from __future__ import annotations

import copy
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from fx.errors import PassError
from pytest_fx.forms.attribute_state import AttributeState
from pytest_fx.forms.exported_source import ExportedSource, Level
from pytest_fx.forms.form import Form, FormResult, called_as_module
from pytest_fx.forms.recognition import first_annotation, required

_tree: Any = _pytree
_LONGEST = 300
"""The most characters of a compiler's message in a refusal."""


def _apply(pass_: Any, source: ExportedSource, level: Level) -> FormResult:
    """Compile a copy of the module, and call the result once. An exception of either is a refusal."""
    module, example = source.copied(), _copied(source.call)
    with _state_kept(module):
        try:
            program = called_as_module(pass_(module, *example))
            args, kwargs = _copied(source.call)
            with torch.no_grad():
                program(*args, **kwargs)
        except Exception as error:
            message = " ".join(str(error).split())[:_LONGEST]
            raise PassError(f"the compiler refuses the program: {type(error).__name__}: {message}") from None
    return FormResult(program)


def _copied(call: Any) -> Any:
    """Return a call with copies of its tensors, which share memory as these do."""
    return copy.deepcopy(_tree.tree_map_only(torch.Tensor, torch.Tensor.detach, call))


@contextmanager
def _state_kept(module: nn.Module) -> Generator[None]:
    """Restore parameters, buffers, other attributes, and the random state: calls of the block may change them."""
    attributes = AttributeState(module)
    state = [*module.parameters(), *module.buffers()]
    values = [tensor.detach().clone() for tensor in state]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        attributes.put_back()
        with torch.no_grad():
            for tensor, value in zip(state, values, strict=True):
                if not torch.equal(tensor, value):  # a write that changes nothing would still count as one
                    tensor.copy_(value)


COMPILER = Form(
    "compiler",
    "(module, args, kwargs): a torch.nn.Module and an example call, and returns something to call in its place",
    lambda pass_: required(pass_) == 3 and first_annotation(pass_) is nn.Module,
    _apply,
    lambda module, args, kwargs: module,
    ("exported",),
    is_exported=False,
)
"""Compilers of modules: those of :mod:`pytest_fx.compilers`, and the user's own."""
