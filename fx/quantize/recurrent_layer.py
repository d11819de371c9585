"""LSTM, GRU and RNN with 8-bit weights, which find the scales of their values in each call (paper, section 6.2.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.quantize.arithmetic import is_recorded
from fx.quantize.declaration import listed
from fx.quantize.kernels.kernel import Kernel, KernelUse, LayerData, PackedLayer
from fx.quantize.kernels.layer_kernels import Engine, has_engine, pack
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
_ENGINES: tuple[Engine, ...] = ("fbgemm", "onednn")
"""What can multiply inside of them, the faster one first: oneDNN takes 1.1 to 3.6 times as long."""
_NAMES = {"fbgemm": "FBGEMM", "onednn": "oneDNN"}


def _kernel(engine: Engine) -> Kernel:
    """Return the linear layer that torch's functions compute with an engine."""

    def pack_layer(layer: LayerData, _: Sequence[int]) -> PackedLayer:
        packed = pack(engine, "linear", layer)
        # the range of inputs is not reduced to 7 bits
        return lambda input, scale, zero_point, output: _torch.ops.quantized.linear_dynamic(input, packed, False)

    def is_available() -> bool:
        return has_engine(engine, "linear_dynamic", "make_quantized_cell_params_dynamic")

    return Kernel(engine, ("dynamic",), is_available, pack_layer)


@listed
class QuantizedRecurrent(PackedModule):
    """LSTM, GRU or RNN with 8-bit weights; its values are floating-point numbers, whose scales each product finds."""

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
        """A layer whose tensors are still to be filled in.

        Args:
            mode: LSTM, GRU, RNN_TANH or RNN_RELU.
            input_size: features of the input.
            hidden_size: features of the hidden state.
            num_layers: how many layers there are.
            has_biases: whether there are biases.
            bidirectional: whether each layer goes in both directions.
            batch_first: whether the batch is the first dimension of sequences.
            proj_size: features of the output of an LSTM that projects its hidden state; 0 if it does not.
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
        """Yield its matrices, or those of one name, in the order in which ``nn.LSTM`` has them."""
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
        data, states = data.detach(), tuple(one.detach() for one in states)
        engine = None if self.mode not in _KERNELS or self.proj_size else self._engine(states[0].shape[1])
        if engine is not None:
            return self._by_kernel(*engine, data, sizes, states)
        return self._by_steps(data, states) if sizes is None else self._floats()(data, sizes, states)

    def _runs_kernels(self, data: Tensor, states: tuple[Tensor, ...]) -> bool:
        every = (data, *states)
        if is_recorded() or any(type(one) is not Tensor or one.device.type != "cpu" for one in every):
            return False
        # in floating point, torch says what does not fit, and values that are not finite are passed on
        count, sizes = len(self._suffixes), self._state_sizes
        fits = data.shape[-1] == self.input_size and [one.shape[-1] for one in states] == sizes
        fits = fits and all(one.dim() == 3 and len(one) == count for one in states)
        fits = fits and all(one.dtype is torch.float32 and one.numel() for one in every)
        return fits and all(bool(one.isfinite().all()) for one in every)

    def _floats(self) -> Any:
        """Return what computes it on float values, with those of the weights."""
        weights: list[Tensor] = []
        for suffix in self._suffixes:
            cell: list[Any] = [self._modules[f"{name}_{suffix}"] for name in ("input", "hidden")]
            weights += [layer.float_weight() for layer in cell]
            weights += [layer.bias for layer in cell if self.has_biases]
            projection: Any = self._modules.get(f"projection_{suffix}")
            weights += [] if projection is None else [projection.float_weight()]
        return self._recurrence.floats(weights)

    # By torch's functions.

    def _by_kernel(
        self, engine: Engine, largest: int, data: Tensor, sizes: Tensor | None, states: tuple[Tensor, ...]
    ) -> Sequence[Any]:
        key = (engine, largest)
        if key not in self._packed:
            self._packed[key] = [self._cell(engine, largest, suffix) for suffix in self._suffixes]
        settings = (self._packed[key], True, self.num_layers, 0.0, False, self.bidirectional)
        function, before = getattr(_torch, _KERNELS[self.mode]), states if self.mode == "LSTM" else states[0]
        types = {"dtype": torch.qint8, "use_dynamic": True} if self.mode == "LSTM" else {}
        if sizes is None:
            return function(data, before, *settings, self.batch_first, **types)
        return function(data, sizes, before, *settings, **types)

    def _cell(self, engine: Engine, largest: int, suffix: str) -> Any:
        """Return the weights of one layer in one direction in the order in which torch's functions read them."""
        packed: list[Any] = []
        biases: list[Tensor] = []
        for name in ("input", "hidden"):
            layer: Any = self._modules[f"{name}_{suffix}"]
            layer._check()
            biases.append(torch.zeros(layer.out_features) if layer.bias is None else layer.bias)
            packed.append(pack(engine, "linear", LayerData(*_narrowed(layer, largest), biases[-1])))
        return _torch.ops.quantized.make_quantized_cell_params_dynamic(*packed, *biases, False)

    def _engine(self, batch: int) -> tuple[Engine, int] | None:
        """Return an engine that is right for the products of one step, and the largest weight there; None: none is.

        Where pairs of products of 8 bits do not fit into 16, weights have 7.
        """
        use = KernelUse("dynamic", rounded_up(batch), torch.get_num_threads())
        if use not in self._chosen:
            most = max(largest_weight(layer.weight) for layer in self.layers())
            right = (
                (one, largest) for largest in (most, NARROW) for one in _ENGINES if self._is_right(one, largest, batch)
            )
            self._chosen[use] = next(right, None)
        return self._chosen[use]

    @property
    def kernels(self) -> dict[KernelUse, str]:
        """Return what multiplies inside of torch's functions, by batches for which that was chosen so far."""
        return {use: "reference" if one is None else _NAMES[one[0]] for use, one in self._chosen.items()}

    def _is_right(self, engine: Engine, largest: int, rows: int) -> bool:
        """Return whether an engine multiplies rows by a matrix of the largest weights."""
        kernel, layer = _kernel(engine), next(self.layers(named="hidden"))
        shape = (rows, layer.in_features)

        def ways() -> Iterator[list[Way]]:
            data, of_ones = layer._trial(shape, largest)
            yield [LayerTrial(data, shape, of_ones, "dynamic").way(kernel)]

        problem = ("recurrent", engine, largest, rounded_up(rows), layer._shape(), torch.get_num_threads())
        return kernel.is_available() and CHOICES.fastest(problem, ways) is not None

    # By steps, where torch has no function.

    def _by_steps(self, data: Tensor, states: tuple[Tensor, ...]) -> Sequence[Any]:
        sequence = data.transpose(0, 1) if self.batch_first else data
        last: list[list[Tensor]] = []
        for layer in range(self.num_layers):
            directions = [suffix for suffix in self._suffixes if suffix.split("_")[0] == f"l{layer}"]
            outputs: list[Tensor] = []
            for suffix in directions:
                state = [one[len(last)] for one in states]
                steps = self._steps(suffix, sequence, state)
                outputs.append(steps)
                last.append(state)
            sequence = torch.cat(outputs, -1)
        result = sequence.transpose(0, 1) if self.batch_first else sequence
        return result, *(torch.stack(parts) for parts in zip(*last, strict=True))

    def _steps(self, suffix: str, sequence: Tensor, state: list[Tensor]) -> Tensor:
        """Return the output of one layer in one direction; ``state`` becomes the last one."""
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
        """Settings."""
        return (
            f"{self.mode}, {self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, "
            f"has_biases={self.has_biases}, bidirectional={self.bidirectional}, batch_first={self.batch_first}, "
            f"proj_size={self.proj_size}"
        )


