"""Calibrated programs, and a quantized program in which each operation is checked on its real inputs."""

from __future__ import annotations

from typing import Any

import torch

import fx
from fx.quantize import (
    QuantizationScheme,
    QuantizedLayer,
    add,
    dequantize,
    mul,
    prepare,
    quantize,
    quantize_channels,
)


@torch.no_grad()
def calibrated(model: torch.nn.Module, *inputs: Any, scheme: QuantizationScheme | None = None) -> fx.GraphModule:
    """The model, in evaluation mode, prepared for quantization and run on the inputs, by which its shapes are known."""
    prepared = prepare(fx.symbolic_trace(model.eval()), scheme, inputs)
    prepared(*inputs)
    return prepared


def filled(layer: Any) -> Any:
    """A layer in 8 bits, with weights and biases that are drawn."""
    weight, scale = quantize_channels(torch.randn(layer.weight.shape))
    layer.fill(weight, scale, torch.randn(len(weight)) if layer.has_bias else None)
    return layer


_EXACT = {add: torch.add, mul: torch.mul}


class StepCheck(fx.Interpreter):
    """Runs a quantized program and notes the distance of each operation from its float meaning, in steps."""

    def __init__(self, program: fx.GraphModule) -> None:
        super().__init__(program)
        self.steps: dict[str, int] = {}
        self.off: dict[str, float] = {}
        """The part of the elements that are off at all."""

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        result = super().call_module(target, args, kwargs)
        layer = self.fetch_attr(target)
        if isinstance(layer, QuantizedLayer) and result.dtype is torch.uint8:
            exact = layer._reference(dequantize(args[0], kwargs["scale"], kwargs["zero_point"]))
            exact = exact.clamp(kwargs.get("low"), kwargs.get("high")) if {"low", "high"} & kwargs.keys() else exact
            intended = quantize(exact, kwargs["output_scale"], kwargs["output_zero_point"], kwargs.get("highest", 255))
            self._note(target, result, intended)
        return result

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        result = super().call_function(target, args, kwargs)
        if target in _EXACT:
            operands = (
                dequantize(kwargs[name], kwargs[f"{name}_scale"], kwargs[f"{name}_zero_point"])
                for name in ("input", "other")
            )
            settings = {name: kwargs[name] for name in ("scale", "zero_point", "highest") if name in kwargs}
            self._note(str(target), result, quantize(_EXACT[target](*operands), **settings))
        return result

    def _note(self, what: str, result: torch.Tensor, meant: torch.Tensor) -> None:
        difference = (result.int() - meant.int()).abs()
        self.steps[what] = max(self.steps.get(what, 0), int(difference.max()))
        self.off[what] = max(self.off.get(what, 0.0), float((difference > 0).float().mean()))
