"""The inputs of timed calls: new contents in every call, at addresses that stay."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence

import torch

from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.snapshot import is_strided

FEW_SETS = 5
"""Input sets that contents are made from, if they have floating-point tensors: one for each comparison of outputs."""
LARGEST_RING = 64 * 2**20
"""The most bytes of all argument sets for one program's sample; there is always one set."""
CHANGES, CHANGES_OF_COMPARED = (1 / 500, 1 / 200), (1 / 60, 1 / 50)
"""The least and the largest share by which the elements of one tensor are brought nearer to zero at most.

Calls whose output is compared have larger shares, so that the output of no other call is nearly their own."""
TRIED = 3
"""The number of integer contents with which a model is tried, to see if it accepts them."""
MOST_TRIES = 8
"""The number of contents of each kind that are searched for new ones."""
GOLDEN_RATIO = (5**0.5 - 1) / 2
"""The fractional parts of its multiples are all different and evenly spread."""


class Ring:
    """The argument sets that the calls of a sample take in turn."""

    def __init__(self, arguments: list[Arguments], tensors: list[list[torch.Tensor]] | None = None) -> None:
        """Take ``arguments``, whose tensors are written to from now on, and ``tensors`` of the same memory if known."""
        self.arguments = arguments
        self.calls = [(call.args, call.kwargs) for call in arguments]
        """Positional and keyword arguments of each call."""
        self.tensors = [_strided(call) for call in arguments] if tensors is None else tensors
        """The tensors of each call whose contents can be replaced; a program may reshape its own references."""

    def first(self, count: int) -> Ring:
        """Return a ring of the first ``count`` of its argument sets, the same tensors."""
        return Ring(self.arguments[:count], self.tensors[:count])

    def extend(self, other: Ring) -> None:
        """Add the argument sets of another ring."""
        self.arguments += other.arguments
        self.calls += other.calls
        self.tensors += other.tensors


