"""Sensitivity of eager's outputs to changes in the last bits of the values that it computes.

An ill-conditioned computation has no single right output: ``round(x)`` at 0.5 is 0 or 1, and the difference of nearly
equal numbers is mostly rounding error. So eager is run a few times, and each value is perturbed by a few of its ulps,
with random sign. Each element may differ as far as it moved in these runs. An element that did not move gets only the
tolerance of the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from fx import Interpreter, Node
from fx.analysis.kernel_calls import KernelMode
from fx.operators.families import find_in_place, find_operator
from pytest_fx.harness.equality import Mismatch, pair_leaves
from pytest_fx.harness.layouts import uncompiled
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.run import Part, Run, by
from pytest_fx.harness.snapshot import is_strided, overlaps, same_tensor
from pytest_fx.harness.structure import leaves, map_tensors
from pytest_fx.harness.subject import Inputs
from pytest_fx.harness.tolerances import ALLOWED, APPROXIMATION, LARGE, LARGE_OF_HALVES, PERTURBATIONS, SMALL, STEP


class Conditioning:
    """Permitted deviation of each element of eager's output on one set of inputs, measured on demand."""

    def __init__(self, pass_run: PassRun, inputs: Inputs, select: Part) -> None:
        """Take the inputs, and the part of the call that is compared."""
        self._pass_run, self._inputs, self._select = pass_run, inputs, select
        self._movements: dict[bool, list[Movement]] = {}
        self._runs = {False: 0, True: 0}
        self.perturbations = PERTURBATIONS
        """Number of perturbed runs of eager."""

    def movements(self, float64: bool) -> list[Movement]:
        """Return the movement so far of each compared tensor."""
        if float64 not in self._movements:
            output = self._output(float64)
            pairs = pair_leaves(output, output)
            tensors = [] if isinstance(pairs, Mismatch) else [leaf.expected for leaf in pairs]
            self._movements[float64] = [Movement.none(tensor) for tensor in tensors]
        return self._movements[float64]

    def deviation(self, position: int, float64: bool) -> torch.Tensor:
        """Return the permitted deviation of each element of a tensor, as a float64 tensor of its shape.

        A run that raises, or returns another structure, is ignored.
        """
        output, movements = self._output(float64), self.movements(float64)
        # A later call with more perturbations runs only the new ones.
        for number in range(self._runs[float64], self.perturbations):
            run = _perturbed_run(self._pass_run, self._inputs, float64, number)
            moved = pair_leaves(output, output if run.error is not None else self._select(run))
            if not isinstance(moved, Mismatch):
                for movement, leaf in zip(movements, moved, strict=True):
                    movement.note(leaf.errors, number)
            self._runs[float64] = number + 1
        return movements[position].allowed()

    def _output(self, float64: bool) -> Any:
        return self._select(self._pass_run.eager(self._inputs, float64))


def deviation_of(conditionings: Sequence[Conditioning], position: int, float64: bool) -> torch.Tensor | None:
    """Return the permitted deviation of the tensor at ``position`` among those of all inputs; None if it has none.

    Only the inputs of this tensor are run: a wrong pass breaks its contract on the first ones already.
    """
    for conditioning in conditionings:
        count = len(conditioning.movements(float64))
        if position < count:
            return conditioning.deviation(position, float64)
        position -= count
    return None


@dataclass(frozen=True, slots=True)
class Movement:
    """Largest movement so far of each element of a tensor."""

    small: torch.Tensor
    """Movement under small perturbations."""
    large: torch.Tensor
    """Movement under large perturbations."""
    growth: float
    """Ratio of large to small perturbations."""

    @classmethod
    def none(cls, tensor: torch.Tensor) -> Movement:
        """Return the movement before any run: zero for each element of ``tensor``."""
        small, large = (torch.zeros(tensor.shape, dtype=torch.float64) for _ in range(2))
        return cls(small, large, _largest_perturbation(tensor.dtype, 1) / _largest_perturbation(tensor.dtype, 0))

    def note(self, errors: torch.Tensor, number: int) -> None:
        """Record the movement of each element in the run of this number."""
        largest = self.large if number % 2 else self.small
        torch.maximum(largest, errors, out=largest)

    def allowed(self) -> torch.Tensor:
        """Return the permitted deviation of each element.

        An element that moves under large perturbations by far more than their ratio lies at a step, such as that of
        ``round``. The height of a step does not depend on the perturbation, so the element may differ by all of it.
        """
        at_a_step = self.large > STEP * self.growth * self.small
        return torch.where(at_a_step, torch.maximum(self.small, self.large), ALLOWED * self.small)


