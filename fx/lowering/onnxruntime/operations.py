"""The operations that ``torch.onnx`` and ONNX Runtime compute as PyTorch does, checked before anything is built."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F

from fx.lowering.converters import Converters
from fx.lowering.openvino import operations as shared
from fx.lowering.support import all_of, has_rank, where
from fx.quantize.arithmetic import dequantize, dequantize_channels, quantize
from fx.quantize.recurrence import has_projections, recurrent

converters = Converters("onnxruntime", shared.converters.find)
"""The converters of the backend ``onnxruntime``. They build nothing: the exporter takes a whole region at a time."""

# Both runtimes take float32 values of known sizes, and arguments that are numbers. They
# differ in the reference form of `fx.quantize`, for which OpenVINO's importer has an extension, and in two operations.
_OF_OPENVINO_ALONE = frozenset({quantize, dequantize, dequantize_channels})
_LIMITS = {
    # torch.onnx (2.13) writes a model without the operand
    torch.mean: where(lambda operation: operation.arguments.get("dim") is not None, "it averages all elements"),
    # torch.onnx (2.13) has no function for others
    F.scaled_dot_product_attention: has_rank("query", 4),
    recurrent: where(lambda operation: not has_projections(operation.arguments), "it projects its hidden states"),
}

for _converter in shared.converters:
    if _converter.target not in _OF_OPENVINO_ALONE:
        _limit = _LIMITS.get(_converter.target)
        _supports = _converter.supports if _limit is None else all_of(_converter.supports, _limit)
        converters.register(dataclasses.replace(_converter, supports=_supports))
