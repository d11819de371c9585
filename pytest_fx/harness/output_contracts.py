"""Contracts of single outputs: flipped labels, distributions, sets, boxes, masked elements, and one for each output."""

from __future__ import annotations

import abc
import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from fx.argument_types import checked
from fx.arguments import refusal, shown
from fx.passes import Approximate, Contract, close
from pytest_fx.errors import CannotLoadError, InputError
from pytest_fx.harness.equality import Leaf
from pytest_fx.harness.run import Part, Run
from pytest_fx.harness.structure import leaves


class OutputContract(Contract, abc.ABC):
    """A promise about the tensors at one place of the output, on all input sets together."""

    @abc.abstractmethod
    def __str__(self) -> str: ...

    @abc.abstractmethod
    def broken(self, pairs: Sequence[Leaf]) -> str | None:
        """Return the difference that breaks the promise, in words; None if it is kept.

        Args:
            pairs: eager's tensor and the program's, for each input set.
        """


@dataclass(frozen=True, slots=True)
class Flipped(OutputContract):
    """At most a share of the elements differ, such as classes or indices: ``{"labels": flipped(0.001)}``."""

    share: float
    """The largest allowed share, from 0 to 1."""

    def __post_init__(self) -> None:
        """Refuse a share outside of [0, 1]."""
        _require_number("flipped", "share", self.share, 0, 1)

    def __str__(self) -> str:
        return f"flipped({self.share:g})"

    def broken(self, pairs: Sequence[Leaf]) -> str | None:
        """Count the elements that are not equal; NaN equals NaN."""
        differing = [pair.bits_differ for pair in pairs]
        count, total = sum(int(each.sum()) for each in differing), sum(each.numel() for each in differing)
        if count <= self.share * total:
            return None
        worst = next(each for each in differing if bool(each.any())).nonzero()[0].tolist()
        return f"{count:,} of {total:,} elements differ, the first at {worst}"


@dataclass(frozen=True, slots=True)
class SameDistribution(OutputContract):
    """The elements of both are samples of one distribution, by the two-sample test of Kolmogorov and Smirnov.

    The elements must be independent of each other. Those of all input sets are one sample.
    """

    level: float = 1e-3
    """The probability of a false alarm for equal distributions."""

    def __post_init__(self) -> None:
        """Refuse a level that is no probability."""
        _require_number("same_distribution", "level", self.level, 0, 1)

    def __str__(self) -> str:
        return f"same_distribution(level={self.level:g})"

    def broken(self, pairs: Sequence[Leaf]) -> str | None:
        """Compare the largest distance of the two distribution functions with its limit under equal distributions."""
        first, second = (torch.cat([tensor.detach().flatten().double() for tensor in side]) for side in (
            [pair.expected for pair in pairs], [pair.actual for pair in pairs]
        ))  # fmt: skip
        if not len(first) or not len(second):
            return None
        if bool((first.isnan().sum() > 0) | (second.isnan().sum() > 0)):
            return "a sample contains NaN"
        ends = torch.cat([first, second]).sort().values
        ranks = [torch.searchsorted(side.sort().values, ends, right=True) / len(side) for side in (first, second)]
        distance = float((ranks[0] - ranks[1]).abs().max())
        size = len(first) * len(second) / (len(first) + len(second))
        probability = _kolmogorov((math.sqrt(size) + 0.12 + 0.11 / math.sqrt(size)) * distance)
        if probability >= self.level:
            return None
        return (
            f"the distribution functions are {distance:.3g} apart at most, which has a probability of "
            f"{probability:.2g} for samples of {len(first):,} and {len(second):,} elements"
        )


def _kolmogorov(x: float) -> float:
    """Return the probability that Kolmogorov's statistic exceeds ``x``.

    The series, and the correction for small samples in the argument, are those of Stephens (1970).
    """
    if x < 0.2:
        return 1.0
    return min(1.0, max(0.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * x) ** 2) for k in range(1, 101))))