def _perturbed_run(pass_run: PassRun, inputs: Inputs, float64: bool, number: int) -> Run:
    subject = pass_run.subject
    with perturbed(pass_run, float64, number) as (program, call):
        runner = subject.eager_runner(float64) if call is None else subject.runner(program, call, float64=float64)
        return subject.run_in_a_row(runner, inputs, float64)[-1]


@contextmanager
def perturbed(pass_run: PassRun, float64: bool, number: int) -> Generator[tuple[nn.Module, Callable[..., Any] | None]]:
    """Yield a program equal to the model, and a function that calls it with other rounding errors.

    If the model cannot be captured, yield the model and None: then kernels are perturbed instead of nodes, and the
    model itself is called inside the block.
    """
    if pass_run.subject.capture_error is None:
        program = pass_run.to_perturb(float64)
        yield program, by(Perturbed(program, number))
        return
    with uncompiled(), PerturbedKernels(number):
        yield pass_run.subject.eager_runner(float64).program, None


class EagerNoise:
    """Random rounding errors, of a few ulps, for each element of a tensor."""

    def __init__(self, number: int) -> None:
        """Take ``number`` as the seed; perturbations are small if it is even, and large if it is odd."""
        self._generator = torch.Generator().manual_seed(number)
        self._number = number

    def of(self, value: torch.Tensor) -> torch.Tensor:
        """Return the noise to add to ``value``, with its shape and dtype."""
        dtype, largest = torch.promote_types(value.dtype, torch.float32), self.largest(value)
        direction = torch.empty(value.shape, dtype=dtype).uniform_(-largest, largest, generator=self._generator)
        noise = direction.to(value.device).mul_(value).to(value.dtype)
        return noise.nan_to_num_(0.0, 0.0, 0.0)  # non-finite elements get no noise

    def largest(self, value: torch.Tensor) -> float:
        """Return the largest perturbation of an element, relative to it."""
        return _largest_perturbation(value.dtype, self._number) * torch.finfo(value.dtype).eps

    def direction(self, value: torch.Tensor) -> torch.Tensor:
        """Return a number between -1 and 1 for each element."""
        return (torch.rand(value.shape, generator=self._generator, dtype=torch.float64) * 2 - 1).to(value.device)


