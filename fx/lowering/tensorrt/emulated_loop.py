"""Loops in emulated networks: layers that PyTorch computes once for each element of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from fx.errors import LoweringError
from fx.lowering.tensorrt.layers import EngineLayer

Run: TypeAlias = "Callable[[EngineLayer, dict[str, Tensor]], None]"
"""A function that computes a layer that is not on the boundary of a loop, and adds its results to the values."""


def steps_of(layers: Sequence[EngineLayer]) -> Iterator[tuple[EngineLayer, ...]]:
    """Yield the layers one by one, and those of a loop together, with the layers on its boundary."""
    place = 0
    while place < len(layers):
        loop, end = layers[place].settings.get("loop"), place + 1
        if loop is not None:
            end += max(number for number, layer in enumerate(layers[place:]) if layer.settings.get("loop") == loop)
        yield tuple(layers[place:end])
        place = end


def run_loop(layers: Sequence[EngineLayer], values: dict[str, Tensor], run: Run) -> None:
    """Compute the layers of a loop, and add its results to ``values``.

    Raises:
        LoweringError: it has another layer on its boundary than those that the converters add.
    """
    limit, *others = layers
    at_boundary = {kind: [layer for layer in others if layer.kind == kind] for kind in ("RECURRENCE", "LOOP_OUTPUT")}
    if (limit.kind, limit.settings.get("kind")) != ("TRIP_LIMIT", "COUNT"):
        raise LoweringError(f"the emulation cannot compute the loop at {limit.name}", value=limit.kind)
    count = int(values[str(limit.inputs[0])])
    collected: dict[str, list[Tensor]] = {layer.outputs[0].name: [] for layer in at_boundary["LOOP_OUTPUT"]}
    for layer in at_boundary["RECURRENCE"]:
        values[layer.outputs[0].name] = values[str(layer.inputs[0])]
    for number in range(count):
        for layer in others:
            result = layer.outputs[0].name
            if layer.kind == "ITERATOR":
                place = count - 1 - number if layer.settings["reverse"] else number
                values[result] = values[str(layer.inputs[0])].select(layer.settings["axis"], place)
            elif layer.kind == "LOOP_OUTPUT":
                collected[result].append(values[str(layer.inputs[0])])
            elif layer.kind != "RECURRENCE":
                run(layer, values)
        values.update({layer.outputs[0].name: values[str(layer.inputs[1])] for layer in at_boundary["RECURRENCE"]})
    for layer in at_boundary["LOOP_OUTPUT"]:
        parts = collected[layer.outputs[0].name]
        if layer.settings["kind"] not in ("CONCATENATE", "REVERSE"):
            raise LoweringError(f"the emulation cannot compute the layer {layer.name}", value=layer.settings["kind"])
        ordered = parts if layer.settings["kind"] == "CONCATENATE" else parts[::-1]
        values[layer.outputs[0].name] = torch.stack(ordered, layer.settings["axis"])
