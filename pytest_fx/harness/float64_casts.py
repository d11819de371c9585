"""Casts to float64 for models that create tensors of their working dtype themselves.

``torch.arange(n).float() @ self.weight`` raises if the weight is in float64. Without a float64 reference, eager's own
rounding error, which limits that of a transform, would be unknown. In the reference, casts of such a model to its
working dtype or to float32 are therefore replaced by casts to float64, in eager and in captures alike. Models that run
in float64 as they are stay unchanged. PyTorch's modes do not see ``torch.from_numpy`` and ``torch.FloatTensor``: their
results stay float32.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fx import GraphModule
from fx.operators.families import CASTS
from pytest_fx.harness.evaluation import converted
from pytest_fx.harness.structure import leaves, map_tensors

_Tensor: Any = torch.Tensor
_METHODS = {dtype: name for name, dtype in CASTS.items()}
_REINTERPRETING = (_Tensor.view, torch.ops.aten.view.dtype)
"""Functions that reinterpret memory in another dtype, which is no cast."""


class Float64Casts:
    """Casts to float64 in place of the casts of one model, if it needs them."""

    def __init__(self, dtype: torch.dtype) -> None:
        """Replace casts to ``dtype``, the working dtype of the model, and to float32."""
        self.needed = False
        """True if the model runs in float64 only with these casts."""
        self._dtypes = {dtype: torch.float64, torch.float32: torch.float64, torch.complex64: torch.complex128}
        type_names = {
            torch.empty(0, dtype=old).type(): torch.empty(0, dtype=new).type() for old, new in self._dtypes.items()
        }
        self._names = type_names  # arguments of `Tensor.type`
        self._methods = {name: _METHODS[self._dtypes[dtype]] for name, dtype in CASTS.items() if dtype in self._dtypes}
        self._functions = {getattr(_Tensor, old): getattr(_Tensor, new) for old, new in self._methods.items()}

    @contextmanager
    def block(self) -> Generator[None]:
        """Replace casts inside the block, if that is needed."""
        if not self.needed:
            yield
            return
        with _Casting(self):
            yield

    def call(self, module: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls ``module`` in such a block."""

        def call_in_block(*args: Any, **kwargs: Any) -> Any:
            with self.block():
                return module(*args, **kwargs)

        return call_in_block

    def rewrite(self, program: GraphModule) -> None:
        """Replace the casts in a program, if that is needed: its capture recorded the dtypes that the model names."""
        if not self.needed:
            return
        for node in program.graph.nodes:
            if node.op == "get_attr":
                owner, _, name = str(node.target).rpartition(".")
                value = getattr(program.get_submodule(owner), name)
                if isinstance(value, torch.Tensor) and value.dtype in self._dtypes:  # a constant of the capture
                    setattr(program.get_submodule(owner), name, self._converted(value))
            elif node.op == "call_method":
                node.target = self._methods.get(str(node.target), node.target)
            else:
                node.target = self._functions.get(node.target, node.target)
            if node.target not in ("view", *_REINTERPRETING):
                node.args, node.kwargs = self._cast(node.args, node.kwargs)
        program.recompile()

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function of torch with its cast replaced."""
        if str(kwargs.get("device")) == "meta":  # torch.export's own counterparts of the model's tensors
            return func(*args, **kwargs)
        if func not in _REINTERPRETING:
            args, kwargs = self._cast(args, kwargs)
        result = self._functions.get(func, func)(*args, **kwargs)
        is_factory = not any(isinstance(leaf, torch.Tensor) for _, leaf in leaves((args, kwargs)))
        return map_tensors(self._converted, result) if is_factory else result

    def _cast(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return tuple(map(self._dtype, args)), {name: self._dtype(value) for name, value in kwargs.items()}

    def _dtype(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._names.get(value, value)
        return self._dtypes.get(value, value) if isinstance(value, torch.dtype) else value

    def _converted(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor that was created from numbers, such as a NumPy array, in float64 if its dtype is replaced."""
        return converted(tensor, torch.float64) if tensor.dtype in self._dtypes else tensor


class _Casting(TorchFunctionMode):
    def __init__(self, casts: Float64Casts) -> None:
        super().__init__()
        self._casts = casts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._casts.called(func, args, kwargs or {})