def _narrowed(layer: Any, largest: int) -> tuple[Tensor, Tensor]:
    """Return the weight of a layer as integers of at most ``largest``, and their scales."""
    if largest_weight(layer.weight) <= largest:
        return layer.weight, layer.weight_scale
    by = LARGEST_WEIGHT / largest
    return (layer.weight / by).round().to(torch.int8), layer.weight_scale * by


def _lstm(given: Tensor, hidden: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
    input, forget, cell, output = hidden.add_(given).chunk(4, -1)
    cells = torch.addcmul(forget.sigmoid() * state[1], input.sigmoid(), cell.tanh())
    return [output.sigmoid() * cells.tanh(), cells]


def _gru(given: Tensor, hidden: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
    (reset, update, new), (reset_by, update_by, new_by) = given.chunk(3, -1), hidden.chunk(3, -1)
    new = torch.addcmul(new, (reset + reset_by).sigmoid(), new_by).tanh()
    return [torch.lerp(new, state[0], (update + update_by).sigmoid())]


_STEPS: dict[Mode, Callable[[Tensor, Tensor, Sequence[Tensor]], list[Tensor]]] = {
    "LSTM": _lstm,
    "GRU": _gru,
    "RNN_TANH": lambda given, hidden, _: [torch.tanh(given + hidden)],
    "RNN_RELU": lambda given, hidden, _: [F.relu(given + hidden)],
}
"""From what a layer makes of the input and of the hidden state, and the state, to the next one."""
