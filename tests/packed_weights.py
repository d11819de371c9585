"""A tensor subclass without memory, which takes few functions of torch, as quantized weights of torchao do."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

_ATEN: Any = torch.ops.aten


class PackedWeight(torch.Tensor):
    """A weight that holds integers and a scale; ``F.linear`` takes it by position, ``torch.equal`` does not at all."""

    codes: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> PackedWeight:
        packed = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype, device=codes.device)
        packed.codes, packed.scale = codes, scale
        return packed

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, torch.Tensor], *_: Any) -> PackedWeight:
        return cls(inner["codes"], inner["scale"])

    def __repr__(self, **_: Any) -> str:
        return f"PackedWeight({self.codes})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            weight, bias = args[1], args[2] if len(args) > 2 else (kwargs or {}).get("bias")
            return F.linear(args[0], weight.codes.to(args[0].dtype) * weight.scale, bias)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        own, dtype = args[0], (kwargs or {}).get("dtype")
        if func in (_ATEN.detach.default, _ATEN.alias.default):
            return cls(own.codes, own.scale)
        if func in (_ATEN.clone.default, _ATEN._to_copy.default):
            return cls(own.codes.clone(), own.scale.to(dtype or own.dtype, copy=True))
        if func is _ATEN.copy_.default:
            own.codes.copy_(args[1].codes)
            own.scale.copy_(args[1].scale)
            return own
        raise NotImplementedError(f"PackedWeight has no {func}")


def pack(model: nn.Module) -> nn.Module:
    """Give the linear layers of ``model`` packed weights, and return it."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            weight = module.weight.detach()
            scale = weight.abs().amax(1, keepdim=True) / 127
            module.weight = nn.Parameter(PackedWeight((weight / scale).round().to(torch.int8), scale), False)
    return model
