"""Values as bytes, between the judge and the processes of reference and candidate: data only, no code.

Data from a candidate is never unpickled. A tensor is sent as its elements, a container as a list, a tuple or a dict.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import torch

from fx.container_kinds import container_kind

_LENGTH = 8
_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def encode(value: Any) -> bytes:
    """Encode containers, tensors, numbers and text as bytes; of any other object, only its class name is sent."""
    blobs: list[bytes] = []
    header = json.dumps(_encoded(value, blobs)).encode()
    return b"".join((len(header).to_bytes(_LENGTH, "big"), header, *blobs))


def decode(data: bytes) -> Any:
    """Decode a value that :func:`encode` wrote.

    Raises:
        ValueError: the bytes are truncated, or do not come from :func:`encode`.
    """
    start = _LENGTH + int.from_bytes(data[:_LENGTH], "big")
    if start > len(data):
        raise ValueError("a message is cut off")
    return _decoded(json.loads(data[_LENGTH:start]), memoryview(data)[start:])


def elements(tensor: torch.Tensor) -> bytes:
    """Return the elements of a tensor as bytes, in row-major order."""
    plain = torch.empty(tensor.shape, dtype=tensor.dtype)
    plain.copy_(tensor.detach())
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def _encoded(value: Any, blobs: list[bytes]) -> Any:
    if isinstance(value, torch.Tensor):
        name, shape = str(value.dtype).removeprefix("torch."), list(value.shape)
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            return {"opaque": f"{type(value).__name__} of layout {value.layout}"}
        place = sum(map(len, blobs))
        blobs.append(elements(value))
        memory = [list(value.stride()), int(value.storage_offset())]
        return {"tensor": [name, shape, place, len(blobs[-1])], "memory": memory}
    if value is None or isinstance(value, bool | int | float | str):
        return {
            "value": value if isinstance(value, bool | int | str | None) else repr(float(value)),
            "float": isinstance(value, float),
        }
    kind = container_kind(value)
    if kind is None:
        return {"opaque": type(value).__name__}
    parts = [_encoded(part, blobs) for part in kind.parts(value)]
    if isinstance(value, Mapping):
        return {"dict": [[str(label), part] for label, part in zip(kind.labels(value), parts, strict=True)]}
    return {"list" if isinstance(value, list) else "tuple": parts}


def _decoded(header: Mapping[str, Any], blobs: memoryview) -> Any:
    match header:
        case {"tensor": [str(name), list(shape), int(place), int(size)], "memory": [list(strides), int(offset)]}:
            blob = bytearray(blobs[place : place + size])
            flat = (
                torch.frombuffer(blob, dtype=torch.uint8).view(_DTYPES[name])
                if blob
                else torch.empty(0, dtype=_DTYPES[name])
            )
            plain = flat.reshape(cast("list[int]", shape))
            return _placed(plain, tuple(strides), offset)
        case {"value": value, "float": bool(is_float)}:
            return float(value) if is_float else value
        case {"opaque": str(kind)}:
            return Opaque(kind)
        case {"dict": list(pairs)}:
            return {label: _decoded(part, blobs) for label, part in cast("list[Any]", pairs)}
        case {"list": list(parts)}:
            return [_decoded(part, blobs) for part in cast("list[Any]", parts)]
        case {"tuple": list(parts)}:
            return tuple(_decoded(part, blobs) for part in cast("list[Any]", parts))
        case _:
            raise ValueError("a message is of no known form")


def _placed(plain: torch.Tensor, strides: tuple[int, ...], offset: int) -> torch.Tensor:
    """Return a copy of a tensor with the given strides and storage offset."""
    if (strides == plain.stride() and not offset) or not plain.numel():
        return plain
    if any(size > 1 and not stride for size, stride in zip(plain.shape, strides, strict=True)):
        return plain[tuple(slice(None) if stride else slice(1) for stride in strides)].expand(plain.shape)
    span = 1 + sum((size - 1) * stride for size, stride in zip(plain.shape, strides, strict=True))
    memory = plain.new_zeros(offset + span)
    return memory.as_strided(plain.shape, strides, offset).copy_(plain)


class Opaque:
    """A stand-in for an object that cannot be sent: the name of its class."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"<{self.kind}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other.kind == self.kind

    def __hash__(self) -> int:
        return hash(self.kind)
