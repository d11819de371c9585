"""Engines: networks that OpenVINO compiled for the CPU, and the requests that run them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fx.lowering.openvino.network import OpenVINONetwork, Result
from fx.lowering.openvino.package import core, load


class OpenVINOEngine:
    """A compiled network.

    It reads its inputs and writes its results where the tensors are, without a copy. Several threads may run it at a
    time: each run has a request of its own, from a pool that grows as needed.
    """

    def __init__(self, network: OpenVINONetwork, precision: str, threads: int) -> None:
        """Compile a network.

        Args:
            network: what to compile, finished.
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
        self._memory = network.memory
        model = network.model()
        self._compiled: Any = None if model is None else core().compile_model(model, "CPU", settings)
        self._idle: deque[Any] = deque()
        self._structure = network.structure
        self._make: Any = load().Tensor
        self._outputs = [] if self._compiled is None else list(map(_place, network.results, self._compiled.outputs))

    def __call__(self, inputs: Sequence[Tensor]) -> Any:
        """Return what the region returns for ``inputs``, contiguous tensors of the right dtypes.

        Raises:
            RuntimeError: OpenVINO refuses them, or has no memory left.
        """
        if self._compiled is None:
            return self._structure
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
        return _restored(self._structure, held)


def _place(result: Result, output: Any) -> tuple[torch.dtype, tuple[int, ...] | None, Any]:
    """Return the dtype and sizes of a result, if known, and its type for OpenVINO if that writes to given memory."""
    shape = output.get_partial_shape()
    sizes = tuple(dim.get_length() for dim in shape) if shape.is_static else None
    return result.dtype, sizes, output.get_element_type() if result.is_alone else None


def _restored(structure: Any, results: list[Any]) -> Any:
    """Return what a region returns, with its results filled in."""
    if isinstance(structure, tuple):
        return tuple([_restored(one, results) for one in structure])
    if not isinstance(structure, Result):
        return structure
    value = results[structure.index]
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(value.data)
    if structure.is_number:
        return int(tensor)
    if structure.order is not None:
        inverse = sorted(range(len(structure.order)), key=structure.order.__getitem__)
        return tensor.permute(inverse)
    return tensor
