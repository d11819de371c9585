"""Replacements in exported programs for operations that the importer does not take as they are.

Programs in the reference form of ``fx.quantize`` are computed on 8-bit integers (section 6.2.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fx.graph_module import GraphModule
from fx.lowering.openvino.package import extension, operators
from fx.quantize.arithmetic import dequantize, quantize
from fx.quantize.recurrence import GATES, Mode, Recurrence, recurrent

_NAME = "fx_openvino::quantize"
"""The operator that represents :func:`fx.quantize.arithmetic.quantize` in programs for the importer.

OpenVINO would not recognize its arithmetic as a quantization, and would compute the operations behind it in float32."""


_LAYER = "fx_openvino::recurrent_layer"
"""The operator that represents one direction of a recurrent layer in programs for the importer.

OpenVINO's importer would unroll it, with a dozen operations for each element of a sequence."""
_MODES: tuple[Mode, ...] = ("LSTM", "GRU", "RNN_TANH", "RNN_RELU")
"""The kinds of recurrence, by the number that the operator takes."""
_ORDER: Mapping[Mode, tuple[int, ...]] = {"LSTM": (1, 0, 2, 3), "GRU": (1, 0, 2)}
"""The places in PyTorch's weights of the gates in OpenVINO's order."""


def _integers_like(input: Tensor, scale: float, zero_point: int, highest: int) -> Tensor:
    return torch.empty_like(input, dtype=torch.uint8)


torch.library.define(_NAME, "(Tensor input, float scale, int zero_point, int highest) -> Tensor")
torch.library.register_fake(_NAME, _integers_like)


def _rows_like(
    input: Tensor, hidden: Tensor, cell: Tensor | None, matrix: Tensor, recurrent_matrix: Tensor, bias: Tensor,
    mode: int, is_reversed: int,
) -> Tensor:  # fmt: skip
    rows = input.shape[0] + (1 if cell is None else 2)
    return input.new_empty(rows, *hidden.shape)


torch.library.define(
    _LAYER,
    "(Tensor input, Tensor hidden, Tensor? cell, Tensor matrix, Tensor recurrent_matrix, Tensor bias, int mode, "
    "int is_reversed) -> Tensor",
)
torch.library.register_fake(_LAYER, _rows_like)


def spell_for_importer(program: GraphModule) -> None:
    """Replace, in place, the functions that the importer does not take as they are."""
    for target, replacement in _REPLACEMENTS.items():
        for node in program.graph.find_nodes(op="call_function", target=target):
            node.target = replacement
    program.recompile()