class Contents:
    """Contents for calls, by number: equal for both programs under one number, different under two.

    They come from further input sets, if there are any. Floating-point elements are also brought nearer to zero, each
    by its own share of at most 2 %, so that signs, zeros and ranges stay. Other tensors are as in some input set. If
    there is one input set only, and without floating-point tensors, their elements are permuted, or drawn again from
    their range, or their rows are permuted: whichever of these the model accepts.

    >>> contents = Contents(lambda number: Arguments((torch.ones(2), torch.arange(2))))
    >>> ring = contents.ring(1)
    >>> contents.fill(ring, 1)
    >>> ((floats, integers), _) = ring.calls[0]
    >>> bool((floats < 1).all()), integers
    (True, tensor([0, 1]))
    """

    def __init__(
        self, input_set: Callable[[int], Arguments], accepts: Callable[[Arguments], bool] = lambda arguments: True
    ) -> None:
        """Take the source of the contents.

        Args:
            input_set: makes the arguments of a call, different ones for each number if possible.
            accepts: returns whether the model can be called with these arguments.
        """
        self._input_set = input_set
        self.repeat = False
        """True if some call got the contents of an earlier one, since there were no others."""
        self._example = input_set(0)
        # New numbers in each timing: results computed before are of no use.
        chance = random.SystemRandom()
        self._first, self._phase = chance.randrange(2**20, 2**30), chance.random()
        example = _strided(self._example)
        self._size = sum(tensor.nbytes for tensor in example)
        self._changeable = any(_may_change(tensor) for tensor in example)
        generator = torch.Generator().manual_seed(self._first)
        bases = [self._other(number) for number in range(self._set_count() if self._changeable else 0)]
        self._bases = [(base, [_part(tensor, generator) for tensor in base]) for base in bases]
        self._seen, self._variants = {hash_of(example)}, dict[int, int]()
        self._orders = [] if self._changeable else [order for order in _ORDERS if self._is_accepted(order, accepts)]

    @property
    def example(self) -> Arguments:
        """The first input set, unchanged."""
        return self._example

    def fitting(self, iterations: int) -> int:
        """Return the number of calls in a sample, at most ``iterations``, if each has arguments of its own."""
        return max(1, min(iterations, LARGEST_RING // max(self._size, 1)))

    def ring(self, length: int) -> Ring:
        """Return a ring of ``length`` argument sets, each with memory of its own; :meth:`fill` sets their contents."""
        return Ring([self._example.copies() for _ in range(length)])

    def fill(self, ring: Ring, number: int, compared: int | None = None) -> None:
        """Copy the contents ``number``, ``number + 1`` and so on in place into the tensors of ``ring``.

        If the output of the last call is compared, ``compared`` is the number of comparisons so far: each uses another
        input set.
        """
        last = len(ring.tensors) - 1
        with torch.no_grad():
            for offset, tensors in enumerate(ring.tensors):
                if not self._changeable:
                    self._copy(tensors, number + offset)
                elif compared is not None and offset == last:
                    self._change(tensors, number + offset, compared, CHANGES_OF_COMPARED)
                else:
                    self._change(tensors, number + offset, number + offset, CHANGES)

    def _copy(self, tensors: Sequence[torch.Tensor], number: int) -> None:
        if tensors:
            for tensor, content in zip(tensors, self._unseen(number), strict=True):
                tensor.copy_(content)

    def _unseen(self, number: int) -> list[torch.Tensor]:
        """Return contents that no other number has, as far as possible."""
        if number not in self._variants:
            variants = range(1 + MOST_TRIES * len(self._orders))
            hashes = ((variant, hash_of(self._varied(number, variant))) for variant in variants)
            variant, digest = next((pair for pair in hashes if pair[1] not in self._seen), (0, b""))
            self.repeat |= not digest
            self._variants[number] = variant
            self._seen.add(digest)
        return self._varied(number, self._variants[number])

    def _varied(self, number: int, variant: int) -> list[torch.Tensor]:
        """Return an input set, unchanged for variant 0, otherwise changed by one of the orders."""
        base = self._other(number)
        if variant == 0:
            return base
        generator = torch.Generator().manual_seed((self._first + number) * 2**16 + variant)
        return self._orders[(variant - 1) % len(self._orders)](base, generator)

    def _is_accepted(self, order: Order, accepts: Callable[[Arguments], bool]) -> bool:
        """Return whether the model can be called with inputs changed by ``order``."""
        if not self._size:
            return False
        for seed in range(TRIED):
            try:
                changed = order(_strided(self._example), torch.Generator().manual_seed(seed))
                tried = Ring([self._example.copies()])
                for tensor, content in zip(tried.tensors[0], changed, strict=True):
                    tensor.copy_(content)
                if not accepts(tried.arguments[0]):
                    return False
            except (RuntimeError, NotImplementedError):  # some dtypes have few operators
                return False
        return True

    def _change(
        self, tensors: Sequence[torch.Tensor], number: int, input_set: int, changes: tuple[float, float]
    ) -> None:
        base, parts = self._bases[input_set % len(self._bases)]
        share = (self._phase + number * GOLDEN_RATIO) % 1
        change = changes[0] + share * (changes[1] - changes[0])
        for tensor, content, part in zip(tensors, base, parts, strict=True):
            if part is None:
                tensor.copy_(content)
            else:
                torch.sub(content, part, alpha=change, out=tensor)

    def _set_count(self) -> int:
        return max(1, min(FEW_SETS, LARGEST_RING // max(2 * self._size, 1)))

    def _other(self, number: int) -> list[torch.Tensor]:
        """Return the tensors of another input set, or of the example if that has another form."""
        other = self._input_set(self._first + number)
        return _strided(other if other.form == self._example.form else self._example)


def hash_of(tensors: Sequence[torch.Tensor]) -> bytes:
    """Return a hash of the contents of tensors."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        if tensor.numel():
            plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
            digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()


def _permuted(tensors: Sequence[torch.Tensor], generator: torch.Generator) -> list[torch.Tensor]:
    """Return each tensor with its elements permuted."""
    return [_shuffled(tensor.flatten(), generator).reshape(tensor.shape) for tensor in tensors]


def _drawn(tensors: Sequence[torch.Tensor], generator: torch.Generator) -> list[torch.Tensor]:
    """Return tensors of random elements between the least and the largest of each."""
    return [
        torch.randint(int(tensor.min()), int(tensor.max()) + 1, tensor.shape, generator=generator)
        .to(tensor.device, tensor.dtype)
        if tensor.numel()
        else tensor
        for tensor in tensors
    ]  # fmt: skip


def _by_rows(tensors: Sequence[torch.Tensor], generator: torch.Generator) -> list[torch.Tensor]:
    """Return tensors with their rows permuted in the same way, if they have equally many."""
    if len({tensor.shape[:1] for tensor in tensors}) != 1:
        raise NotImplementedError
    seed = int(torch.randint(2**31, (), generator=generator))
    return [_shuffled(tensor, torch.Generator().manual_seed(seed)) for tensor in tensors]


def _shuffled(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return tensor[torch.randperm(len(tensor), generator=generator).to(tensor.device)]


Order = Callable[[Sequence[torch.Tensor], torch.Generator], list[torch.Tensor]]
"""A function that makes other contents for integer tensors, from a random generator."""
_ORDERS: tuple[Order, ...] = (_permuted, _drawn, _by_rows)


def _strided(arguments: Arguments) -> list[torch.Tensor]:
    """Return aliases of the tensors whose contents can be replaced."""
    return [tensor.detach() for tensor in arguments.tensors if is_strided(tensor)]


def _may_change(tensor: torch.Tensor) -> bool:
    computes = tensor.is_complex() or (tensor.is_floating_point() and tensor.element_size() > 1)
    return computes and tensor.numel() > 0


def _part(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor | None:
    """Return a random share of each element, 0 for those that are not finite; None if the tensor must not change."""
    if not _may_change(tensor):
        return None
    parts = torch.rand(tensor.shape, generator=generator).to(tensor.device, tensor.real.dtype) * tensor
    return torch.where(tensor.isfinite(), parts, torch.zeros_like(parts))
