"""Tensors of the user's that the traced code writes traced values to: what they hold is known at run time only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, is_tensor_method_or_property
from torch.utils._pytree import tree_leaves, tree_map_only

from fx.operators.sharing import attribute_kind
from fx.proxy import Proxy

_torch: Any = torch
_OF_THE_LAYOUT = frozenset(
    "__hash__ __len__ __repr__ data_ptr dim element_size get_device is_complex is_contiguous is_floating_point "
    "is_signed ndimension nelement numel size storage_offset stride untyped_storage".split()
)
"""Methods that tell what a write leaves as it is."""


class ReadsOfWritten(TorchFunctionMode):
    """Records what the traced code computes of tensors that it wrote to, though no proxy takes part in it.

    A trace pushes it onto the stack of modes, and :func:`leave_ended` takes it off. Once the trace has ended, it does
    nothing.
    """

    def __init__(self, replaced: Callable[[torch.Tensor], Any], is_tracing: Callable[[], bool]) -> None:
        """A mode of one trace.

        Args:
            replaced: makes a proxy of a tensor that was written to, and leaves others as they are.
            is_tracing: whether the trace is running.
        """
        super().__init__()
        self._replaced = replaced
        self.is_tracing = is_tracing

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func``, or record the call."""
        given: Any = (args, kwargs or {})
        if not self.is_tracing():
            return func(*given[0], **given[1])
        name = getattr(func, "__name__", "")
        attribute = func.__self__.__name__ if name == "__get__" else None
        if name in _OF_THE_LAYOUT or attribute_kind(attribute) == "number":
            return func(*given[0], **given[1])
        given = tree_map_only(torch.Tensor, self._replaced, given)
        proxy = next((leaf for leaf in tree_leaves(given) if isinstance(leaf, Proxy)), None)
        positional, keywords = given
        if proxy is None:
            return func(*positional, **keywords)
        if attribute is not None:
            return getattr(proxy, attribute)
        if is_tensor_method_or_property(func) and positional and isinstance(positional[0], Proxy):
            return getattr(positional[0], name)(*positional[1:], **keywords)
        return proxy.__torch_function__(func, types, positional, keywords)


def leave_ended() -> None:
    """Take the modes of traces that have ended off the stack of the calling thread, where they are its innermost."""
    while count := _torch._C._len_torch_function_stack():
        mode = _torch._C._get_function_stack_at(count - 1)
        if not isinstance(mode, ReadsOfWritten) or mode.is_tracing():
            break
        _torch._C._pop_torch_function_stack()


def share_memory(one: torch.Tensor, others: dict[int, torch.Tensor]) -> bool:
    """Whether a tensor is one of ``others``, which are known by their identities, or lies in the memory of one."""
    return id(one) in others or any(_torch._C._is_alias_of(one, other) for other in others.values())
