"""LSTM, GRU and RNN with 8-bit weights; they find the scales of their values in each call (paper, section 6.2.1)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.quantize.arithmetic import is_recorded
from fx.quantize.declaration import listed
from fx.quantize.kernels.kernel import Kernel, KernelUse, LayerData, PackedLayer
from fx.quantize.kernels.layer_kernels import has_fbgemm, pack_for_fbgemm
from fx.quantize.kernels.trials import (
    CHOICES,
    LARGEST_WEIGHT,
    NARROW,
    LayerTrial,
    Way,
    largest_weight,
    rounded_up,
)
from fx.quantize.layers import PackedModule
from fx.quantize.linear import QuantizedLinear
from fx.quantize.recurrence import GATES, Mode, Recurrence

_torch: Any = torch
_KERNELS = {"LSTM": "quantized_lstm", "GRU": "quantized_gru"}
"""torch's functions for whole sequences on 8-bit integers."""


def _pack(layer: LayerData, _: Sequence[int]) -> PackedLayer:
    packed = pack_for_fbgemm("linear", layer)
    # the range of inputs is not reduced to 7 bits
    return lambda input, scale, zero_point, output: _torch.ops.quantized.linear_dynamic(input, packed, False)


_LINEAR = Kernel(
    "FBGEMM",
    ("dynamic",),
    functools.partial(has_fbgemm, "linear_dynamic", "make_quantized_cell_params_dynamic"),
    _pack,
)
"""The linear layer inside of torch's functions. oneDNN could compute it, too, but takes 1.1 to 3.6 times as long."""


