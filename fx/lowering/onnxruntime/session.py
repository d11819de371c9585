"""Sessions of ONNX Runtime, and the module that replaces a region by them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from io import BytesIO, StringIO
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fx.canonical.inlining import copy_graph
from fx.capture.quiet_export import quiet_export
from fx.errors import LoweringError
from fx.graph_module import GraphModule
from fx.lowering.engine_region import EngineRegion, Sizes, check_of, exported, order_in_memory
from fx.node import Node

_ERRORS_ONLY = 3
"""The level of ONNX Runtime's log below which it says nothing."""


class OnnxRuntimeSession:
    """A network in a session of ONNX Runtime. Several threads may run it at the same time."""

    def __init__(
        self, model: bytes, results: Sequence[Node], check: Callable[..., object] | None, threads: int
    ) -> None:
        """Load a model.

        Args:
            model: the model, as the bytes of a file.
            results: the nodes of the region that it returns, with recorded shapes.
            check: a function that raises ``AssertionError`` for inputs whose sizes violate the assumptions of the
                export; ``None`` if all sizes are fixed.
            threads: the number of threads that a run may use.

        Raises:
            RuntimeError: ONNX Runtime cannot load it.
        """
        runtime: Any = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = _ERRORS_ONLY
        try:
            self._session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions have no class in common
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        self._names = [entry.name for entry in self._session.get_inputs()]
        self._results = [
            (node.meta["tensor_meta"].dtype, order_in_memory(node.meta["tensor_meta"])) for node in results
        ]
        self._check = check

    def takes(self, inputs: Sequence[Any]) -> bool:
        """Return whether the sizes of these inputs meet the assumptions of a network with free sizes."""
        try:
            if self._check is not None:
                self._check(*inputs)
        except AssertionError:
            return False
        return True

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the results of the region for ``inputs``, contiguous tensors of the right dtypes.

        Raises:
            RuntimeError: ONNX Runtime refuses them, or is out of memory.
        """
        arrays = {name: tensor.numpy() for name, tensor in zip(self._names, inputs, strict=True)}
        try:
            values = self._session.run(None, arrays)
        except Exception as error:  # its exceptions have no class in common
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        return tuple(map(_as_eager, values, self._results))


class OnnxRuntimeRegion(EngineRegion):
    """A part of a program as sessions of ONNX Runtime, with the original program for inputs that no session takes."""

    _leaf_reason: ClassVar[str] = "it runs a session of ONNX Runtime"
    _runtime: ClassVar[str] = "ONNX Runtime"

    def forward(self, *inputs: Any) -> Any:
        """Return the results of the region."""
        results = super().forward(*inputs)
        is_single = isinstance(self.program.graph.output_node().args[0], Node)
        return results[0] if is_single and type(results) is tuple else results

    def _compile(self, sizes: Sizes, current: Sizes) -> OnnxRuntimeSession:
        program = GraphModule.of_capture(self.program, copy_graph(self.program.graph), "Region")
        try:
            with torch.no_grad(), quiet_export(), redirect_stdout(StringIO()):
                model, check = _exported(program, sizes, current)
        except Exception as error:
            operation = next(node for node in program.graph.nodes if node.op == "call_function")
            raise LoweringError(
                f"torch.onnx does not take the region from `%{operation}` on",
                where=operation.source,
                why=f"{type(error).__name__}: {error}",
                remedy='exclude operations with veto=…, or keep regions that fail in eager Python: on_failure="eager"',
            ) from error
        returned: Any = self.program.graph.output_node().args[0]
        results = [returned] if isinstance(returned, Node) else returned
        return OnnxRuntimeSession(model, results, check, torch.get_num_threads())


def _exported(program: GraphModule, sizes: Sizes, current: Sizes) -> tuple[bytes, Callable[..., object] | None]:
    """Return the program as an ONNX model, and the check of free sizes."""
    program_of_torch = exported(program, sizes, current)
    check, file = check_of(program_of_torch, sizes), BytesIO()
    onnx_program: Any = torch.onnx.export(program_of_torch, dynamo=True, verbose=False)
    onnx_program.save(file)
    return file.getvalue(), check


def _as_eager(value: Any, kind: tuple[torch.dtype, tuple[int, ...] | None]) -> Tensor:
    """Return a result with eager's dtype, and with its dimensions in eager's order in memory."""
    dtype, order = kind
    tensor = torch.from_numpy(np.asarray(value)).to(dtype)
    if order is None:
        return tensor
    return tensor.permute(order).contiguous().permute(sorted(range(len(order)), key=order.__getitem__))
