"""What a program is called with, and what holds still so that two calls of it give the same output."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_fx.harness.snapshot import is_strided, overlaps
from pytest_fx.harness.structure import leaves, map_tensors, skeleton

_C: Any = torch._C
_equal = torch.equal  # a program may put another function in its place
_COARSE = ("tf32", "bf16")
"""Precisions of products of float32 that are none of float32."""
SEED = 0
"""The random seed of every call, and of every capture."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a program is called with."""

    args: tuple[Any, ...] = ()
    """Positional arguments."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the positional arguments: ``model(*arguments)``, or with keywords ``model(*arguments, **arguments)``.

        >>> [*Arguments((1, 2), {"scale": 3})], {**Arguments((1, 2), {"scale": 3})}
        ([1, 2], {'scale': 3})
        """
        return iter(self.args)

    def keys(self) -> Iterable[str]:
        """Return the names of the keyword arguments: ``model(**arguments)``."""
        return self.kwargs.keys()

    def __getitem__(self, key: int | str) -> Any:
        return self.kwargs[key] if isinstance(key, str) else self.args[key]

    def call(self, program: Callable[..., Any]) -> Any:
        """Return what ``program`` returns when it is called with all of them."""
        return program(*self.args, **self.kwargs)

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Arguments:
        """Return arguments with every tensor, at any depth, replaced by ``function`` of it."""
        return Arguments(map_tensors(function, self.args), map_tensors(function, self.kwargs))

    def copies(self, dtype: torch.dtype | None = None) -> Arguments:
        """Return copies that a program may write to; floating-point tensors in ``dtype`` if it is given."""
        return self.map(lambda tensor: _copied(converted(tensor, dtype).detach()))

    def shrunk(self, seed: int) -> Arguments:
        """Return arguments whose floating-point elements are up to 2 % nearer to zero, each by its own part.

        Tensors that are not strided stay as they are.

        Signs, zeros and ranges stay, so that a program which accepts the original accepts these.
        """
        generator = torch.Generator().manual_seed(seed)

        def shrink(tensor: torch.Tensor) -> torch.Tensor:
            if not (tensor.is_floating_point() and is_strided(tensor)):
                return tensor
            factor = 1 - torch.rand(tensor.shape, generator=generator, dtype=torch.float64) / 50
            return (tensor.to(torch.float64) * factor.to(tensor.device)).to(tensor.dtype)

        return self.map(shrink)

    @property
    def samples(self) -> int | None:
        """The size of the first dimension that all tensors share; None if they share none."""
        sizes = {tensor.size(0) for tensor in self.tensors if tensor.dim()}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def form(self) -> Any:
        """Return what two of them share if one can be copied into the other: all but what strided tensors hold."""
        values = (self.args, self.kwargs)
        parts = [
            (leaf.shape, leaf.dtype, leaf.device, leaf.layout) if isinstance(leaf, torch.Tensor) and is_strided(leaf)
            else "tensor" if isinstance(leaf, torch.Tensor) else repr(leaf)
            for _, leaf in leaves(values)
        ]  # fmt: skip
        return skeleton(values), parts

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Every tensor among the arguments, at any depth."""
        found = leaves((self.args, self.kwargs))
        return [leaf for _, leaf in found if isinstance(leaf, torch.Tensor)]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that lies behind as many elements of its memory as the tensor does."""
    if not is_strided(tensor) or not tensor.storage_offset():
        return tensor.clone()
    return behind(tensor, int(tensor.storage_offset()))