@dataclass(frozen=True, slots=True)
class TopK(OutputContract):
    """The ``k`` largest elements along the last dimension are at the same places, up to ties."""

    k: int
    """The number of largest elements."""
    ties: float = 1e-5
    """Relative distance from eager's smallest chosen element within which another element may be chosen instead."""

    def __post_init__(self) -> None:
        """Refuse a number of elements below 1."""
        _require_number("top_k", "k", self.k, 1, math.inf)
        _require_number("top_k", "ties", self.ties, 0, math.inf)

    def __str__(self) -> str:
        return f"top_k({self.k}, ties={self.ties:g})"

    def broken(self, pairs: Sequence[Leaf]) -> str | None:
        """Look up eager's scores at the places that the program chooses."""
        wrong = total = 0
        example = ""
        for pair in pairs:
            if not pair.expected.dim() or pair.expected.shape[-1] < self.k:
                return f"it has the shape {list(pair.expected.shape)}, without {self.k} elements in a row"
            scores, chosen = pair.expected.double(), pair.actual.topk(self.k, -1).indices
            least = scores.topk(self.k, -1).values[..., -1:]
            lower = scores.gather(-1, chosen) < least - self.ties * least.abs()
            rows = lower.any(-1)
            wrong, total = wrong + int(rows.sum()), total + rows.numel()
            if not example and bool(rows.any()):
                at = lower.nonzero()[0].tolist()
                example = f", first in row {at[:-1]}: the program chooses {int(chosen[tuple(at)])}"
        return f"{wrong:,} of {total:,} rows have another top {self.k}{example}" if wrong else None


@dataclass(frozen=True, slots=True)
class SameSet(OutputContract):
    """Rows along the last dimension have the same elements in any order, such as indices of neighbours."""

    def __str__(self) -> str:
        return "same_set()"

    def broken(self, pairs: Sequence[Leaf]) -> str | None:
        """Compare sorted rows."""
        rows = [
            (pair.expected.sort(-1).values != pair.actual.sort(-1).values).any(-1) for pair in pairs
            if pair.expected.dim()
        ]  # fmt: skip
        wrong, total = sum(int(each.sum()) for each in rows), sum(each.numel() for each in rows)
        return f"{wrong:,} of {total:,} rows have other elements" if wrong else None


@dataclass(frozen=True, slots=True)
class MatchedBoxes(OutputContract):
    """Boxes ``(x1, y1, x2, y2)`` overlap one to one, in any order."""

    overlap: float
    """The least intersection over union of two matched boxes."""
    unmatched: float = 0.0
    """The largest allowed share of boxes without a partner."""

    def __post_init__(self) -> None:
        """Refuse shares outside of [0, 1]."""
        _require_number("matched_boxes", "overlap", self.overlap, 0, 1)
        _require_number("matched_boxes", "unmatched", self.unmatched, 0, 1)

    def __str__(self) -> str:
        return f"matched_boxes({self.overlap:g}, unmatched={self.unmatched:g})"

    def broken(self, pairs: Sequence[Leaf]) -> str | None:
        """Match the pair with the largest overlap first."""
        lost = total = 0
        for pair in pairs:
            if pair.expected.shape[-1:] != (4,) or pair.expected.dim() < 2:
                return f"it has the shape {list(pair.expected.shape)}, not [..., boxes, 4]"
            images = (side.double().reshape(-1, *side.shape[-2:]) for side in (pair.expected, pair.actual))
            for expected, actual in zip(*images, strict=True):
                lost += len(expected) - self._matched(expected, actual)
                total += len(expected)
        return f"{lost:,} of {total:,} boxes have no partner" if lost > self.unmatched * total else None

    def _matched(self, expected: torch.Tensor, actual: torch.Tensor) -> int:
        overlaps = intersection_over_union(expected, actual)
        count = 0
        while overlaps.numel() and float(overlaps.max()) >= self.overlap:
            row, column = divmod(int(overlaps.argmax()), overlaps.shape[1])
            overlaps[row], overlaps[:, column] = -1.0, -1.0
            count += 1
        return count


