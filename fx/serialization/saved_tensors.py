"""Tensors of a program in a file: each memory once, each tensor object once, so that ties are kept."""

from __future__ import annotations

from typing import Any

import torch

from fx.serialization.allow_list import Refused
from fx.serialization.tensor_file import DTYPES, are_sizes
from fx.serialization.values import Json, entry, stored_object

_STORED = frozenset(DTYPES.values())


class TensorWriter:
    """The collection of a program's tensors.

    A tensor object has one number. Equal views of the same memory share stored data; other views of one storage become
    separate tensors. The order in memory, and dimensions expanded without memory, are kept.
    """

    def __init__(self) -> None:
        self.stored: dict[str, torch.Tensor] = {}
        """The contiguous tensors of the file, by name."""
        self._memory: list[Json] = []
        self._records: list[Json] = []
        self._numbers: dict[int, tuple[int, torch.Tensor]] = {}
        self._memories: dict[Any, int] = {}

    def index(self, tensor: torch.Tensor, path: str) -> int:
        """Return the number of ``tensor``, which is stored under ``path`` if that is still free."""
        numbered = self._numbers.get(id(tensor))
        if numbered is None:
            _check(tensor)
            record = {"memory": self._memory_of(tensor, path), "parameter": isinstance(tensor, torch.nn.Parameter)}
            if tensor.requires_grad:
                record["requires_grad"] = True
            numbered = self._numbers[id(tensor)] = (len(self._records), tensor)
            self._records.append(record)
        return numbered[0]

    def tables(self) -> dict[str, Json]:
        """Return the tables of tensors for the text of the file."""
        return {"memory": self._memory, "tensors": self._records}

    def _memory_of(self, tensor: torch.Tensor, path: str) -> int:
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        key = (*place, tensor.is_conj(), tensor.is_neg())
        # Tensors without elements may all have the address 0: they are not the same memory.
        if tensor.numel() and key in self._memories:
            return self._memories[key]
        name, number = path, 0
        # safetensors keeps `__metadata__` for itself.
        while name in self.stored or name == "__metadata__":
            number += 1
            name = f"{path}_{number}"
        described: dict[str, Json] = {"name": name}
        core = tensor.detach()
        if tensor.is_complex():
            described["complex"] = True
            core = torch.view_as_real(core.resolve_conj())
        expanded = [1 if stride == 0 else size for size, stride in zip(core.shape, core.stride(), strict=True)]
        if core.numel() and expanded != list(core.shape):
            described["expanded"] = list(core.shape)
            core = core.as_strided(expanded, core.stride())
        if not core.is_contiguous() and _is_dense(list(core.shape), list(core.stride())):
            described["stride"] = list(core.stride())
        self.stored[name] = core.resolve_neg().contiguous()
        self._memories[key] = len(self._memory)
        self._memory.append(described)
        return self._memories[key]


def _check(tensor: torch.Tensor) -> None:
    kind = type(tensor)
    if kind not in (torch.Tensor, torch.nn.Parameter):
        raise Refused(f"a tensor is of class {kind.__module__}.{kind.__qualname__}", why="files hold plain tensors")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        form = "quantized" if tensor.is_quantized else f"of layout {tensor.layout}"
        raise Refused(f"a tensor is {form}", remedy="store its parts, and put it together in the program")
    if tensor.device.type == "meta":
        raise Refused("a tensor is on the meta device", why="it has no values", remedy="give the module its weights")
    if tensor.dtype not in _STORED and not tensor.is_complex():
        raise Refused(f"a tensor has elements of {tensor.dtype}", why="safetensors files have no such type")
    if tensor.grad_fn is not None:
        raise Refused("a tensor is the result of a computation that autograd recorded", remedy="detach() it")
    if tensor._backward_hooks:
        raise Refused("a tensor has hooks", why="they would be lost", remedy="remove them before saving")


def _is_dense(shape: list[int], stride: list[int]) -> bool:
    """Return whether a tensor fills its memory without gaps or overlaps."""
    expected = 1
    for step, size in sorted((step, size) for size, step in zip(shape, stride, strict=True) if size != 1):
        if step != expected:
            return False
        expected *= size
    return True


def restore_tensors(
    tables: dict[str, Json], stored: dict[str, torch.Tensor], device: torch.device | None
) -> list[torch.Tensor]:
    """Return the tensors that ``TensorWriter`` numbered, from the stored tensors of the file."""
    rest = dict(stored)
    restored = [_restore_memory(described, rest, device) for described in tables["memory"]]
    if rest:
        raise Refused(f"tensor {next(iter(rest))!r} belongs to nothing")
    return [_restore_record(record, restored) for record in tables["tensors"]]


def _restore_memory(described: Json, rest: dict[str, torch.Tensor], device: torch.device | None) -> torch.Tensor:
    optional = {"complex": False, "expanded": None, "stride": None}
    parts = stored_object(described, "an entry of the table of memory", {"name": str}, optional)
    name = parts["name"]
    value = rest.pop(name, None)
    if value is None:
        raise Refused(f"the file has no tensor {ascii(name)[:80]}, or it is used twice")
    if device is not None:
        value = value.to(device)
    if (stride := parts["stride"]) is not None:
        shape = list(value.shape)
        # A small file must not ask for much memory: strides only permute dimensions.
        if not are_sizes(stride) or len(stride) != len(shape) or not _is_dense(shape, stride):
            raise Refused(f"tensor {name!r} has strides that do not fit its shape")
        value = torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device).copy_(value)
    if (expanded := parts["expanded"]) is not None:
        if not are_sizes(expanded) or len(expanded) != value.dim():
            raise Refused(f"tensor {name!r} is expanded to no shape")
        if any(new != size and size != 1 for new, size in zip(expanded, value.shape, strict=True)):
            raise Refused(f"tensor {name!r} cannot be expanded to {expanded}")
        value = value.expand(expanded)
    if parts["complex"]:
        value = _as_complex(value, name)
    return value


def _as_complex(value: torch.Tensor, name: str) -> torch.Tensor:
    if value.dtype not in (torch.float16, torch.float32, torch.float64) or value.dim() == 0 or value.shape[-1] != 2:
        raise Refused(f"tensor {name!r} has no pairs of real and imaginary parts")
    strides = value.stride()
    if strides[-1] != 1 or any(stride % 2 for stride in strides[:-1]):
        raise Refused(f"tensor {name!r} has strides that complex numbers do not have")
    return torch.view_as_complex(value)


def _restore_record(record: Json, memory: list[torch.Tensor]) -> torch.Tensor:
    required = {"memory": object, "parameter": bool}
    parts = stored_object(record, "an entry of the table of tensors", required, {"requires_grad": False})
    grad = parts["requires_grad"]
    value = entry(memory, parts["memory"], "there is no memory number {}")
    if grad and not (value.is_floating_point() or value.is_complex()):
        raise Refused(f"a tensor of {value.dtype} is said to have gradients")
    if parts["parameter"]:
        return torch.nn.Parameter(value, requires_grad=grad)
    return value.detach().requires_grad_(grad)
