"""The form ``quantizer``: quantizers for PT2E, of torchao or of ``torch.ao``."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from fx.passes import Approximate
from pytest_fx.forms.exported_source import ExportedSource, Level
from pytest_fx.forms.form import Form, FormResult, Snapshot, called_as_module
from pytest_fx.forms.recognition import QUANTIZERS
from pytest_fx.named_objects import class_called, is_one_of

LEAST_SQNR = 20.0
"""Contract in decibels for quantizers that declare none, met by 8-bit integers."""


class _NoAnnotations:
    """A quantizer that annotates nothing, so that PT2E only prepares and converts."""

    def transform_for_annotation(self, model: Any) -> Any:
        return model

    def annotate(self, model: Any) -> Any:
        return model

    def validate(self, model: Any) -> None:
        pass

    def prepare_obs_or_fq_callback(self, *arguments: Any) -> None:
        pass


def _apply(pass_: Any, source: ExportedSource, level: Level) -> FormResult:
    """Prepare, calibrate on the example and on further data, and convert, by the library of the quantizer."""
    flow = _flow(pass_)
    graph_module = source.graph_module(level)
    before = Snapshot.of(graph_module)
    prepared = flow.prepare_pt2e(graph_module, pass_)
    with torch.no_grad():
        for args, kwargs in [source.call, *source.data()]:
            prepared(*args, **kwargs)
    converted = called_as_module(flow.convert_pt2e(prepared))
    is_graph = isinstance(converted, torch.fx.GraphModule)
    after = Snapshot.of(converted) if is_graph else before
    return FormResult(
        converted, None, converted if is_graph else None, len(before.nodes), len(after.nodes), after != before
    )


def _flow(quantizer: Any) -> Any:
    """Return the module with ``prepare_pt2e`` from the library of the quantizer's base class."""
    for path, flow in zip(QUANTIZERS, _FLOWS, strict=True):
        kind = class_called(path)
        if kind is not None and isinstance(quantizer, (kind, _NoAnnotations)):
            return importlib.import_module(flow)
    raise TypeError("a quantizer is a subclass of torchao's or torch.ao's Quantizer")


_FLOWS = ("torchao.quantization.pt2e.quantize_pt2e", "torch.ao.quantization.quantize_pt2e")

QUANTIZER = Form(
    "quantizer",
    "what prepare_pt2e(ep.module(), quantizer) gives it: a Quantizer of torchao or torch.ao; it is calibrated and "
    "converted",
    lambda pass_: is_one_of(pass_, *QUANTIZERS),
    _apply,
    _NoAnnotations(),
    ("exported", "strict"),
    "strict",  # which module a node is of: without it, torchao fails if a model calls one module twice
    contract=Approximate(LEAST_SQNR),
    laws=("form signature", "form round trips"),
)
"""Quantizers for PT2E."""
