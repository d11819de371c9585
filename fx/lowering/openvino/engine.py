"""Engines: networks compiled by OpenVINO for the CPU, and the requests that run them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fx.lowering.openvino.importer import ImportedNetwork, Result
from fx.lowering.openvino.package import core, load


class OpenVINOEngine:
    """A compiled network.

    It reads its inputs and writes its results in the tensors' own memory, without copies. Several threads may run it at
    the same time: each run takes its own request from a pool that grows as needed.
    """

    def __init__(self, network: ImportedNetwork, precision: str, threads: int) -> None:
        """Compile a network.

        Args:
            network: the network.
            precision: the type in which it computes: ``"f32"`` or ``"bf16"``.
            threads: the number of threads that a run may use.

        Raises:
            RuntimeError: OpenVINO cannot compile it.
        """
        settings = {
            "INFERENCE_PRECISION_HINT": precision,
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 0 if threads == 1 else 1,  # without a stream it runs in the calling thread alone
            "PERFORMANCE_HINT": "LATENCY",
        }
        self._network = network
        self._compiled: Any = core().compile_model(network.model, "CPU", settings)
        self._idle: deque[Any] = deque()
        self._make: Any = load().Tensor
        self._outputs = list(map(_describe_output, network.results, self._compiled.outputs))

    def takes(self, inputs: Sequence[Any]) -> bool:
        """Return whether the sizes of these inputs meet the assumptions of a network with free sizes."""
        if self._network.check is None:
            return True
        try:
            self._network.check(*inputs)
        except AssertionError:
            return False
        return True

    def __call__(self, inputs: Sequence[Tensor]) -> Any:
        """Return the results of the region for ``inputs``, contiguous tensors of the right dtypes.

        Raises:
            RuntimeError: OpenVINO refuses them, or is out of memory.
        """
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        make = self._make
        for index, tensor in enumerate(inputs):
            request.set_input_tensor(index, make(tensor.numpy(), shared_memory=True))
        values: list[Any] = []
        for index, (dtype, sizes, kind) in enumerate(self._outputs):
            if kind is None:
                values.append(None)
                continue
            if sizes is None:
                result = written = make(kind, [0])
            else:
                result = torch.empty(sizes, dtype=dtype)
                written = make(result.numpy(), shared_memory=True)
            request.set_output_tensor(index, written)
            values.append(result)
        request.infer(share_inputs=True, share_outputs=True)
        for index, result in enumerate(values):
            if result is None:
                values[index] = torch.from_numpy(request.get_output_tensor(index).data.copy())
        self._idle.append(request)
        results = list(map(_in_original_order, self._network.results, values))
        return results[0] if self._network.is_single else tuple([results[place] for place in self._network.places])


def _describe_output(result: Result, output: Any) -> tuple[torch.dtype, tuple[int, ...] | None, Any]:
    """Return a result's dtype, its sizes if fixed, and its type for OpenVINO if that can write into our memory."""
    shape = output.get_partial_shape()
    sizes = tuple(dim.get_length() for dim in shape) if shape.is_static else None
    return result.dtype, sizes, output.get_element_type() if result.is_alone else None


def _in_original_order(result: Result, value: Any) -> Tensor:
    """Return the tensor of a result with its dimensions in their original order."""
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(value.data)
    if result.order is None:
        return tensor
    return tensor.permute(sorted(range(len(result.order)), key=result.order.__getitem__))
