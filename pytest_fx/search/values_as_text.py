"""Tensors as text that makes them again: values, dtype and strides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

_MOST_ELEMENTS = 64
"""The most elements of a tensor that is written element by element."""


@dataclass(frozen=True, slots=True)
class WrittenInputs:
    """The positional arguments of a call as Python."""

    text: str
    """An expression for a tuple; empty if some argument has no short text."""

    @classmethod
    def of(cls, arguments: tuple[Any, ...]) -> WrittenInputs:
        """Write arguments as text.

        >>> WrittenInputs.of((torch.tensor([1.0, float("nan")]), 2)).text
        "(torch.tensor([1.0, float('nan')]), 2)"
        """
        texts = [_written(value) for value in arguments]
        if None in texts:
            return cls("")
        return cls(f"({', '.join(map(str, texts))}{',' * (len(texts) == 1)})")


def _written(value: Any) -> str | None:
    if not isinstance(value, torch.Tensor):
        return repr(value) if isinstance(value, (bool, int, str, type(None))) else None
    is_plain = type(value) is torch.Tensor and value.layout is torch.strided and not value.is_complex()
    if not is_plain or value.numel() > _MOST_ELEMENTS or value.is_quantized:
        return None
    values = repr(value.tolist())
    for word in ("nan", "-inf", "inf"):
        values = values.replace(f"{word}", f"float('{word}')") if word != "inf" else _infinities(values)
    default = torch.tensor(value.tolist()).dtype
    dtype = "" if default is value.dtype and value.numel() else f", dtype={value.dtype}"
    text = f"torch.tensor({values}{dtype})"
    if not value.numel():
        return f"torch.empty({tuple(value.shape)}, dtype={value.dtype})"
    if value.is_contiguous():
        return text
    return f"torch.empty_strided({tuple(value.shape)}, {value.stride()}, dtype={value.dtype}).copy_({text})"


def _infinities(text: str) -> str:
    """Write ``inf`` that is not yet inside of ``float('-inf')`` as a call."""
    marked = text.replace("float('-inf')", "\0")
    return marked.replace("inf", "float('inf')").replace("\0", "float('-inf')")
