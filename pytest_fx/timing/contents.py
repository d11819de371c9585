"""What timed calls are given: in every call other contents, at addresses that stay."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence

import torch

from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.snapshot import is_strided

FEW_SETS = 5
"""Input sets that contents are made of, where they have floating-point tensors: one for each comparison of outputs."""
LARGEST_RING = 64 * 2**20
"""Bytes that the argument sets of one program's sample may take in all; there is one at least."""
CHANGES, CHANGES_OF_COMPARED = (1 / 500, 1 / 200), (1 / 60, 1 / 50)
"""How much nearer to zero the elements of one tensor are brought at most, in parts of them: from the least to the most.

Those of a call whose output is compared are others, so that the output of no other call is nearly its own."""
TRIED = 3
"""Contents of integers that a model is tried with, to see whether it accepts such."""
MOST_TRIES = 8
"""Contents of each kind among which one is looked for that no call has had."""
GOLDEN_RATIO = (5**0.5 - 1) / 2
"""Multiples of it, without their integer part, are all different and lie evenly."""


class Ring:
    """The argument sets that the calls of a sample take in turn."""

    def __init__(self, arguments: list[Arguments], tensors: list[list[torch.Tensor]] | None = None) -> None:
        """Take ``arguments``, whose tensors are written to from now on, and ``tensors`` of the same memory if known."""
        self.arguments = arguments
        self.calls = [(one.args, one.kwargs) for one in arguments]
        """Positional and keyword arguments of each call."""
        self.tensors = [_strided(one) for one in arguments] if tensors is None else tensors
        """The tensors of each call whose contents can be replaced; a program may give its own another shape."""

    def first(self, count: int) -> Ring:
        """Return a ring of the first ``count`` of its argument sets, the same tensors."""
        return Ring(self.arguments[:count], self.tensors[:count])

    def extend(self, other: Ring) -> None:
        """Add the argument sets of another ring."""
        self.arguments += other.arguments
        self.calls += other.calls
        self.tensors += other.tensors


class Contents:
    """Contents for calls, by number: those of one number are the same for both programs, those of two differ.

    They come from further input sets where there are such. Floating-point elements are also brought nearer to zero,
    each by its own part of at most 2 %, so that signs, zeros and ranges stay. Other tensors are as in some input set.
    Where there are no others, and one set only, these have their elements in another order, drawn anew in their range,
    or their rows in another order: whichever of these the model accepts.

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
        """Take where contents come from.

        Args:
            input_set: makes the arguments of a call, other ones for another number if there are others.
            accepts: says whether the model can be called with arguments.
        """
        self._input_set = input_set
        self.repeat = False
        """Whether some call was given contents that an earlier one had, as there were no others."""
        self._example = input_set(0)
        # Of numbers that nobody else asks for, other ones in each timing: nothing computed before is of any use.
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
        """One input set, as it is."""
        return self._example

    def fitting(self, iterations: int) -> int:
        """Return how many calls a sample may have, of at most ``iterations``, each with arguments of its own."""
        return max(1, min(iterations, LARGEST_RING // max(self._size, 1)))

    def ring(self, length: int) -> Ring:
        """Return as many argument sets, each with memory of its own; :meth:`fill` puts contents in."""
        return Ring([self._example.copies() for _ in range(length)])

    def fill(self, ring: Ring, number: int, compared: int | None = None) -> None:
        """Copy the contents ``number``, ``number + 1`` and so on in place into the tensors of ``ring``.

        If the output of the last call is to be compared, ``compared`` counts these: the next is of another input set.
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
        """Return contents that no other number has, as far as there are such."""
        if number not in self._variants:
            variants = range(1 + MOST_TRIES * len(self._orders))
            hashes = ((variant, hash_of(self._varied(number, variant))) for variant in variants)
            variant, digest = next((found for found in hashes if found[1] not in self._seen), (0, b""))
            self.repeat |= not digest
            self._variants[number] = variant
            self._seen.add(digest)
        return self._varied(number, self._variants[number])

    def _varied(self, number: int, variant: int) -> list[torch.Tensor]:
        """Return an input set, or from the first variant on what one of the orders makes of it."""
        base = self._other(number)
        if variant == 0:
            return base
        generator = torch.Generator().manual_seed((self._first + number) * 2**16 + variant)
        return self._orders[(variant - 1) % len(self._orders)](base, generator)

    def _is_accepted(self, order: Order, accepts: Callable[[Arguments], bool]) -> bool:
        """Return whether the model can be called with what ``order`` makes of its inputs."""
        if not self._size:
            return False
        for seed in range(TRIED):
            try:
                made = order(_strided(self._example), torch.Generator().manual_seed(seed))
                tried = Ring([self._example.copies()])
                for tensor, content in zip(tried.tensors[0], made, strict=True):
                    tensor.copy_(content)
                if not accepts(tried.arguments[0]):
                    return False
            except (RuntimeError, NotImplementedError):  # there are few operators for some dtypes
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
        """Return the tensors of another input set, or of the example where that is not of the same form."""
        other = self._input_set(self._first + number)
        return _strided(other if other.form == self._example.form else self._example)


def hash_of(tensors: Sequence[torch.Tensor]) -> bytes:
    """Return a hash of what tensors hold."""
    found = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        if tensor.numel():
            plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
            found.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return found.digest()


def _permuted(tensors: Sequence[torch.Tensor], generator: torch.Generator) -> list[torch.Tensor]:
    """Return the elements of each tensor in another order."""
    return [_taken(tensor.flatten(), generator).reshape(tensor.shape) for tensor in tensors]


def _drawn(tensors: Sequence[torch.Tensor], generator: torch.Generator) -> list[torch.Tensor]:
    """Return elements from the least to the largest of each tensor."""
    return [
        torch.randint(int(tensor.min()), int(tensor.max()) + 1, tensor.shape, generator=generator)
        .to(tensor.device, tensor.dtype)
        if tensor.numel()
        else tensor
        for tensor in tensors
    ]  # fmt: skip


def _by_rows(tensors: Sequence[torch.Tensor], generator: torch.Generator) -> list[torch.Tensor]:
    """Return the rows of all tensors in one other order, where they have equally many."""
    if len({tensor.shape[:1] for tensor in tensors}) != 1:
        raise NotImplementedError
    seed = int(torch.randint(2**31, (), generator=generator))
    return [_taken(tensor, torch.Generator().manual_seed(seed)) for tensor in tensors]


def _taken(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return tensor[torch.randperm(len(tensor), generator=generator).to(tensor.device)]


Order = Callable[[Sequence[torch.Tensor], torch.Generator], list[torch.Tensor]]
"""Makes other contents for tensors of integers, as a generator says."""
_ORDERS: tuple[Order, ...] = (_permuted, _drawn, _by_rows)


def _strided(arguments: Arguments) -> list[torch.Tensor]:
    """Return aliases of the tensors whose contents can be replaced."""
    return [tensor.detach() for tensor in arguments.tensors if is_strided(tensor)]


def _may_change(tensor: torch.Tensor) -> bool:
    computes = tensor.is_complex() or (tensor.is_floating_point() and tensor.element_size() > 1)
    return computes and tensor.numel() > 0


def _part(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor | None:
    """Return a random part of each element, 0 of those that are not finite; None if they have to stay as they are."""
    if not _may_change(tensor):
        return None
    parts = torch.rand(tensor.shape, generator=generator).to(tensor.device, tensor.real.dtype) * tensor
    return torch.where(tensor.isfinite(), parts, torch.zeros_like(parts))
