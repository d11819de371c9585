"""Engines: networks that OpenVINO compiled for the CPU, and the requests that run them."""

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

    It reads its inputs and writes its results where the tensors are, without a copy. Several threads may run it at a
    time: each run has a request of its own, from a pool that grows as needed.
    """

    def __init__(self, network: ImportedNetwork, precision: str, threads: int) -> None:
        """Compile a network.

        Args:
            network: what to compile.
            precision: what it computes in: ``"f32"`` or ``"bf16"``.
            threads: how many threads a run may use.

        Raises:
            RuntimeError: OpenVINO cannot compile it.
        """
        settings = {
            "INFERENCE_PRECISION_HINT": precision,
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 0 if threads == 1 else 1,  # without a stream it runs in the thread that calls, alone
            "PERFORMANCE_HINT": "LATENCY",
        }
        self._network = network
        self._compiled: Any = core().compile_model(network.model, "CPU", settings)
        self._idle: deque[Any] = deque()
        self._make: Any = load().Tensor
        self._outputs = list(map(_place, network.results, self._compiled.outputs))

    def takes(self, inputs: Sequence[Any]) -> bool:
        """Return whether the sizes of these inputs are what was assumed where some are free."""
        if self._network.check is None:
            return True
        try:
            self._network.check(*inputs)
        except AssertionError:
            return False
        return True

    def __call__(self, inputs: Sequence[Tensor]) -> Any:
        """Return what the region returns for ``inputs``, contiguous tensors of the right dtypes.

        Raises:
            RuntimeError: OpenVINO refuses them, or has no memory left.
        """
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        make = self._make
        for index, tensor in enumerate(inputs):
            request.set_input_tensor(index, make(tensor.numpy(), shared_memory=True))
        held: list[Any] = []
        for index, (dtype, sizes, kind) in enumerate(self._outputs):
            if kind is None:
                held.append(None)
                continue
            if sizes is None:
                result = written = make(kind, [0])
            else:
                result = torch.empty(sizes, dtype=dtype)
                written = make(result.numpy(), shared_memory=True)
            request.set_output_tensor(index, written)
            held.append(result)
        request.infer(share_inputs=True, share_outputs=True)
        for index, result in enumerate(held):
            if result is None:
                held[index] = torch.from_numpy(request.get_output_tensor(index).data.copy())
        self._idle.append(request)
        results = list(map(_restored, self._network.results, held))
        return results[0] if self._network.is_single else tuple([results[place] for place in self._network.places])


def _place(result: Result, output: Any) -> tuple[torch.dtype, tuple[int, ...] | None, Any]:
    """Return the dtype and sizes of a result, if known, and its type for OpenVINO if that writes to given memory."""
    shape = output.get_partial_shape()
    sizes = tuple(dim.get_length() for dim in shape) if shape.is_static else None
    return result.dtype, sizes, output.get_element_type() if result.is_alone else None


def _restored(result: Result, value: Any) -> Tensor:
    """The tensor of a result, its dimensions in their order."""
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(value.data)
    if result.order is None:
        return tensor
    return tensor.permute(sorted(range(len(result.order)), key=result.order.__getitem__))
