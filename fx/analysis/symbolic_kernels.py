"""Kernels on fake tensors with symbolic sizes: faster implementations of some, and a cache of results by sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
import torch._refs
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch

from fx.analysis.kernel_calls import KernelMode
from fx.container_kinds import held_kind
from fx.passes.tensor_metadata import memory_format_of

_aten: Any = torch.ops.aten
_SIZES_DEPEND_ON_MORE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view)
_PLAIN = (
    int, float, complex, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
Key: TypeAlias = tuple[Any, ...]


def _batch_norm(input: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: float) -> Any:
    """Return batch norm's results by their sizes: PyTorch's decomposition takes half the time of a whole CNN."""
    if training:
        return _aten.native_batch_norm.default(input, weight, bias, mean, var, training, *rest)
    return torch.empty_like(input), input.new_empty(0), input.new_empty(0)


_REFERENCES: dict[Any, Any] = {
    _aten.constant_pad_nd.default: torch._refs.constant_pad_nd,
    _aten.native_batch_norm.default: _batch_norm,
}
"""Replacements for fake implementations that are slow, or that turn symbolic sizes into numbers."""


class _NotCacheable(Exception):
    """An argument may affect the result by more than its sizes, strides, dtypes and plain values."""


class _Template:
    """The metadata of a result, copied because the tensor itself may be written to later."""

    def __init__(self, tensor: FakeTensor) -> None:
        self._sizes = tensor.shape, tensor.stride()
        self._dtype, self._device = tensor.dtype, tensor.device
        self._template: torch.Tensor | None = None

    def again(self, mode: FakeTensorMode) -> FakeTensor:
        """Return a new tensor of the same sizes, strides, dtype and device."""
        if self._template is None:
            with no_dispatch(), mode.shape_env.suppress_guards():  # pyright: ignore[reportOptionalMemberAccess]
                self._template = torch.empty_strided(*self._sizes, dtype=self._dtype, device="meta")
                memory_format_of(self._template)  # computes contiguity, which copies of the template inherit
        return FakeTensor(mode, self._template, self._device)


class SymbolicKernels(KernelMode):
    """A mode that runs kernels on fake tensors with symbolic sizes, and caches their results.

    Arithmetic with expressions is far slower than with numbers, and the blocks of a network repeat. So a kernel runs
    once for each combination of sizes, strides, dtypes and other arguments. Kernels that write to memory, return views
    or read elements run each time.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self._mode = mode
        self._known: dict[Key, tuple[bool, list[_Template | None]]] = {}  # (is a tuple, its elements)
        self._depends_on_sizes: dict[Any, bool] = {}

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a kernel, from the cache if possible."""
        key = self._key(func, args, kwargs)
        if key is not None and (entry := self._known.get(key)) is not None:
            is_tuple, templates = entry
            results = tuple(None if template is None else template.again(self._mode) for template in templates)
            return results if is_tuple else results[0]
        result = _REFERENCES.get(func, func)(*args, **kwargs)
        if key is not None:
            self._keep(key, result)
        return result

    def _key(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Key | None:
        """Return the cache key of a call, or None if the result may depend on more than a key can hold."""
        suits = self._depends_on_sizes.get(func)
        if suits is None:
            suits = self._depends_on_sizes[func] = _depends_on_sizes(func)
        if not suits:
            return None
        try:
            parts = (*_parts((args, kwargs)),)
        except _NotCacheable:
            return None
        return func, torch.get_default_dtype(), torch.is_inference_mode_enabled(), parts

    def _keep(self, key: Key, result: Any) -> None:
        is_tuple = isinstance(result, tuple)
        tensors = cast("tuple[Any, ...]", result if is_tuple else (result,))
        if all(tensor is None or (_is_plain_tensor(tensor) and not tensor.storage_offset()) for tensor in tensors):
            self._known[key] = is_tuple, [None if tensor is None else _Template(tensor) for tensor in tensors]


def _depends_on_sizes(func: Any) -> bool:
    """Return whether a kernel's result sizes follow from its operands' sizes, and it neither writes nor aliases."""
    schema = getattr(func, "_schema", None)
    if schema is None or func.namespace != "aten" or schema.is_mutable:
        return False
    if any(tag in func.tags for tag in _SIZES_DEPEND_ON_MORE) or func in _LIFTED:
        return False
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    tensors = all(str(returned.type) == "Tensor" and returned.alias_info is None for returned in schema.returns)
    return bool(schema.returns) and tensors and not composite


_LIFTED = frozenset({_aten.lift_fresh.default, _aten.lift_fresh_copy.default, _aten._unsafe_view.default})
"""Kernels that return views, or accept real tensors in place of fake ones, without a schema that declares it."""


def _is_plain_tensor(value: Any) -> bool:
    """Return whether sizes, strides, dtype and device describe a fake tensor completely."""
    return (
        isinstance(value, FakeTensor)
        and value.constant is None
        and value.layout is torch.strided
        and not (value.is_quantized or value.is_conj() or value.is_neg() or value.is_inference())
    )


def _parts(value: Any) -> Iterator[Any]:
    """Yield the parts of a cache key for arguments, in order."""
    if isinstance(value, torch.Tensor):
        if not _is_plain_tensor(value):
            raise _NotCacheable
        yield value.dtype, value.device
        yield tuple(map(_expression, value.shape))
        yield tuple(map(_expression, value.stride()))
        yield _expression(value.storage_offset())
    elif (kind := held_kind(value)) is not None:
        yield type(value), kind.shape(value)
        for part in kind.parts(value):
            yield from _parts(part)
    elif isinstance(value, torch.SymInt):
        yield torch.SymInt, value.node._expr
    elif isinstance(value, _PLAIN):
        yield type(value), value
    else:
        raise _NotCacheable


def _expression(size: Any) -> Any:
    return size if isinstance(size, int) else size.node._expr
