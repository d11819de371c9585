"""``recurrent``: LSTM, GRU and RNN as a function of their weights, so that these can be integers (section 6.2.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from fx.operators.sharing import declare_new
from fx.quantize.declaration import operation
from fx.quantize.expansion import Expansion

Mode = Literal["LSTM", "GRU", "RNN_TANH", "RNN_RELU"]
"""The kinds of recurrence, by their names in ``nn.RNNBase.mode``."""
GATES: dict[Mode, int] = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
"""The number of rows of a weight for each hidden feature."""
OPERATIONS = 6
"""The least number of operations for each element of a sequence: products, a sum, activations."""
Compute = Callable[[Tensor, "Tensor | None", "tuple[Tensor, ...]"], Sequence[Any]]
"""A function from a batch of sequences, the batch sizes if it is packed, and states, to the output and states."""

_torch: Any = torch


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The settings of a recurrent module, without its tensors."""

    mode: Mode
    """Its kind."""
    num_layers: int = 1
    """The number of layers."""
    has_biases: bool = True
    """True if there are biases."""
    bidirectional: bool = False
    """True if each layer goes in both directions."""
    batch_first: bool = False
    """True if the batch is the first dimension of sequences; otherwise it is the second."""

    def run(self, input: Any, state: Any, state_sizes: Sequence[int], compute: Compute) -> tuple[Any, Any]:
        """Return output and last state, as ``nn.LSTM`` and its like do, from the results of ``compute`` for a batch.

        ``input`` is a batch of sequences, a single one, or a packed one. ``state`` is the first state, or two for an
        LSTM, of these sizes; None means zeros.
        """
        states = None if state is None else tuple(state) if self.mode == "LSTM" else (state,)
        if isinstance(input, PackedSequence):
            data, sizes, order, back = input
            states = self._zeros(data, int(sizes[0]), state_sizes) if states is None else _ordered(states, order)
            result, *states = compute(data, sizes, states)
            return PackedSequence(result, sizes, order, back), self._joined(_ordered(states, back))
        if input.dim() == 2:
            place = 0 if self.batch_first else 1
            states = None if states is None else tuple(part.unsqueeze(1) for part in states)
            result, *states = self._of_batch(input.unsqueeze(place), states, state_sizes, compute)
            return result.squeeze(place), self._joined([part.squeeze(1) for part in states])
        result, *states = self._of_batch(input, states, state_sizes, compute)
        return result, self._joined(states)

    def _of_batch(self, input: Tensor, states: Any, state_sizes: Sequence[int], compute: Compute) -> Sequence[Any]:
        if states is None:
            states = self._zeros(input, input.shape[0 if self.batch_first else 1], state_sizes)
        return compute(input, None, states)

    def _zeros(self, like: Tensor, batch: int, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        count = self.num_layers * (2 if self.bidirectional else 1)
        return tuple(like.new_zeros(count, batch, size) for size in sizes)

    def _joined(self, states: Sequence[Any]) -> Any:
        return tuple(states) if self.mode == "LSTM" else states[0]

    def floats(self, weights: Sequence[Tensor]) -> Compute:
        """Return the function that computes it in floating point."""

        def compute(data: Tensor, sizes: Tensor | None, states: tuple[Tensor, ...]) -> Sequence[Any]:
            # dropout is expanded already; gradients need the values that training mode keeps
            settings = (weights, self.has_biases, self.num_layers, 0.0, torch.is_grad_enabled(), self.bidirectional)
            before = states if self.mode == "LSTM" else states[0]
            function = getattr(_torch, self.mode.lower())
            if sizes is None:
                return function(data, before, *settings, self.batch_first)
            return function(data, sizes, before, *settings)

        return compute


def _ordered(states: Sequence[Tensor], order: Tensor | None) -> tuple[Tensor, ...]:
    return tuple(states) if order is None else tuple(part.index_select(1, order) for part in states)


@declare_new
@operation
def recurrent(
    input: Tensor,
    state: Any,
    weights: Sequence[Tensor],
    mode: Mode,
    num_layers: int = 1,
    has_biases: bool = True,
    bidirectional: bool = False,
    batch_first: bool = False,
) -> tuple[Any, Any]:
    """Compute ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN``, without dropout.

    Args:
        input: a batch of sequences, one sequence of shape (steps, features), or a ``PackedSequence``.
        state: the first state, two for an LSTM; zeros if None.
        weights: for each layer and direction: the weights for input and hidden state, both biases, the projection.
        mode: the value of ``nn.RNNBase.mode``.
        num_layers: how many layers there are.
        has_biases: whether there are biases.
        bidirectional: whether each layer goes in both directions.
        batch_first: whether the batch is the first dimension of sequences.

    >>> layer = torch.nn.GRU(3, 4)
    >>> output, state = recurrent(torch.zeros(5, 2, 3), None, layer._flat_weights, "GRU")
    >>> output.shape
    torch.Size([5, 2, 4])
    """
    recurrence = Recurrence(mode, num_layers, has_biases, bidirectional, batch_first)
    hidden = len(weights[0]) // GATES[mode]
    sizes = [weights[1].shape[1], hidden] if mode == "LSTM" else [hidden]
    return recurrence.run(input, state, sizes, recurrence.floats(weights))


def weights_of_each(arguments: Mapping[Any, Any]) -> list[tuple[Any, ...]]:
    """Return the weights of each layer and direction, from the arguments of a call of :func:`recurrent`."""
    weights = arguments["weights"]
    directions = arguments.get("num_layers", 1) * (2 if arguments.get("bidirectional") else 1)
    count = len(weights) // directions
    return [tuple(weights[first : first + count]) for first in range(0, len(weights), count)]


def has_projections(arguments: Mapping[Any, Any]) -> bool:
    """Return whether a call of :func:`recurrent` projects its hidden states."""
    return len(weights_of_each(arguments)[0]) % 2 == 1


def expand_recurrent(call: Expansion) -> Any:
    """Record the computation of a recurrent module; layer by layer if it trains with dropout."""
    module = call.module
    arguments = call.arguments(type(module).forward)
    input, state = arguments["input"], arguments["hx"]
    names: list[list[str]] = module._all_weights
    shared: dict[str, Any] = {
        "mode": module.mode, "has_biases": module.bias, "bidirectional": module.bidirectional,
        "batch_first": module.batch_first,
    }  # fmt: skip

    def weights(layers: list[list[str]]) -> tuple[Any, ...]:
        return tuple(call.fetch(name) for layer in layers for name in layer)

    if not call.is_trained or module.dropout == 0 or module.num_layers == 1:
        both = recurrent(input=input, state=state, weights=weights(names), num_layers=module.num_layers, **shared)
        return both[0], both[1]
    is_lstm, directions = module.mode == "LSTM", 2 if module.bidirectional else 1
    states: list[Any] = []
    for first in range(0, len(names), directions):
        part = slice(first, first + directions)
        first_state = None if state is None else (state[0][part], state[1][part]) if is_lstm else state[part]
        both = recurrent(input=input, state=first_state, weights=weights(names[part]), **shared)
        input, last = both[0], both[1]
        states.append((last[0], last[1]) if is_lstm else last)
        if first + directions < len(names):
            input = call.dropout(input, module.dropout, "dropout_between")
    if is_lstm:
        return input, tuple(torch.cat(parts) for parts in zip(*states, strict=True))
    return input, torch.cat(states)


def expand_cell(call: Expansion) -> Any:
    """Record the computation of a cell, as a sequence of one element."""
    module = call.module
    arguments = call.arguments(type(module).forward)
    nonlinearity = getattr(module, "nonlinearity", None)
    mode: Any = type(module).__name__.removesuffix("Cell") if nonlinearity is None else f"RNN_{nonlinearity.upper()}"
    state, names = arguments["hx"], ["weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if module.bias else ())]
    if state is not None:
        state = (state[0].unsqueeze(0), state[1].unsqueeze(0)) if mode == "LSTM" else state.unsqueeze(0)
    weights: Any = tuple(map(call.fetch, names))
    input = arguments["input"].unsqueeze(0)
    both = recurrent(input=input, state=state, weights=weights, mode=mode, has_biases=module.bias)
    return tuple(both[1][number].squeeze(0) for number in (0, 1)) if mode == "LSTM" else both[1].squeeze(0)
