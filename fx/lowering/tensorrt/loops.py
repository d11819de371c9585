"""TensorRT's converter for recurrent layers: a loop over the elements of sequences, for each layer and direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fx.lowering.known_program import Operation
from fx.lowering.support import has_rank, where
from fx.lowering.tensorrt.activations import combine
from fx.lowering.tensorrt.arrangement import cat, stack, transpose
from fx.lowering.tensorrt.indexing import expand, getitem, split
from fx.lowering.tensorrt.layer_converters import linear
from fx.lowering.tensorrt.network import TensorRTNetwork
from fx.lowering.tensorrt.predicates import FLOATS, register, setting, takes_floats
from fx.node import Node
from fx.quantize.recurrence import GATES, OPERATIONS, Mode, recurrent, weights_of_each


def recur(
    network: TensorRTNetwork, input: Any, state: Any, weights: Sequence[Any], mode: Mode, num_layers: int = 1,
    has_biases: bool = True, bidirectional: bool = False, batch_first: bool = False,
) -> Any:  # fmt: skip
    """Add a recurrent module; return its output, and its last states."""
    data, is_batch = network.tensor(input), network.rank(input) == 3
    if not is_batch:
        data = network.tensor(data, rank=3)
        data = data if batch_first else transpose(network, data, 0, 1)
    data = transpose(network, data, 0, 1) if batch_first else data
    states = None if state is None else tuple(state) if mode == "LSTM" else (state,)
    last: list[list[Any]] = [[], []] if mode == "LSTM" else [[]]
    place, directions = 0, 2 if bidirectional else 1
    layers = weights_of_each({"weights": weights, "num_layers": num_layers, "bidirectional": bidirectional})
    for first in range(0, len(layers), directions):
        outputs: list[Any] = []
        for is_reversed, own in enumerate(layers[first : first + directions]):
            before = None if states is None else [_element(network, part, place, is_batch) for part in states]
            output, after = _go(network, data, own, before, mode, has_biases, bool(is_reversed))
            outputs.append(output)
            for parts, part in zip(last, after, strict=True):
                parts.append(part)
            place += 1
        data = outputs[0] if directions == 1 else cat(network, outputs, -1)
    data = transpose(network, data, 0, 1) if batch_first else data
    results = [data, *(stack(network, parts, 0) for parts in last)]
    if not is_batch:
        places = (0 if batch_first else 1, *(1 for _ in last))
        results = [_without(network, value, dim) for value, dim in zip(results, places, strict=True)]
    return results[0], tuple(results[1:]) if mode == "LSTM" else results[1]


def _element(network: TensorRTNetwork, state: Any, place: int, is_batch: bool) -> Any:
    element = getitem(network, state, place)
    return element if is_batch else network.tensor(element, rank=2)


def _without(network: TensorRTNetwork, value: Any, dim: int) -> Any:
    return getitem(network, value, (slice(None),) * dim + (0,))


def _go(
    network: TensorRTNetwork, data: Any, weights: Sequence[Any], before: Any, mode: Mode, has_biases: bool,
    is_reversed: bool,
) -> tuple[Any, list[Any]]:  # fmt: skip
    """Add one direction of one layer; return the hidden states, in the order of the elements, and the last states."""
    matrix, recurrent_matrix, *more = weights
    biases = more[:2] if has_biases else [None, None]
    length, batch, _ = network.sizes(data)
    dtype = network.dtype(data)
    if before is None:
        widths = [recurrent_matrix.shape[1], matrix.shape[0] // GATES[mode]][: 2 if mode == "LSTM" else 1]
        before = [expand(network, torch.zeros(1, width), [batch, width]) for width in widths]
    inputs = linear(network, data, matrix, biases[0])  # for all elements at once
    loop = network.definition.add_loop()
    count = network.cast(network.reshape(network.size_tensor(length), []), torch.int32)
    network.add("trip_limit", count, setting("TripLimit", "COUNT"), loop=loop)
    element = network.add("iterator", inputs, 0, is_reversed, loop=loop)
    states = [network.add("recurrence", network.tensor(value, dtype), loop=loop) for value in before]
    after = _step(network, element, states, recurrent_matrix, biases[1], mode)
    if len(more) % 2:
        after[0] = linear(network, after[0], more[-1], None)
    for state, value in zip(states, after, strict=True):
        network.close_loop(state, value)
    order = setting("LoopOutput", "REVERSE" if is_reversed else "CONCATENATE")
    outputs = [network.add("loop_output", value, order, 0, inputs={1: count}, loop=loop) for value in after]
    return outputs[0], [getitem(network, value, 0 if is_reversed else -1) for value in outputs]


def _step(
    network: TensorRTNetwork, element: Any, states: Sequence[Any], matrix: Any, bias: Any, mode: Mode
) -> list[Any]:
    """Add the computation of the states after an element, whose product with the first weight is given."""
    own = linear(network, states[0], matrix, bias)
    if mode.startswith("RNN"):
        return [_activated(network, mode.removeprefix("RNN_"), combine(network, "SUM", element, own))]
    size = own.shape[-1] // GATES[mode]
    if mode == "LSTM":
        gates = split(network, combine(network, "SUM", element, own), size, -1)
        into, keep, out = (_activated(network, "SIGMOID", gates[place]) for place in (0, 1, 3))
        new = combine(network, "PROD", into, _activated(network, "TANH", gates[2]))
        cell = combine(network, "SUM", combine(network, "PROD", keep, states[1]), new)
        return [combine(network, "PROD", out, _activated(network, "TANH", cell)), cell]
    both = zip(split(network, element, size, -1), split(network, own, size, -1), strict=True)
    reset, keep, (element_part, hidden) = both
    reset, keep = (_activated(network, "SIGMOID", combine(network, "SUM", *gate)) for gate in (reset, keep))
    new = _activated(network, "TANH", combine(network, "SUM", element_part, combine(network, "PROD", reset, hidden)))
    change = combine(network, "PROD", keep, combine(network, "SUB", states[0], new))
    return [combine(network, "SUM", new, change)]


def _activated(network: TensorRTNetwork, kind: str, value: Any) -> Any:
    return network.add("activation", value, setting("ActivationType", kind))


def _has_float_states(operation: Operation) -> bool:
    state = operation.arguments["state"]
    states = [state] if isinstance(state, Node) else state or ()
    return all(operation.subject.dtype(part) in (*FLOATS, None) for part in states)


register(
    recurrent,
    recur,
    takes_floats("input"),
    has_rank("input", 2, 3),
    where(_has_float_states, "a state is no float"),
    counts=OPERATIONS,
)
