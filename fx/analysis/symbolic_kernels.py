"""Kernels on fake tensors with symbolic sizes: other implementations of some, and each run once for the same sizes."""

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


def _batch_norm(given: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: float) -> Any:
    """Batch norm by its sizes: PyTorch's decomposition takes half of the time of a convolutional network."""
    if training:
        return _aten.native_batch_norm.default(given, weight, bias, mean, var, training, *rest)
    return torch.empty_like(given), given.new_empty(0), given.new_empty(0)


_REFERENCES: dict[Any, Any] = {
    _aten.constant_pad_nd.default: torch._refs.constant_pad_nd,
    _aten.native_batch_norm.default: _batch_norm,
}
"""What gives the sizes of kernels whose fake implementations turn symbolic ones into numbers, or take long."""


class _CannotBeKept(Exception):
    """A result may depend on more than sizes, strides, dtypes and plain values."""


class _Kept:
    """What is known of a tensor that a kernel returned, which may be written since."""

    def __init__(self, tensor: FakeTensor) -> None:
        self._sizes = tensor.shape, tensor.stride()
        self._dtype, self._device = tensor.dtype, tensor.device
        self._template: torch.Tensor | None = None

    def again(self, mode: FakeTensorMode) -> FakeTensor:
        """Return another tensor of the same sizes, strides, dtype and device."""
        if self._template is None:
            with no_dispatch(), mode.shape_env.suppress_guards():  # pyright: ignore[reportOptionalMemberAccess]
                self._template = torch.empty_strided(*self._sizes, dtype=self._dtype, device="meta")
                memory_format_of(self._template)  # copies know what their original was asked
        return FakeTensor(mode, self._template, self._device)


class SymbolicKernels(KernelMode):
    """Runs the kernels of a program on fake tensors whose sizes are symbolic.

    Sizes are worked out once for each kernel and the same sizes, strides, dtypes and other arguments, since arithmetic
    with expressions takes far longer than with numbers, and blocks of a network repeat. Kernels that write, return
    views or ask for elements run each time.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self._mode = mode
        self._known: dict[Key, tuple[bool, list[_Kept | None]]] = {}  # whether that is a tuple, and what is in it
        self._depends_on_sizes: dict[Any, bool] = {}

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what the kernel returns, worked out before if it can be."""
        key = self._key(func, args, kwargs)
        if key is not None and (known := self._known.get(key)) is not None:
            is_tuple, kept = known
            made = tuple(None if one is None else one.again(self._mode) for one in kept)
            return made if is_tuple else made[0]
        result = _REFERENCES.get(func, func)(*args, **kwargs)
        if key is not None:
            self._keep(key, result)
        return result

    def _key(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Key | None:
        """Return what the sizes of the result depend on; None where that may be more than can be compared."""
        suits = self._depends_on_sizes.get(func)
        if suits is None:
            suits = self._depends_on_sizes[func] = _depends_on_sizes(func)
        if not suits:
            return None
        try:
            parts = (*_parts((args, kwargs)),)
        except _CannotBeKept:
            return None
        return func, torch.get_default_dtype(), torch.is_inference_mode_enabled(), parts

    def _keep(self, key: Key, result: Any) -> None:
        is_tuple = isinstance(result, tuple)
        tensors = cast("tuple[Any, ...]", result if is_tuple else (result,))
        if all(one is None or (_is_plain_tensor(one) and not one.storage_offset()) for one in tensors):
            self._known[key] = is_tuple, [None if one is None else _Kept(one) for one in tensors]


def _depends_on_sizes(func: Any) -> bool:
    """Return whether sizes of a kernel's results follow from those of operands, and nothing is written or shared."""
    schema = getattr(func, "_schema", None)
    if schema is None or func.namespace != "aten" or schema.is_mutable:
        return False
    if any(tag in func.tags for tag in _SIZES_DEPEND_ON_MORE) or func in _LIFTED:
        return False
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    tensors = all(str(one.type) == "Tensor" and one.alias_info is None for one in schema.returns)
    return bool(schema.returns) and tensors and not composite


_LIFTED = frozenset({_aten.lift_fresh.default, _aten.lift_fresh_copy.default, _aten._unsafe_view.default})
"""Kernels that are views, or take real tensors for fake ones, though their schemas do not say so."""


def _is_plain_tensor(value: Any) -> bool:
    """Return whether all that is known of a fake tensor is in its sizes, strides, dtype and device."""
    return (
        isinstance(value, FakeTensor)
        and value.constant is None
        and value.layout is torch.strided
        and not (value.is_quantized or value.is_conj() or value.is_neg() or value.is_inference())
    )


def _parts(value: Any) -> Iterator[Any]:
    """Yield what tells arguments apart, in order."""
    if isinstance(value, torch.Tensor):
        if not _is_plain_tensor(value):
            raise _CannotBeKept
        yield value.dtype, value.device
        yield tuple(map(_expression, value.shape))
        yield tuple(map(_expression, value.stride()))
        yield _expression(value.storage_offset())
    elif (kind := held_kind(value)) is not None:
        yield type(value), kind.shape(value)
        for one in kind.parts(value):
            yield from _parts(one)
    elif isinstance(value, torch.SymInt):
        yield torch.SymInt, value.node._expr
    elif isinstance(value, _PLAIN):
        yield type(value), value
    else:
        raise _CannotBeKept


def _expression(size: Any) -> Any:
    return size if isinstance(size, int) else size.node._expr