@listed
class QuantizedRecurrent(PackedModule):
    """LSTM, GRU or RNN with 8-bit weights; its values are floating-point numbers, quantized in each product."""

    def __init__(
        self,
        mode: Mode,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        has_biases: bool = True,
        bidirectional: bool = False,
        batch_first: bool = False,
        proj_size: int = 0,
    ) -> None:
        """Create a layer whose tensors are still to be filled in.

        Args:
            mode: LSTM, GRU, RNN_TANH or RNN_RELU.
            input_size: features of the input.
            hidden_size: features of the hidden state.
            num_layers: the number of layers.
            has_biases: whether there are biases.
            bidirectional: whether each layer goes in both directions.
            batch_first: whether the batch is the first dimension of sequences.
            proj_size: features of the output of an LSTM with a projection of its hidden state; 0 without.
        """
        super().__init__()
        self.mode: Mode = mode
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.has_biases = has_biases
        self.bidirectional = bidirectional
        self.batch_first = batch_first
        self.proj_size = proj_size
        output_size, rows = proj_size or hidden_size, GATES[mode] * hidden_size
        for suffix in self._suffixes:
            inputs = input_size if suffix.startswith("l0") else output_size * (2 if bidirectional else 1)
            self.add_module(f"input_{suffix}", QuantizedLinear(inputs, rows, has_biases))
            self.add_module(f"hidden_{suffix}", QuantizedLinear(output_size, rows, has_biases))
            if proj_size:
                self.add_module(f"projection_{suffix}", QuantizedLinear(hidden_size, proj_size, False))

    @property
    def _suffixes(self) -> list[str]:
        directions = ("", "_reverse") if self.bidirectional else ("",)
        return [f"l{layer}{direction}" for layer in range(self.num_layers) for direction in directions]

    @property
    def _state_sizes(self) -> list[int]:
        return [self.proj_size or self.hidden_size, self.hidden_size][: 2 if self.mode == "LSTM" else 1]

    @property
    def _recurrence(self) -> Recurrence:
        return Recurrence(self.mode, self.num_layers, self.has_biases, self.bidirectional, self.batch_first)

    def layers(self, named: str = "") -> Iterator[QuantizedLinear]:
        """Yield its matrices, or those whose name starts with ``named``, in the order of ``nn.LSTM``."""
        for name in self._modules:
            if name.startswith(named):
                layer: Any = getattr(self, name)
                yield layer

    def forward(self, input: Any, state: Any = None) -> tuple[Any, Any]:
        """Return the output and the last state, as ``nn.LSTM`` and the like do.

        Args:
            input: a batch of sequences, one sequence of shape (steps, features), or a ``PackedSequence``.
            state: the first state, two for an LSTM; zeros if None.
        """
        return self._recurrence.run(input, state, self._state_sizes, self._compute)

    def _compute(self, data: Tensor, sizes: Tensor | None, states: tuple[Tensor, ...]) -> Sequence[Any]:
        if not self._runs_kernels(data, states):
            return self._floats()(data, sizes, states)
        data, states = data.detach(), tuple(state.detach() for state in states)
        largest = None if self.mode not in _KERNELS or self.proj_size else self._largest(states[0].shape[1])
        if largest is not None:
            return self._by_kernel(largest, data, sizes, states)
        return self._by_steps(data, states) if sizes is None else self._floats()(data, sizes, states)

    def _runs_kernels(self, data: Tensor, states: tuple[Tensor, ...]) -> bool:
        every = (data, *states)
        if is_recorded() or any(type(tensor) is not Tensor or tensor.device.type != "cpu" for tensor in every):
            return False
        # in floating point, torch raises errors for misfits, and passes on values that are not finite
        count, sizes = len(self._suffixes), self._state_sizes
        fits = data.shape[-1] == self.input_size and [tensor.shape[-1] for tensor in states] == sizes
        fits = fits and all(tensor.dim() == 3 and len(tensor) == count for tensor in states)
        fits = fits and all(tensor.dtype is torch.float32 and tensor.numel() for tensor in every)
        return fits and all(bool(tensor.isfinite().all()) for tensor in every)

    def _floats(self) -> Any:
        """Return the function that computes it on float values, with dequantized weights."""
        weights: list[Tensor] = []
        for suffix in self._suffixes:
            cell: list[Any] = [self._modules[f"{name}_{suffix}"] for name in ("input", "hidden")]
            weights += [layer.float_weight() for layer in cell]
            weights += [layer.bias for layer in cell if self.has_biases]
            projection: Any = self._modules.get(f"projection_{suffix}")
            weights += [] if projection is None else [projection.float_weight()]
        return self._recurrence.floats(weights)

    # By torch's functions.

    def _by_kernel(self, largest: int, data: Tensor, sizes: Tensor | None, states: tuple[Tensor, ...]) -> Sequence[Any]:
        if largest not in self._packed:
            self._packed[largest] = [self._cell(largest, suffix) for suffix in self._suffixes]
        settings = (self._packed[largest], True, self.num_layers, 0.0, False, self.bidirectional)
        function, before = getattr(_torch, _KERNELS[self.mode]), states if self.mode == "LSTM" else states[0]
        types = {"dtype": torch.qint8, "use_dynamic": True} if self.mode == "LSTM" else {}
        if sizes is None:
            return function(data, before, *settings, self.batch_first, **types)
        return function(data, sizes, before, *settings, **types)

    def _cell(self, largest: int, suffix: str) -> Any:
        """Return the weights of one layer in one direction in the order in which torch's functions read them."""
        packed: list[Any] = []
        biases: list[Tensor] = []
        for name in ("input", "hidden"):
            layer: Any = self._modules[f"{name}_{suffix}"]
            layer._check()
            biases.append(torch.zeros(layer.out_features) if layer.bias is None else layer.bias)
            packed.append(pack_for_fbgemm("linear", LayerData(*_narrowed(layer, largest), biases[-1])))
        return _torch.ops.quantized.make_quantized_cell_params_dynamic(*packed, *biases, False)

    def _largest(self, batch: int) -> int | None:
        """Return the largest weight for which the products of one step are right, or None if there is none.

        If pairs of products of 8 bits do not fit into 16 bits, weights have 7.
        """
        use = KernelUse("dynamic", rounded_up(batch), torch.get_num_threads())
        if use not in self._chosen:
            most = max(largest_weight(layer.weight) for layer in self.layers())
            self._chosen[use] = next((largest for largest in (most, NARROW) if self._is_right(largest, batch)), None)
        return self._chosen[use]

    @property
    def kernels(self) -> dict[KernelUse, str]:
        """The kernel of the products inside of torch's functions, by the batches for which it was chosen so far."""
        return {use: "reference" if largest is None else _LINEAR.name for use, largest in self._chosen.items()}

    def _is_right(self, largest: int, rows: int) -> bool:
        """Return whether the product of rows and a matrix of the largest weights is right."""
        layer = next(self.layers(named="hidden"))
        shape = (rows, layer.in_features)

        def ways() -> Iterator[list[Way]]:
            data, of_ones = layer._trial(shape, largest)
            yield [LayerTrial(data, shape, of_ones, "dynamic").way(_LINEAR)]

        problem = ("recurrent", largest, rounded_up(rows), layer._shape(), torch.get_num_threads())
        return _LINEAR.is_available() and CHOICES.fastest(problem, ways) is not None

    # By steps, where torch has no function.

    def _by_steps(self, data: Tensor, states: tuple[Tensor, ...]) -> Sequence[Any]:
        sequence = data.transpose(0, 1) if self.batch_first else data
        last: list[list[Tensor]] = []
        for layer in range(self.num_layers):
            directions = [suffix for suffix in self._suffixes if suffix.split("_")[0] == f"l{layer}"]
            outputs: list[Tensor] = []
            for suffix in directions:
                state = [part[len(last)] for part in states]
                steps = self._steps(suffix, sequence, state)
                outputs.append(steps)
                last.append(state)
            sequence = torch.cat(outputs, -1)
        result = sequence.transpose(0, 1) if self.batch_first else sequence
        return result, *(torch.stack(parts) for parts in zip(*last, strict=True))

    def _steps(self, suffix: str, sequence: Tensor, state: list[Tensor]) -> Tensor:
        """Return the output of one layer in one direction; ``state`` becomes the last state."""
        hidden_layer: Any = self._modules[f"hidden_{suffix}"]
        input_layer: Any = self._modules[f"input_{suffix}"]
        projection: Any = self._modules.get(f"projection_{suffix}")
        gates = list(input_layer(sequence).unbind(0))
        order = range(len(gates))
        for step in reversed(order) if suffix.endswith("_reverse") else order:
            state[:] = _STEPS[self.mode](gates[step], hidden_layer(state[0]), state)
            if projection is not None:
                state[0] = projection(state[0])
            gates[step] = state[0]
        return torch.stack(gates)

    def extra_repr(self) -> str:
        """Return the settings as text."""
        return (
            f"{self.mode}, {self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, "
            f"has_biases={self.has_biases}, bidirectional={self.bidirectional}, batch_first={self.batch_first}, "
            f"proj_size={self.proj_size}"
        )