class PerturbedKernels(KernelMode):
    """Mode that adds a few rounding errors to each new floating-point tensor that an operation computes."""

    def __init__(self, number: int) -> None:
        """Take the ``number`` of the noise."""
        super().__init__()
        self._noise = EagerNoise(number)

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call ``func``, and perturb its result unless it is a view or has integer values."""
        result = func(*args, **kwargs)
        shares = any(each.alias_info is not None for each in func._schema.returns)
        return result if shares else tree_map_only(torch.Tensor, self._perturbed, result)

    def _perturbed(self, value: torch.Tensor) -> torch.Tensor:
        if not _can_be_perturbed(value) or bool((value == value.round()).all()):
            return value
        return value + self._noise.of(value)


class Perturbed(Interpreter):
    """Interpreter that adds a few rounding errors to each floating-point value that it computes.

    The gradient of each use of a value is perturbed as well.
    """

    def __init__(self, program: Any, number: int) -> None:
        """Take ``number`` as the seed; perturbations are small if it is even, and large if it is odd."""
        super().__init__(program, garbage_collect_values=False)
        self._noise = EagerNoise(number)
        self._integers: set[Node] = set()
        self.coarsest = 0.0
        """Largest machine epsilon among the dtypes of the perturbed values."""

    def run_node(self, n: Node) -> Any:
        """Run the node and perturb its value.

        Without gradients the value is changed in place, so that views and attributes with the same memory change, too.
        """
        value = super().run_node(n)
        if self._is_integer(n, value):
            self._integers.add(n)
            return value
        if self._is_cast(n, value):
            return value
        if isinstance(value, torch.Tensor) and value.requires_grad and _can_be_perturbed(value):
            return value + self._noise_of(value.detach(), n) if self._is_new(n, value) else value
        if n.op not in ("get_attr", "output"):
            for _, leaf in leaves(value):
                if isinstance(leaf, torch.Tensor) and _can_be_perturbed(leaf) and not overlaps(leaf):
                    leaf.data.add_(self._noise_of(leaf.detach(), n))
        return value

    def fetch_args_kwargs_from_env(self, n: Node) -> Any:
        """Return the arguments of ``n``, with hooks that perturb their gradients."""
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        return map_tensors(self._perturbed_backward, args), map_tensors(self._perturbed_backward, kwargs)

    def _perturbed_backward(self, value: torch.Tensor) -> torch.Tensor:
        if not value.requires_grad or not _can_be_perturbed(value):
            return value
        used = value.view_as(value)
        factor = 1 + self._noise.direction(value) * self._noise.largest(value)
        used.register_hook(lambda gradient: (gradient * factor).to(gradient.dtype))
        return used

    def _is_integer(self, node: Node, value: Any) -> bool:
        """Return whether a value has exact integer elements, by rounding or from exact operands: without errors."""
        read = node.all_input_nodes
        if not isinstance(value, torch.Tensor) or not read:
            return False
        row = find_operator(node.target) or find_in_place(node.target)
        rounds = row is not None and row.rounds
        if not rounds and not all(used in self._integers or _is_exact(self.env.get(used)) for used in read):
            return False
        return _can_be_perturbed(value) and bool((value == value.round()).all())

    def _is_cast(self, node: Node, value: Any) -> bool:
        """Return whether a value is its operand cast to another dtype: the program itself requests this rounding."""
        read = [self.env.get(used) for used in node.all_input_nodes]
        if len(read) != 1 or not isinstance(value, torch.Tensor) or not isinstance(read[0], torch.Tensor):
            return False
        if not (_can_be_perturbed(value) and _can_be_perturbed(read[0])) or value.shape != read[0].shape:
            return False
        return value.dtype != read[0].dtype and same_tensor(value, read[0].detach().to(value.dtype))

    def _is_new(self, node: Node, value: torch.Tensor) -> bool:
        """Return whether ``value`` shares no memory, so that a sum may replace it.

        Autograd has saved the results of operations, so they must not be written in place.
        """
        operands = (self.env.get(used) for used in node.all_input_nodes)
        owns_memory = not value._is_view() and value._version == 0 and all(value is not other for other in operands)
        return owns_memory and node.op not in ("get_attr", "output")

    def _noise_of(self, value: torch.Tensor, node: Node) -> torch.Tensor:
        self.coarsest = max(self.coarsest, torch.finfo(value.dtype).eps)
        noise = self._noise.of(value)
        return noise.mul_(APPROXIMATION) if _is_approximated(node) else noise


def _is_approximated(node: Node) -> bool:
    """Return whether a node calls a function, such as ``erf``, that kernels approximate differently."""
    row = find_operator(node.target)
    return row is not None and row.family in ("activation", "function") and row.bounds is None and not row.rounds


def _can_be_perturbed(value: torch.Tensor) -> bool:
    return value.is_floating_point() and is_strided(value)


def _largest_perturbation(dtype: torch.dtype, number: int) -> float:
    """Return the largest perturbation in the run of this number, in ulp."""
    if number % 2 == 0:
        return SMALL
    is_half = dtype.is_floating_point and torch.finfo(dtype).eps > 1e-4
    return LARGE_OF_HALVES if is_half else LARGE


def _is_exact(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
