"""The same transforms by torch.fx and torch.ao, and other compilers: measured in columns beside ours."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from fx.lowering import lower
from pytest_fx.harness.capture import capture

Backend = Literal["x86", "onednn", "fbgemm"]

OTHERS = {"inductor": "torch.compile", "onnxruntime": "ONNX Runtime"}
"""Compilers that run beside ours, with the headings of their columns."""

_torch: Any = torch


def compiled_by_others(module: nn.Module, inputs: Sequence[Any]) -> dict[str, Callable[[], Any]]:
    """Return calls of ``module`` as torch.compile and ONNX Runtime compile it, for the current number of threads.

    A compiler that is not installed, or that fails on this module, is left out.
    """
    makers = {"inductor": _by_inductor, "onnxruntime": _by_onnxruntime}
    calls: dict[str, Callable[[], Any]] = {}
    for name, make in makers.items():
        with suppress(Exception), warnings.catch_warnings():  # a compiler can raise anything
            warnings.simplefilter("ignore")
            calls[name] = make(module, inputs)
    return calls


def _by_inductor(module: nn.Module, inputs: Sequence[Any]) -> Callable[[], Any]:
    """Compile with Inductor for these inputs, with parameters as constants.

    Earlier programs are forgotten: torch.compile runs a module eagerly after some compilations of the same code.
    """
    config: Any = importlib.import_module("torch._inductor.config")
    torch.compiler.reset()
    compiled = torch.compile(module, dynamic=False)
    with torch.no_grad(), config.patch(freezing=True):
        compiled(*inputs)
    return partial(compiled, *inputs)


def _by_onnxruntime(module: nn.Module, inputs: Sequence[Any]) -> Callable[[], Any]:
    return partial(lower(capture(module), "onnxruntime", tuple(inputs)), *inputs)


def torch_fx_fuse(module: nn.Module) -> nn.Module:
    """Fuse convolutions and batch norms in a copy of ``module`` by torch.fx's own fusion."""
    with warnings.catch_warnings():
        # The module imports deprecated names itself.
        warnings.simplefilter("ignore", DeprecationWarning)
        optimization = importlib.import_module("torch.fx.experimental.optimization")
    return optimization.fuse(module)


def ao_prepare(module: nn.Module, inputs: Sequence[Tensor], backend: Backend, *, dynamic: bool = False) -> nn.Module:
    """Return ``module`` with torch.ao's observers for the kernels of ``backend``; calls of it calibrate it."""
    with _ao(backend) as (quantization, prepare_fx, _):
        if dynamic:
            mapping = quantization.QConfigMapping().set_global(quantization.default_dynamic_qconfig)
            mapping = mapping.set_object_type(F.linear, quantization.per_channel_dynamic_qconfig)
            mapping = mapping.set_object_type(nn.Linear, quantization.per_channel_dynamic_qconfig)
        elif inputs[0].is_floating_point():
            mapping = quantization.get_default_qconfig_mapping(backend)
        else:  # its observers reject the masks computed from tokens
            mapping = quantization.QConfigMapping().set_object_type(
                nn.Linear, quantization.get_default_qconfig(backend)
            )
        return prepare_fx(ao_captured(module), mapping, tuple(inputs))


def ao_convert(prepared: nn.Module, backend: Backend) -> nn.Module:
    """Return the program with torch.ao's int8 kernels. ``prepared`` must not be used afterwards."""
    with _ao(backend) as (_, _, convert_fx):
        return convert_fx(prepared)


def ao_captured(module: nn.Module) -> torch.fx.GraphModule:
    """Capture a copy of ``module`` that shares its tensors, in a form that torch.ao can convert.

    torch.ao cannot convert calls of ``F.linear`` with keywords (torch 2.13), as in DeepRecommender.
    """
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    program = torch.fx.symbolic_trace(copy.deepcopy(module, shared))
    for node in program.graph.find_nodes(op="call_function", target=F.linear):
        named = {"bias": None, **node.kwargs}
        node.args = (*node.args, *(named[name] for name in ("input", "weight", "bias")[len(node.args) :]))
        node.kwargs = {}
    program.recompile()
    return program


@contextmanager
def _ao(backend: Backend) -> Generator[tuple[Any, Any, Any]]:
    """Import torch.ao, select the kernels of ``backend`` inside the block, and silence deprecation warnings."""
    before = _torch.backends.quantized.engine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _torch.backends.quantized.engine = backend
        try:
            quantization = importlib.import_module("torch.ao.quantization")
            functions = importlib.import_module("torch.ao.quantization.quantize_fx")
            yield quantization, functions.prepare_fx, functions.convert_fx
        finally:
            _torch.backends.quantized.engine = before
