"""``recurrent``: LSTM, GRU and RNN as a function of their weights, so that these can be integers (section 6.2.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from fx.quantize.declaration import operation
from fx.quantize.expansion import Expansion

Mode = Literal["LSTM", "GRU", "RNN_TANH", "RNN_RELU"]
"""The kinds of recurrence, as ``nn.RNNBase.mode`` has them."""
GATES: dict[Mode, int] = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
"""How many rows of a weight there are for each hidden feature."""
Compute = Callable[[Tensor, "Tensor | None", "tuple[Tensor, ...]"], Sequence[Any]]
"""From a batch of sequences, the sizes of batches where it is packed, and states, to the output and states."""

_torch: Any = torch


@dataclass(frozen=True, slots=True)
class Recurrence:
    """What a recurrent module computes, its tensors aside."""

    mode: Mode
    """Its kind."""
    num_layers: int = 1
    """How many layers there are."""
    has_biases: bool = True
    """Whether there are biases."""
    bidirectional: bool = False
    """Whether each layer goes in both directions."""
    batch_first: bool = False
    """Whether the batch is the first dimension of sequences; otherwise it is the second."""

    def run(self, input: Any, state: Any, state_sizes: Sequence[int], compute: Compute) -> tuple[Any, Any]:
        """Return output and last state, as ``nn.LSTM`` and the like do, from what ``compute`` returns for a batch.

        ``input`` is a batch of sequences, a single one, or a packed one. ``state`` is the first state, two for an LSTM,
        of these sizes; zeros if None.
        """
        states = None if state is None else tuple(state) if self.mode == "LSTM" else (state,)
        if isinstance(input, PackedSequence):
            data, sizes, order, back = input
            states = self._zeros(data, int(sizes[0]), state_sizes) if states is None else _ordered(states, order)
            result, *states = compute(data, sizes, states)
            return PackedSequence(result, sizes, order, back), self._joined(_ordered(states, back))
        if input.dim() == 2:
            place = 0 if self.batch_first else 1
            states = None if states is None else tuple(one.unsqueeze(1) for one in states)
            result, *states = self._of_batch(input.unsqueeze(place), states, state_sizes, compute)
            return result.squeeze(place), self._joined([one.squeeze(1) for one in states])
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
        """Return what computes it in floating point."""

        def compute(data: Tensor, sizes: Tensor | None, states: tuple[Tensor, ...]) -> Sequence[Any]:
            # no dropout is left to draw, and gradients want what is kept in training
            settings = (weights, self.has_biases, self.num_layers, 0.0, torch.is_grad_enabled(), self.bidirectional)
            before = states if self.mode == "LSTM" else states[0]
            function = getattr(_torch, self.mode.lower())
            if sizes is None:
                return function(data, before, *settings, self.batch_first)
            return function(data, sizes, before, *settings)

        return compute


def _ordered(states: Sequence[Tensor], order: Tensor | None) -> tuple[Tensor, ...]:
    return tuple(states) if order is None else tuple(one.index_select(1, order) for one in states)


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
    """Return what ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` returns, without dropout.

    Args:
        input: a batch of sequences, one sequence of shape (steps, features), or a ``PackedSequence``.
        state: the first state, two for an LSTM; zeros if None.
        weights: of each layer and direction those for input and hidden state, both biases, and the projection's.
        mode: what ``nn.RNNBase.mode`` says.
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


def expand_recurrent(call: Expansion) -> Any:
    """Record what a module of a recurrence computes; with dropout that is trained, layer by layer."""
    module = call.module
    given = call.arguments(type(module).forward)
    input, state = given["input"], given["hx"]
    names = [[name for name in layer if name] for layer in module._all_weights]
    shared: dict[str, Any] = {
        "mode": module.mode, "has_biases": module.bias, "bidirectional": module.bidirectional,
        "batch_first": module.batch_first,
    }  # fmt: skip

    def weights(of: list[list[str]]) -> tuple[Any, ...]:
        return tuple(call.fetch(name) for layer in of for name in layer)

    if not call.is_trained or module.dropout == 0 or module.num_layers == 1:
        both = recurrent(input=input, state=state, weights=weights(names), num_layers=module.num_layers, **shared)
        return both[0], both[1]
    is_lstm, directions = module.mode == "LSTM", 2 if module.bidirectional else 1
    states: list[Any] = []
    for first in range(0, len(names), directions):
        part = slice(first, first + directions)
        given_state = None if state is None else (state[0][part], state[1][part]) if is_lstm else state[part]
        both = recurrent(input=input, state=given_state, weights=weights(names[part]), **shared)
        input, last = both[0], both[1]
        states.append((last[0], last[1]) if is_lstm else last)
        if first + directions < len(names):
            input = call.dropout(input, module.dropout, "dropout_between")
    if is_lstm:
        return input, tuple(torch.cat(parts) for parts in zip(*states, strict=True))
    return input, torch.cat(states)


def expand_cell(call: Expansion) -> Any:
    """Record what a cell computes, as a sequence of one element."""
    module = call.module
    given = call.arguments(type(module).forward)
    nonlinearity = getattr(module, "nonlinearity", None)
    mode: Any = type(module).__name__.removesuffix("Cell") if nonlinearity is None else f"RNN_{nonlinearity.upper()}"
    state, names = given["hx"], ["weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if module.bias else ())]
    if state is not None:
        state = (state[0].unsqueeze(0), state[1].unsqueeze(0)) if mode == "LSTM" else state.unsqueeze(0)
    weights: Any = tuple(map(call.fetch, names))
    input = given["input"].unsqueeze(0)
    both = recurrent(input=input, state=state, weights=weights, mode=mode, has_biases=module.bias)
    return tuple(both[1][number].squeeze(0) for number in (0, 1)) if mode == "LSTM" else both[1].squeeze(0)