def intersection_over_union(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the overlap of each box of ``first`` with each of ``second``; 1 for two equal boxes without an area.

    >>> intersection_over_union(torch.tensor([[0.0, 0, 2, 2]]), torch.tensor([[0.0, 0, 2, 1], [3, 3, 4, 4]]))
    tensor([[0.5000, 0.0000]])
    """
    low = torch.maximum(first[:, None, :2], second[None, :, :2])
    high = torch.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(-1) for boxes in (first, second)]
    union = areas[0][:, None] + areas[1][None] - shared
    same = (first[:, None] == second[None]).all(-1).to(first.dtype)
    return torch.where(union > 0, shared / union.clamp(min=torch.finfo(first.dtype).tiny), same)


@dataclass(frozen=True, slots=True)
class Masked(Contract):
    """A contract on the elements of an output that a mask selects; the others may have any value."""

    contract: Contract
    """The promise about the selected elements."""
    mask: str | Callable[..., torch.Tensor]
    """The mask: the place of a tensor of the inputs, or a function of the model's tensors."""

    def __str__(self) -> str:
        where = self.mask if isinstance(self.mask, str) else getattr(self.mask, "__name__", "a mask")
        return f"masked({self.contract}, {where!r})"


@dataclass(frozen=True, slots=True)
class PerOutput(Contract):
    """A contract for each output by its path, and one for all others."""

    contracts: tuple[tuple[str, Contract], ...]
    """The paths, as messages print them (``['logits']``, ``[0]``), each with its contract."""
    rest: Contract = close
    """The contract of all other outputs, and of written inputs and buffers."""

    def __str__(self) -> str:
        named = ", ".join(f"{path}: {contract}" for path, contract in self.contracts)
        return f"{named}, others: {self.rest}" if named else str(self.rest)

    def contract_at(self, path: str) -> Contract:
        """Return the contract of the tensor at ``path``: that of the longest path that leads to it."""
        fitting = [named for named, _ in self.contracts if _leads_to(named, path)]
        return dict(self.contracts)[max(fitting, key=len)] if fitting else self.rest

    def require_paths(self, output: Any, model: str) -> None:
        """Raise ``CannotLoadError`` for a path that leads to no output of the model."""
        paths = [path for path, _ in leaves(output)]
        for named, _ in self.contracts:
            if not any(_leads_to(named, path) for path in paths):
                near = [path for path in paths if difflib.get_close_matches(_bare(named), [_bare(path)])]
                raise CannotLoadError(
                    f"the contract is for output{named}, which {model} does not return",
                    value=f"it returns {', '.join(f'output{path}' for path in paths) or 'nothing'}",
                    remedy=f"did you mean output{' or output'.join(near)}?" if near else "name one of these",
                )


def _bare(path: str) -> str:
    """Return a path without brackets and quotes, which make different names look alike."""
    return path.translate(str.maketrans("", "", "[]'\".")) or path


def _leads_to(named: str, path: str) -> bool:
    return path == named or (path.startswith(named) and path[len(named) :][0] in "[.")


flipped, same_distribution, top_k, same_set, matched_boxes = Flipped, SameDistribution, TopK, SameSet, MatchedBoxes


@checked(CannotLoadError)
def masked(contract: Contract, mask: str | int | Callable[..., torch.Tensor]) -> Masked:
    """Return a contract on the elements that a mask selects.

    Args:
        contract: the promise about these elements.
        mask: the position, name or place of an input that is the mask, or a function of the model's tensors. It has
            the shape of the output, or of its first dimensions. Elements where it is 0 are not compared.
    """
    if isinstance(contract, (Masked, PerOutput)):
        raise refusal("masked takes the contract of one output", contract, error=CannotLoadError)
    return Masked(contract, mask if callable(mask) else _place(mask))


def per_output(contracts: Mapping[Any, Contract], load: Callable[[Any], Contract] = lambda value: value) -> PerOutput:
    """Return the contract of a dict by paths, as ``contract=`` takes it; the key ``...`` is for all other outputs.

    Args:
        contracts: contracts by key, index, attribute or path: ``"logits"``, ``0``, ``".logits"``, ``"['logits'][0]"``.
        load: a function that returns the contract of a value.
    """
    named = {(key if key is ... else _path(key)): load(value) for key, value in contracts.items()}
    rest = named.pop(..., close)
    for value in (*named.values(), rest):
        if not isinstance(value, Contract) or isinstance(value, PerOutput):
            raise refusal("the contract of an output is a contract", value, error=CannotLoadError)
    return PerOutput(tuple(cast("dict[str, Contract]", named).items()), rest)


def is_loose(contract: Contract) -> bool:
    """Return whether a contract allows errors beyond rounding, so that gradients and extreme values are not judged."""
    if isinstance(contract, PerOutput):
        return any(map(is_loose, (contract.rest, *(each for _, each in contract.contracts))))
    if isinstance(contract, Masked):
        return is_loose(contract.contract)
    return isinstance(contract, (Approximate, OutputContract))


def is_split(contract: Contract) -> bool:
    """Return whether a contract is one of several outputs, or of a part of their elements."""
    return isinstance(contract, (PerOutput, Masked))


def split(contract: Contract, part: Part, whose: str, output: Any) -> Iterator[tuple[Contract, Part, str]]:
    """Yield the contracts of single tensors, each with the function that selects these, and their kind for messages.

    ``part`` and ``whose`` are those of the whole, and ``output`` is the value of ``part`` in a call of eager.
    """
    if isinstance(contract, PerOutput) and whose != "output":
        yield contract.rest, part, whose
    elif isinstance(contract, PerOutput):
        groups = dict.fromkeys(contract.contract_at(path) for path, _ in leaves(output))
        for each in groups:
            yield from split(each, _selecting(part, contract, each), SELECTED, output)
    elif isinstance(contract, Masked) and whose in ("output", SELECTED):
        yield contract.contract, _masking(part, contract, whose), SELECTED
    else:
        yield contract.contract if isinstance(contract, Masked) else contract, part, whose


SELECTED = "selected output"
"""The kind of compared tensors that are some of the outputs: in a dict by their paths."""


def _selecting(part: Part, whole: PerOutput, wanted: Contract) -> Part:
    """Return a function that returns the tensors with the contract ``wanted``, by their paths."""
    return lambda run: {path: leaf for path, leaf in leaves(part(run)) if whole.contract_at(path) == wanted}


def _masking(part: Part, masked_contract: Masked, whose: str) -> Part:
    """Return a function that returns tensors by their paths, with 0 where the mask is 0."""

    def select(run: Run) -> dict[str, Any]:
        selected = part(run)
        by_path: dict[str, Any] = selected if whose == SELECTED else dict(leaves(selected))
        mask = _mask_of(masked_contract.mask, run)
        return {
            path: _where(mask, leaf, path) if isinstance(leaf, torch.Tensor) else leaf for path, leaf in by_path.items()
        }

    return select


def _mask_of(mask: str | Callable[..., torch.Tensor], run: Run) -> torch.Tensor:
    if callable(mask):
        positional = [run.inputs[key] for key in run.inputs if key[1:-1].isdigit()]
        named = {key[2:-2]: value for key, value in run.inputs.items() if key[1] in "'\"" and key.count("[") == 1}
        return mask(*positional, **named)
    if mask not in run.inputs:
        raise InputError(
            f"the mask input{mask} of a contract does not exist",
            value=f"the inputs are {', '.join(f'input{place}' for place in run.inputs) or 'no tensors'}",
            remedy="name a positional input by its number and a keyword input by its name",
        )
    return run.inputs[mask]


def _where(mask: torch.Tensor, tensor: torch.Tensor, path: str) -> torch.Tensor:
    selected = mask != 0
    while selected.dim() < tensor.dim():
        selected = selected.unsqueeze(-1)
    try:
        return torch.where(selected, tensor, torch.zeros((), dtype=tensor.dtype, device=tensor.device))
    except RuntimeError:
        raise InputError(
            f"the mask of output{path} does not fit",
            value=f"mask {list(mask.shape)}, output {list(tensor.shape)}",
            remedy="give a mask of the output's shape, or of its first dimensions",
        ) from None


def _path(key: Any) -> str:
    """Return the path of an output by its key, index, attribute or path."""
    if isinstance(key, str):
        return key if not key or key[0] in "[." else f"[{key!r}]"
    if isinstance(key, int):
        return f"[{key}]"
    raise refusal("an output has a key, an index or a path", key, error=CannotLoadError)


def _place(key: str | int) -> str:
    return key if isinstance(key, str) and key.startswith("[") else f"[{key!r}]"


def _require_number(name: str, field: str, value: object, low: float, high: float) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
        raise CannotLoadError(f"the {field} of {name} is a number from {low:g} to {high:g}", value=shown(value))