def _squeeze(input: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Squeeze only dimensions of size 1: OpenVINO (2026.4) merges others, if sizes are free, into the next one."""
    dims = dim if isinstance(dim, tuple) else (dim,)
    removed = tuple(number for number in dims if input.dim() and input.shape[number] == 1)
    return torch.squeeze(input, removed) if removed else input


def _quantize(input: Tensor, scale: float, zero_point: int, highest: int = 255) -> Tensor:
    return torch.ops.fx_openvino.quantize(input, scale, zero_point, highest)


def _dequantize(input: Tensor, scale: float, zero_point: int, highest: int = 255) -> Tensor:
    return (input.float() - zero_point) * scale


def _recurrent(
    input: Tensor, state: Any, weights: Sequence[Tensor], mode: Mode, num_layers: int = 1, has_biases: bool = True,
    bidirectional: bool = False, batch_first: bool = False,
) -> Any:  # fmt: skip
    """Compute a recurrent module by one operator a layer and direction; one with projections stays PyTorch's own."""
    directions, hidden = 2 if bidirectional else 1, len(weights[0]) // GATES[mode]
    count = len(weights) // (num_layers * directions)
    if count % 2:
        return recurrent(input, state, weights, mode, num_layers, has_biases, bidirectional, batch_first)

    def compute(data: Tensor, sizes: Tensor | None, states: tuple[Tensor, ...]) -> Sequence[Tensor]:
        data = data.transpose(0, 1) if batch_first else data
        last: list[list[Tensor]] = [[] for _ in states]
        for layer in range(num_layers):
            outputs: list[Tensor] = []
            for direction in range(directions):
                place = layer * directions + direction
                own = weights[place * count : (place + 1) * count]
                bias = _joined_bias(own[2:], mode, own[0])
                matrices = [_reordered(weight, mode) for weight in (*own[:2], bias)]
                first = states[0][place], states[1][place] if mode == "LSTM" else None
                rows = torch.ops.fx_openvino.recurrent_layer(data, *first, *matrices, _MODES.index(mode), direction)
                outputs.append(rows[: data.shape[0]])
                for number, part in enumerate(last):
                    part.append(rows[data.shape[0] + number])
            data = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        return [data.transpose(0, 1) if batch_first else data, *map(torch.stack, last)]

    recurrence = Recurrence(mode, num_layers, has_biases, bidirectional, batch_first)
    return recurrence.run(input, state, [hidden] * (2 if mode == "LSTM" else 1), compute)


def _joined_bias(biases: Sequence[Tensor], mode: Mode, like: Tensor) -> Tensor:
    """Return both biases as OpenVINO takes them: their sum, except for the new value of a GRU, which resets one."""
    first, second = biases or (like.new_zeros(len(like)),) * 2
    if mode != "GRU":
        return first + second
    gates = 2 * len(like) // GATES[mode]
    return torch.cat([first[:gates] + second[:gates], first[gates:], second[gates:]])


def _reordered(weight: Tensor, mode: Mode) -> Tensor:
    """Return a weight with its gates in OpenVINO's order."""
    gates = weight.split(len(weight) // (GATES[mode] + (mode == "GRU" and weight.dim() == 1)))
    order = _ORDER.get(mode, ())
    return torch.cat([*(gates[place] for place in order), *gates[len(order) :]])


_REPLACEMENTS: Mapping[Any, Callable[..., Any]] = {
    quantize: _quantize, dequantize: _dequantize, torch.squeeze: _squeeze, recurrent: _recurrent,
}  # fmt: skip


def extensions() -> list[Any]:
    """Return the extensions that make an importer build the operators."""
    builders = {_NAME: _build, _LAYER: _build_layer}
    return [extension(f"{name.replace('::', '.')}.default", build) for name, build in builders.items()]


def _build_layer(context: Any) -> list[Any]:
    """Build one direction of a recurrent layer: the hidden state after each element, and the last states."""
    build: Any = operators()
    mode = _MODES[int(context.get_values_from_const_input(6))]
    way = "reverse" if context.get_values_from_const_input(7) else "forward"
    data, hidden, cell, *weights = (context.get_input(place) for place in range(6))
    first, second, zero = (build.constant(np.array([number], dtype=np.int64)) for number in (0, 1, 0))
    shape = build.shape_of(data)
    length, batch = (build.gather(shape, place, zero) for place in (first, second))
    lengths = build.broadcast(length, batch)
    states = [build.unsqueeze(state, second) for state in ((hidden, cell) if mode == "LSTM" else (hidden,))]
    matrices = [build.unsqueeze(weight, zero) for weight in weights]
    settings: dict[str, Any] = {"hidden_size": hidden.get_partial_shape()[1].get_length(), "direction": way}
    if mode == "GRU":
        settings["linear_before_reset"] = True
    elif mode == "RNN_RELU":
        settings["activations"] = ["relu"]
    sequence = getattr(build, f"{mode.partition('_')[0].lower()}_sequence")
    outputs = sequence(build.transpose(data, np.array([1, 0, 2])), *states, lengths, *matrices, **settings).outputs()
    every = build.transpose(build.squeeze(outputs[0], second), np.array([1, 0, 2]))
    last = [build.transpose(state, np.array([1, 0, 2])) for state in outputs[1:]]
    return build.concat([every, *last], 0).outputs()


def _build(context: Any) -> list[Any]:
    """Build the rounding to the nearest of ``highest + 1`` integers."""
    build: Any = operators()
    scale, zero_point, highest = (context.get_values_from_const_input(place) for place in (1, 2, 3))
    ends = (-zero_point * scale, (highest - zero_point) * scale, 0.0, float(highest))
    bounds = [build.constant(end, dtype=np.float32).output(0) for end in ends]
    rounded = build.fake_quantize(context.get_input(0), *bounds, int(highest) + 1)
    return build.convert(rounded.output(0), "u8").outputs()
