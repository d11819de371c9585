"""Groups: several small programs as one, which is compiled, transformed and judged once.

A tracer of torch takes a tenth of a second for the smallest program, and milliseconds for each further operator. Only
programs that cannot be recorded (:mod:`pytest_fx.forms.recorded_export`) need groups.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_fx.forms import FormResult
from pytest_fx.forms.attribute_state import AttributeState
from pytest_fx.forms.recorded_export import depends_on_data
from pytest_fx.harness.equality import Mismatch, pair_leaves
from pytest_fx.harness.evaluation import Arguments, same_random_numbers
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.snapshot import is_finite, is_strided
from pytest_fx.harness.structure import leaves
from pytest_fx.harness.subject import GivenProgram, ProgramSource, in_mode
from pytest_fx.search.aten_spellings import CalledNames

SIZE = 16
"""The number of programs in a group."""
Kind = Literal["finite", "not finite", "stateful", "data-dependent"]
"""The kind of a program. All programs of a group are of one kind."""
_SMALL = 1e-30
"""The least size of a result that errors are compared with."""
_PART = re.compile(r"(?:^|[._])parts[._](\d+)(?=$|[._])")


class ProgramGroup(nn.Module):
    """Independent programs, called one after the other with their share of the inputs."""

    def __init__(self, programs: Iterable[nn.Module], calls: Sequence[Arguments]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(programs)
        self.shares = [(len(call.args), tuple(call.kwargs)) for call in calls]

    def forward(self, *inputs: Any) -> list[Any]:
        """Return the result of each program."""
        results: list[Any] = []
        first = 0
        for part, (count, names) in zip(self.parts, self.shares, strict=True):
            last = first + count
            args = [inputs[number] for number in range(first, last)]
            results.append(part(*args, **{name: inputs[last + number] for number, name in enumerate(names)}))
            first = last + len(names)
        return results


def group_of(programs: Sequence[ProgramSource], mode: str) -> GivenProgram:
    """Return several programs as one, each in the mode that it has alone."""
    calls = [program.inputs for program in programs]

    def build() -> nn.Module:
        group = ProgramGroup((in_mode(program.build(), mode) for program in programs), calls)
        group.training = mode == "train"
        return group

    return GivenProgram(
        build, Arguments(tuple(value for call in calls for value in (*call.args, *call.kwargs.values())))
    )


def changed_parts(example: PassRun, count: int) -> frozenset[int] | None:
    """Return the numbers of the ``count`` programs of a group that a pass changed; None if they are unknown.

    A result without a graph counts as changed in all of them.
    """
    parts = [_changed_parts_of(run.form_result, count) for run in example.at_each_level()]
    return None if any(each is None for each in parts) else frozenset[int]().union(*filter(None, parts))


def _changed_parts_of(result: FormResult | None, count: int) -> frozenset[int] | None:
    if result is None or not result.changed:
        return frozenset()
    if result.graph_module is None:
        return frozenset(range(count))
    matches = [_PART.search(path) for path in result.changed_at]
    return frozenset(int(match[1]) for match in matches if match) if matches and all(matches) else None


def worst_part(example: PassRun, parts: Collection[int]) -> int | None:
    """Return the one of these programs of a group whose outputs differ most from eager's; None if there are none."""
    distances = dict.fromkeys(sorted(parts), 0.0)
    for run in example.at_each_level():
        eager, actual = run.eager(), run.actual()
        if eager.error is not None or actual.error is not None:
            continue
        is_whole = isinstance(actual.output, (list, tuple)) and len(actual.output) == len(eager.output)
        for part in distances:
            distance = _distance(eager.output[part], actual.output[part]) if is_whole else math.inf
            distances[part] = max(distances[part], distance)
    return max(distances, key=distances.__getitem__, default=None)


def _distance(expected: Any, actual: Any) -> float:
    """Return the largest difference of two results, as a part of the largest element; infinite if they differ in kind.

    >>> _distance(torch.tensor([2.0, 4.0]), torch.tensor([2.0, 3.0])), _distance(torch.ones(2), None)
    (0.25, inf)
    """
    pairs = pair_leaves(expected, actual)
    if isinstance(pairs, Mismatch):
        return math.inf
    sizes = ((leaf, leaf.expected.to(torch.complex128).abs()) for leaf in pairs if leaf.expected.numel())
    return max((float(leaf.errors.max() / size.max().clamp(min=_SMALL)) for leaf, size in sizes), default=0.0)


@dataclass(frozen=True, slots=True)
class Traits:
    """The findings of one call of a program."""

    kind: Kind
    """Whether its results are finite, or a call changes attributes in Python, or sizes depend on data.

    Programs of different kinds do not share a group. Gradients are not compared if a result is not finite. A changed
    attribute makes ``torch.compile`` compile the whole group again. A program that cannot be exported spoils its group.
    """
    lacks_operators: bool
    """Whether an exported program of it has none of some operators."""


def traits_of(program: ProgramSource, mode: str, operators: Collection[OpOverload | OpOverloadPacket] = ()) -> Traits:
    """Run a program, and return its kind, and whether an exported program of it lacks all of ``operators``, if any."""
    call = program.inputs.copies()
    dependence, called = _DataDependence(), CalledNames() if operators else None
    try:
        with torch.no_grad(), same_random_numbers():
            module = in_mode(program.build(), mode)
            attributes = AttributeState(module)
            with called or nullcontext(), dependence:
                result = module(*call.args, **call.kwargs)
    except Exception:  # of any kind: it is drawn at random
        return Traits("not finite", False)
    lacks = called is not None and not called.may_include(operators)
    if dependence.is_seen:
        return Traits("data-dependent", lacks)
    if attributes.is_changed:
        return Traits("stateful", lacks)
    tensors = [leaf for _, leaf in leaves(result) if isinstance(leaf, torch.Tensor) and is_strided(leaf)]
    return Traits("finite" if all(map(is_finite, tensors)) else "not finite", lacks)


class _DataDependence(TorchDispatchMode):
    """Records whether an operator returns a number, or a size, that depends on the data of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.is_seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.is_seen = self.is_seen or depends_on_data(func, args)
        return func(*args, **(kwargs or {}))
