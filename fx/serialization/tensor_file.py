"""One safetensors file with tensors and a text: ``header length, JSON header, bytes of the tensors``.

The text, JSON itself, is the header's metadata entry ``fx``. Any reader of safetensors sees the tensors. Files are read
here and not by the safetensors package, for two reasons. It maps files into memory, so that all tensors share one
storage, and a file that is cut short later ends the process. And it accepts repeated keys. Every number in a header is
checked against the size of the file before any memory is allocated.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import stat
import sys
import uuid
from collections.abc import Iterable, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch

from fx.serialization.allow_list import Refused

HEADER_LIMIT = 100_000_000
"""The largest size of a header in bytes; the same as in the safetensors package."""

_DTYPE_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
DTYPES: dict[str, torch.dtype] = {
    short: getattr(torch, name) for short, name in _DTYPE_NAMES.items() if hasattr(torch, name)
}
"""Types of elements by their names in the format."""
_SHORT_NAMES = {dtype: short for short, dtype in DTYPES.items()}

_TEXT = "fx"
_MOST_DIMENSIONS = 64
_DEEPEST = 256
"""The largest depth of JSON: values nest 64 levels, and each of these takes up to three levels."""
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}


def write_tensor_file(path: Any, text: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write ``text`` and contiguous ``tensors`` to ``path``, or nothing if that fails.

    The same contents give the same bytes. The file appears whole, and replaces an existing one.

    Raises:
        Refused: the text is too long for the format.
    """
    if sys.byteorder != "little":
        raise Refused("this machine stores numbers with the high byte first", why="the format has the low byte first")
    # wide elements first, so that every tensor is aligned
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": {_TEXT: text}}
    end = 0
    for name in order:
        tensor, begin = tensors[name], end
        end += tensor.numel() * tensor.element_size()
        shape = list(tensor.shape)
        header[name] = {"dtype": _SHORT_NAMES[tensor.dtype], "shape": shape, "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode("ascii")
    encoded += b" " * (-len(encoded) % 8)
    if len(encoded) > HEADER_LIMIT:
        raise Refused(
            f"the program takes {len(encoded):,} bytes besides its tensors",
            why=f"safetensors files have at most {HEADER_LIMIT:,}",
        )
    _write_whole(path, [len(encoded).to_bytes(8, "little"), encoded], (tensors[name] for name in order))


def _write_whole(path: Any, head: list[bytes], tensors: Iterable[torch.Tensor]) -> None:
    target = Path(os.path.realpath(os.fsdecode(path)))
    staging = target.with_name(f".{uuid.uuid4().hex}.part")
    try:
        with open(staging, "xb") as file:
            for part in head:
                file.write(part)
            for tensor in tensors:
                if tensor.numel():
                    flat = tensor.cpu().as_strided((tensor.numel(),), (1,))  # a size of 1 may have any stride
                    file.write(_bytes(flat.view(torch.uint8)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(staging, target)
    except BaseException:
        with contextlib.suppress(OSError):
            staging.unlink()
        raise


def read_tensor_file(path: Any) -> tuple[str, dict[str, torch.Tensor]]:
    """Return the text and the tensors of the file at ``path``, on the CPU, each with its own memory.

    Raises:
        Refused: the file is not a safetensors file with a text, or is damaged.
        OSError: the file cannot be read.
    """
    if sys.byteorder != "little":
        raise Refused("this machine stores numbers with the high byte first", why="the format has the low byte first")
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise Refused("it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        header, start = _read_header(file, size)
        metadata = header.pop("__metadata__", None)
        text = metadata.get(_TEXT) if type(metadata) is dict else None
        if type(text) is not str:
            raise Refused("it holds tensors but no program", why=f"its metadata has no entry {_TEXT!r}")
        tensors: dict[str, torch.Tensor] = {}
        end = 0
        for name, dtype, shape, begin, stop in sorted(map(_entry, header.items()), key=lambda entry: entry[3:]):
            if begin != end or stop > size - start:
                raise Refused(f"tensor {_shown(name)} is not where the file has its bytes")
            tensors[name], end = _read_tensor(file, name, dtype, shape, stop - begin), stop
        if end != size - start:
            raise Refused(f"it has {size - start - end:,} bytes that belong to no tensor")
    return text, tensors


def _read_header(file: BufferedReader, size: int) -> tuple[dict[str, Any], int]:
    """Return the header, and the offset of the bytes of the tensors."""
    if size < 8:
        raise Refused("it is empty" if size == 0 else "it is cut off")
    length = int.from_bytes(file.read(8), "little")
    if length > min(HEADER_LIMIT, size - 8):
        raise Refused(
            "it is cut off, or no safetensors file",
            why=f"its first eight bytes announce a header of {length:,} bytes; the file has {size:,}",
        )
    encoded = file.read(length)
    if len(encoded) != length:
        raise Refused("it is cut off")
    try:
        text = encoded.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused("it is not a safetensors file", why=f"its header is not text: {error.reason}") from error
    header = parse_json(text)
    if type(header) is not dict:
        raise Refused("it is not a safetensors file", why="its header is not a JSON object")
    return header, 8 + length


def _entry(item: tuple[str, Any]) -> tuple[str, torch.dtype, list[int], int, int]:
    """Return one entry of the header: name, dtype, shape, first byte and end."""
    name, entry = item
    if type(entry) is not dict or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise Refused(f"the entry of tensor {_shown(name)} is not one of dtype, shape and data_offsets")
    dtype = DTYPES.get(entry["dtype"]) if type(entry["dtype"]) is str else None
    if dtype is None:
        raise Refused(f"tensor {_shown(name)} has elements of an unknown type")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not are_sizes(shape):
        raise Refused(f"the shape of tensor {_shown(name)} is not a list of sizes")
    if type(offsets) is not list or list(map(type, offsets)) != [int, int]:
        raise Refused(f"tensor {_shown(name)} is at no place in the file")
    begin, end = offsets
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise Refused(f"tensor {_shown(name)} has another number of bytes than its shape takes")
    return name, dtype, shape, begin, end


def _shown(name: str) -> str:
    return ascii(name)[:80]


def are_sizes(value: Any) -> bool:
    """Return whether ``value`` is a list of numbers that can be sizes or strides of a tensor."""
    if type(value) is not list or len(value) > _MOST_DIMENSIONS:
        return False
    if not all(type(size) is int and 0 <= size < 1 << 63 for size in value):
        return False
    return math.prod(size for size in value if size) < 1 << 59


def _bytes(tensor: torch.Tensor) -> memoryview:
    array: Any = tensor.numpy()
    return memoryview(array)


def _read_tensor(file: BufferedReader, name: str, dtype: torch.dtype, shape: list[int], length: int) -> torch.Tensor:
    data = torch.empty(length, dtype=torch.uint8, device="cpu")
    if length and file.readinto(_bytes(data)) != length:
        raise Refused("it is cut off")
    if dtype is torch.bool and length and int(data.max()) > 1:
        raise Refused(f"tensor {_shown(name)} has truth values that are neither 0 nor 1")
    return data.view(dtype).reshape(shape)


def parse_json(text: str) -> Any:
    """Parse ``text`` as JSON, strictly.

    Raises:
        Refused: the text is not JSON, nests too deeply, repeats a key, or has a number that no program has.
    """
    # brackets are counted first: json recurses as deep as the interpreter allows, and its limit may be anything
    brackets = re.sub(r"[^\[\]{}]+", "", _STRING.sub("", text))
    if max(itertools.accumulate(map(_STEPS.__getitem__, brackets)), default=0) > _DEEPEST:
        raise Refused("its JSON nests too deeply", why=f"it has more than {_DEEPEST} levels")
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_int=_integer, parse_constant=_no_constant)
    except RecursionError:
        raise Refused("its JSON nests too deeply") from None
    except json.JSONDecodeError as error:
        raise Refused("its JSON is damaged", why=str(error)) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise Refused("its JSON has a key twice")
    return entries


def _integer(text: str) -> int:
    if len(text) > 20:
        raise Refused("its JSON has an integer of more than 64 bits")
    return int(text)


def _no_constant(text: str) -> Any:
    raise Refused(f"its JSON has the number {text}, which JSON does not have")