def behind(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """A copy with the same strides that begins behind ``offset`` elements of its memory; these are zero."""
    if overlaps(tensor):
        return tensor.clone()
    count = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = tensor.new_zeros(offset + max(count, 0))
    return memory.as_strided(tensor.shape, tensor.stride(), offset).copy_(tensor)


def places(arguments: Arguments) -> dict[str, torch.Tensor]:
    """Return the tensors among ``arguments`` by their places: ``[0]``, or ``['mask']`` where passed by name."""
    return {
        place: value
        for part in (arguments.args, arguments.kwargs)
        for place, value in leaves(part)
        if isinstance(value, torch.Tensor)
    }


def converted(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Return a floating-point tensor in ``dtype``, a complex one in parts of ``dtype``, and any other as it is.

    So is one of MKL-DNN, which has few dtypes.

    >>> converted(torch.zeros(1, dtype=torch.complex64), torch.float64).dtype
    torch.complex128
    """
    if dtype is not None and tensor.is_floating_point() and not tensor.is_mkldnn:
        return tensor.to(dtype)
    if dtype in (torch.float32, torch.float64) and tensor.is_complex():
        return tensor.to(torch.complex64 if dtype == torch.float32 else torch.complex128)
    return tensor


@contextmanager
def default_dtype(dtype: torch.dtype) -> Generator[None]:
    """Compute in ``dtype``: what a program creates without saying a dtype has it, as far as PyTorch allows it.

    And float32 is that: PyTorch lets cuDNN compute in TF32, whose mantissa has 10 bits, and other products where the
    user allows it, so that eager mode would be a thousand times as far from the truth, and a transform might be, too.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype if dtype in (torch.float32, torch.float64) else before)
    try:
        with tf32_in_cudnn(allowed=False), _whole_matrix_products():
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def tf32_in_cudnn(*, allowed: bool) -> Generator[None]:
    """Let cuDNN compute convolutions and recurrent layers of float32 in TF32 inside the block, or not."""
    before = [(kind, _C._get_fp32_precision_getter("cuda", kind)) for kind in ("conv", "rnn")]
    try:
        switch = _C._get_cudnn_allow_tf32()
    except RuntimeError:  # the two have been set each by itself, in a way that this has no word for
        switch = allowed
    try:
        _C._set_cudnn_allow_tf32(allowed)  # and by no newer switch, after which torch.export refuses to read this one
        for kind, _ in before:
            if not allowed and _C._get_fp32_precision_getter("cuda", kind) == "tf32":  # as torch.backends in general is
                _C._set_fp32_precision_setter("cuda", kind, "ieee")
        yield
    finally:
        _C._set_cudnn_allow_tf32(switch)
        for kind, precision in before:
            _C._set_fp32_precision_setter("cuda", kind, precision)


def float32_matmul_precision() -> str | None:
    """``torch.get_float32_matmul_precision()``; None where it was set by backend, in a way that has no word there."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


@contextmanager
def _whole_matrix_products() -> Generator[None]:
    """Compute matrix products of float32 in float32 inside the block, also where the user allows less."""
    before = [(backend, _C._get_fp32_precision_getter(backend, "matmul")) for backend in ("cuda", "mkldnn")]
    if not any(precision in _COARSE for _, precision in before):
        yield
        return
    known = float32_matmul_precision()
    try:
        if known is not None:
            torch.set_float32_matmul_precision("highest")  # which torch.compile reads
        for backend, _ in before:
            if _C._get_fp32_precision_getter(backend, "matmul") in _COARSE:
                _C._set_fp32_precision_setter(backend, "matmul", "ieee")
        yield
    finally:
        if known is not None:
            torch.set_float32_matmul_precision(known)
        for backend, precision in before:
            _C._set_fp32_precision_setter(backend, "matmul", precision)


@contextmanager
def threads(count: int | None) -> Generator[None]:
    """Let PyTorch compute with ``count`` threads inside the block, or with as many as it does if that is None."""
    before = torch.get_num_threads()
    if count is not None and count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


@contextmanager
def same_random_numbers(arguments: Arguments | None = None) -> Generator[Callable[[], bool]]:
    """Draw the same numbers inside the block each time, where ``arguments`` are too, and leave the global state alone.

    What it yields tells whether any was drawn so far.
    ``torch.manual_seed`` seeds the generators of all devices, which takes longer than to run a small program.
    """
    tensors = [] if arguments is None else arguments.tensors
    cuda = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    generators = [torch.default_generator, *(torch.cuda.default_generators[device.index] for device in cuda)]
    states = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(SEED)
    seeded = [generator.get_state() for generator in generators]
    try:
        yield lambda: any(
            not _equal(generator.get_state(), state) for generator, state in zip(generators, seeded, strict=True)
        )
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
