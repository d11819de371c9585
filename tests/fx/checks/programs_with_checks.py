"""Programs whose ``assert`` statements must reach the byte code as written, which pytest changes in test files."""

from __future__ import annotations

import torch


class Compound(torch.nn.Module):
    strict = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 2 and x.dim() != 3:
            raise ValueError("two or three dimensions")
        assert x.dtype == torch.float32 or x.ndim == 3, "wide only in 3-D"
        if x.dim() == 3 and self.strict:
            raise ValueError("strict")
        if x.dim() == 2 and not self.strict:
            raise ValueError("lax")
        return x


def formatted(x: torch.Tensor, y: torch.Tensor) -> None:
    assert x.shape[1] == 3, f"expected 3 channels, got {x.shape[1]} of {x.shape}"


def sizes_by_name(x: torch.Tensor, y: torch.Tensor) -> None:
    _, channels, *_ = x.shape[0], x.shape[1]
    assert channels == 3, f"got {channels}"


def raised(x: torch.Tensor, y: torch.Tensor) -> None:
    if x.dim() != 4:
        raise ValueError(f"expected 4D input (got {x.dim()}D input)")


def percent(x: torch.Tensor, y: torch.Tensor) -> None:
    if x.dim() != 4:
        raise ValueError("expected %dD, 100%% sure, got %3dD, %s and %.2f" % (4, x.dim(), x.dtype, y.max()))  # noqa: UP031


def percent_of_one(x: torch.Tensor, y: torch.Tensor) -> None:
    if x.shape[-1] != y.shape[0]:
        raise ValueError("got %r" % y.shape[0])  # noqa: UP031


def format_method(x: torch.Tensor, y: torch.Tensor) -> None:
    if y.min() < 0:
        raise ValueError(f"got {y.min():.3f} in {y.dtype} {{}} of {y.shape}")


def concatenated(x: torch.Tensor, y: torch.Tensor) -> None:
    assert x.ndim == 4, "got " + str(x.ndim) + " for " + repr(y.shape)


def several_arguments(x: torch.Tensor, y: torch.Tensor) -> None:
    if x.dim() != 4:
        raise ValueError("wrong number of dimensions", x.dim(), x.shape)


def key_error(x: torch.Tensor, y: torch.Tensor) -> None:
    if x.dim() != 4:
        raise KeyError(f"{x.dim()}")


class SizeError(ValueError):
    """An exception with Python's own handling of its arguments."""


def own_exception(x: torch.Tensor, y: torch.Tensor) -> None:
    if x.shape[1] != 3:
        raise SizeError(x.shape[1], "is not", 3)


def joined(x: torch.Tensor, y: torch.Tensor) -> None:
    if x.shape[1] != 3:
        raise ValueError(" ".join(("got", str(x.shape[1]), "of {} {!r}".format(x.ndim, "ranks"))))


def message_set_before(x: torch.Tensor, y: torch.Tensor) -> None:
    if x.shape[1] != 3:
        shape = x.shape[1:]
        message = f"got {shape}"
        raise ValueError(message)


def containers(x: torch.Tensor, y: torch.Tensor) -> None:
    size = (x.shape[2], x.shape[3])
    if x.shape[-1] != y.shape[0]:
        raise ValueError(f"{size} and {(1, y.size(0))}, {tuple(x.shape)}, {list(y.shape)}, {len(y)}, {x.size(-1)}")


def braces(x: torch.Tensor, y: torch.Tensor) -> None:
    assert x.ndim == 4, f"{{x}} of {x.ndim}: {'{0}'}"


def value_itself(x: torch.Tensor, y: torch.Tensor) -> None:
    assert y.sum() > 0, y


def named_expression(x: torch.Tensor, y: torch.Tensor) -> None:
    assert x.ndim == 4, f"{x.ndim=}"


def called(x: torch.Tensor, y: torch.Tensor) -> None:
    torch._assert(x.shape[1] == 3, f"got {x.shape[1]}, {x.dtype} and {y.shape}: {{}}")


def called_by_name(x: torch.Tensor, y: torch.Tensor) -> None:
    torch._assert(condition=x.shape[1] == 3, message="got " + str(x.shape[1]))


def of_a_size_asked_for_before(x: torch.Tensor, y: torch.Tensor) -> None:
    shape = x.shape
    if x.dim() != 4:
        raise ValueError(f"got {shape[0]}")
    x.view(shape[0], -1)


FORMATTED = [
    formatted, sizes_by_name, raised, percent, percent_of_one, format_method, concatenated, several_arguments,
    key_error, own_exception, joined, message_set_before, containers, braces, value_itself, named_expression, called,
    called_by_name, of_a_size_asked_for_before,
]  # fmt: skip
"""Checks of ``x``, 2x3x4x5, and ``y``, 5 positive numbers, whose messages name the values."""
