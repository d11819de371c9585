"""Arguments of a call, and the state to fix so that two calls of a program give the same output."""

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
"""Precisions of float32 products below that of float32."""
SEED = 0
"""The random seed of every call, and of every capture."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call."""

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
        """Call ``program`` with these arguments, and return its output."""
        return program(*self.args, **self.kwargs)

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Arguments:
        """Return arguments with every tensor, at any depth, replaced by ``function`` of it."""
        return Arguments(map_tensors(function, self.args), map_tensors(function, self.kwargs))

    def copies(self, dtype: torch.dtype | None = None) -> Arguments:
        """Return copies that a program may write to; floating-point tensors in ``dtype`` if it is given.

        Elements that share memory do so in the copies, too: of an expanded tensor, or of two views of one.
        """
        memories: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        spans = self.shared_spans

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            span = spans.get(id(tensor))
            if span is None:
                return _copied(converted(tensor, dtype).detach())
            key = tensor.untyped_storage().data_ptr() + span.start * tensor.element_size(), tensor.dtype
            if key not in memories:
                memory = tensor.detach().as_strided((len(span),), (1,), span.start)
                memories[key] = converted(memory, dtype).clone()
            return memories[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - span.start)

        return self.map(copied)

    @property
    def shared_spans(self) -> dict[int, range]:
        """By identity of a tensor whose elements share memory, the elements from the first to the last of all sharers.

        >>> tensor = torch.ones(4)
        >>> [*Arguments((tensor[:3], tensor[2:])).shared_spans.values()], Arguments((tensor, tensor + 1)).shared_spans
        ([range(0, 4), range(0, 4)], {})
        """
        groups: dict[tuple[int, torch.dtype], list[tuple[range, torch.Tensor]]] = {}
        for tensor in self.tensors:
            if is_strided(tensor) and tensor.numel():
                key = tensor.untyped_storage().data_ptr(), tensor.dtype
                groups.setdefault(key, []).append((_extent(tensor), tensor))
        spans: dict[int, range] = {}
        for group in groups.values():
            sharers: list[torch.Tensor] = []
            whole = range(0)
            for extent, tensor in sorted(group, key=lambda each: (each[0].start, each[0].stop)):
                if extent.start >= whole.stop:
                    sharers, whole = [], extent
                sharers.append(tensor)
                whole = range(whole.start, max(whole.stop, extent.stop))
                if len(sharers) > 1 or overlaps(tensor):
                    spans.update((id(each), whole) for each in sharers)
        return spans

    def for_input_set(self, number: int) -> Arguments:
        """Return these arguments for the first input set, and shrunk ones for each later one."""
        return self.shrunk(seed=number) if number else self

    def shrunk(self, seed: int) -> Arguments:
        """Return arguments whose floating-point elements are each scaled by a random factor between 0.98 and 1.

        Tensors that are not strided stay as they are. Signs, zeros and ranges stay, so that a program which accepts
        the original accepts these.
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
        """A key of all but the values of strided tensors. Arguments of equal form can be copied into one another."""
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
        return [leaf for _, leaf in leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)]


def _extent(tensor: torch.Tensor) -> range:
    """Return the places in memory from the first element of a tensor to the last."""
    first, sizes = int(tensor.storage_offset()), zip(tensor.shape, tensor.stride(), strict=True)
    return range(first, first + 1 + sum((size - 1) * stride for size, stride in sizes))


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of the tensor with the same storage offset."""
    if not is_strided(tensor) or not tensor.storage_offset():
        return tensor.clone()
    return behind(tensor, int(tensor.storage_offset()))


def behind(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """Return a copy with the same strides and a storage offset of ``offset``; the elements before it are zero."""
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
    """Return a floating-point tensor in ``dtype``, a complex one with parts in ``dtype``, and any other unchanged.

    An MKL-DNN tensor is returned unchanged, too, since MKL-DNN has few dtypes.

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
    """Make ``dtype`` the default dtype inside the block if PyTorch allows it, and compute float32 in full precision.

    PyTorch lets cuDNN compute in TF32, whose mantissa has 10 bits, and other products if the user allows it. Eager mode
    would then be a thousand times as far from the exact result, and so might a transform.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype if dtype in (torch.float32, torch.float64) else before)
    try:
        with tf32_in_cudnn(allowed=False), _full_precision_products():
            yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def tf32_in_cudnn(*, allowed: bool) -> Generator[None]:
    """Allow or forbid cuDNN to compute float32 convolutions and recurrent layers in TF32 inside the block."""
    before = [(kind, _C._get_fp32_precision_getter("cuda", kind)) for kind in ("conv", "rnn")]
    try:
        switch = _C._get_cudnn_allow_tf32()
    except RuntimeError:  # the two were set separately, to precisions that one flag cannot express
        switch = allowed
    try:
        _C._set_cudnn_allow_tf32(allowed)  # not by a newer setter, after which torch.export refuses to read this
        for kind, _ in before:
            if not allowed and _C._get_fp32_precision_getter("cuda", kind) == "tf32":  # the generic setting
                _C._set_fp32_precision_setter("cuda", kind, "ieee")
        yield
    finally:
        _C._set_cudnn_allow_tf32(switch)
        for kind, precision in before:
            _C._set_fp32_precision_setter("cuda", kind, precision)


def float32_matmul_precision() -> str | None:
    """Return ``torch.get_float32_matmul_precision()``; None if backends have precisions that it cannot express."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


@contextmanager
def _full_precision_products() -> Generator[None]:
    """Compute float32 matrix products in float32 inside the block, even if the user allows a lower precision."""
    before = [(backend, _C._get_fp32_precision_getter(backend, "matmul")) for backend in ("cuda", "mkldnn")]
    if not any(precision in _COARSE for _, precision in before):
        yield
        return
    common_precision = float32_matmul_precision()
    try:
        if common_precision is not None:
            torch.set_float32_matmul_precision("highest")  # torch.compile reads it
        for backend, _ in before:
            if _C._get_fp32_precision_getter(backend, "matmul") in _COARSE:
                _C._set_fp32_precision_setter(backend, "matmul", "ieee")
        yield
    finally:
        if common_precision is not None:
            torch.set_float32_matmul_precision(common_precision)
        for backend, precision in before:
            _C._set_fp32_precision_setter(backend, "matmul", precision)


@contextmanager
def threads(count: int | None) -> Generator[None]:
    """Let PyTorch compute with ``count`` threads inside the block; None keeps the present number."""
    before = torch.get_num_threads()
    if count is not None and count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


@contextmanager
def same_random_numbers(
    arguments: Arguments | None = None, devices: Iterable[torch.device] = ()
) -> Generator[Callable[[], bool]]:
    """Seed random numbers inside the block, on the CPU and the devices of ``arguments``; restore the state afterwards.

    ``devices`` are further ones: a model with parts on several devices draws on those.

    Yield a function that returns whether any number was drawn so far. ``torch.manual_seed`` would seed the generators
    of all devices, which takes longer than a run of a small program.
    """
    tensors = [] if arguments is None else arguments.tensors
    cuda = {device for device in (*(tensor.device for tensor in tensors), *devices) if device.type == "cuda"}
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