def _narrowed(layer: Any, largest: int) -> tuple[Tensor, Tensor]:
    """Return the weight of a layer as integers of at most ``largest``, and their scales."""
    if largest_weight(layer.weight) <= largest:
        return layer.weight, layer.weight_scale
    factor = LARGEST_WEIGHT / largest
    return (layer.weight / factor).round().to(torch.int8), layer.weight_scale * factor


def _lstm(inputs: Tensor, hidden: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
    input, forget, cell, output = hidden.add_(inputs).chunk(4, -1)
    cells = torch.addcmul(forget.sigmoid() * state[1], input.sigmoid(), cell.tanh())
    return [output.sigmoid() * cells.tanh(), cells]


def _gru(inputs: Tensor, hidden: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
    (reset, update, new), (reset_by, update_by, new_by) = inputs.chunk(3, -1), hidden.chunk(3, -1)
    new = torch.addcmul(new, (reset + reset_by).sigmoid(), new_by).tanh()
    return [torch.lerp(new, state[0], (update + update_by).sigmoid())]


_STEPS: dict[Mode, Callable[[Tensor, Tensor, Sequence[Tensor]], list[Tensor]]] = {
    "LSTM": _lstm,
    "GRU": _gru,
    "RNN_TANH": lambda inputs, hidden, _: [torch.tanh(inputs + hidden)],
    "RNN_RELU": lambda inputs, hidden, _: [F.relu(inputs + hidden)],
}
"""For each mode, the function from the products with input and hidden state, and the state, to the next state."""
