"""Training as the subject: losses and parameters after some steps of an optimizer, of two programs side by side."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, cast

import torch
from torch import nn

from fx.argument_types import Bounds, checked
from fx.arguments import shown
from fx.passes import close
from pytest_fx.errors import InputError, LawViolation, in_a_line
from pytest_fx.harness.evaluation import Arguments, converted, default_dtype, same_random_numbers
from pytest_fx.harness.input_sets import as_arguments
from pytest_fx.harness.snapshot import is_strided
from pytest_fx.harness.structure import map_tensors
from pytest_fx.harness.tolerances import ERROR_FLOOR_ULPS
from pytest_fx.tracebacks import users_line

ORDERS = 3
"""Number of other orders of the samples of each batch in which eager is trained."""
SAME_IN_FLOAT64 = 1e-3
"""Share of the update in float64 up to which another order of the batch counts as a rounding error.

A larger change means that the order is a part of the computation, as it is with dropout.
"""
_NEEDED = "give training_steps(loss, optimizer, batches)"


@dataclass(frozen=True, slots=True)
class TrainingSteps:
    """The steps of a training: loss, optimizer and batches."""

    loss: Callable[[Any, Any], torch.Tensor]
    """A function of outputs and labels that returns the loss, a tensor with one element."""
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    """A function that makes the optimizer of parameters."""
    batches: Sequence[tuple[Arguments, Any]]
    """The inputs and labels of each batch, used in turn."""
    steps: int = 5
    """Number of steps."""


@checked(InputError)
def training_steps(
    loss: Annotated[Callable[..., Any], _NEEDED],
    optimizer: Annotated[Callable[..., Any], _NEEDED],
    batches: Any,
    steps: Annotated[int, Bounds(1)] = 5,
) -> TrainingSteps:
    """Return the steps of a training.

    Args:
        loss: a function of outputs and labels that returns the loss.
        optimizer: a function of parameters that returns the optimizer: ``lambda p: torch.optim.SGD(p, lr=0.1)``.
        batches: batches ``(inputs, labels)``, used in turn; inputs are a tuple (positional), a dict (keywords) or the
            only argument.
        steps: number of steps.

    Raises:
        InputError: an argument is of another kind.
    """
    pairs: list[tuple[Arguments, Any]] = []
    for number, batch in enumerate(batches if isinstance(batches, Iterable) else [batches]):
        if not isinstance(batch, (tuple, list)) or len(cast("Sequence[Any]", batch)) != 2:
            raise InputError(
                f"batch {number} of a training is no pair of inputs and labels", value=shown(batch), remedy=_NEEDED
            )
        pairs.append((as_arguments(batch[0]), batch[1]))
        if len(pairs) == steps:
            break
    if not pairs:
        raise InputError("a training has no batches", value=shown(batches), remedy=_NEEDED)
    return TrainingSteps(loss, optimizer, pairs, steps)


@dataclass(frozen=True, slots=True)
class TrainedState:
    """The results of a training."""

    losses: torch.Tensor
    """The loss before each step, in float64."""
    tensors: dict[str, torch.Tensor]
    """Parameters and floating-point buffers after the last step."""


@dataclass(frozen=True, slots=True)
class TrainingComparison:
    """The training of a program beside that of eager."""

    steps: int
    """Number of steps."""
    worst: str
    """The parameter, buffer or loss whose error is the largest part of the allowed one."""
    error: float
    """Its largest error against eager in float64."""
    allowed: float
    """The error that it may have."""
    eager_error: float
    """Its largest error in eager itself, over all orders of the batch."""
    in_float64: bool
    """True if it was compared in float64, with the program in float64 as well."""
    orders: int
    """Number of other orders of the batch in which eager was trained; 0 if the order is a part of the computation."""
    losses: tuple[float, float]
    """The last loss of eager and of the program."""

    @property
    def right(self) -> bool:
        """True if no error exceeds the allowed one."""
        return self.error <= self.allowed

    def __str__(self) -> str:
        where = " in float64" if self.in_float64 else ""
        return (
            f"{self.steps} steps: {self.worst} is {self.error:.1e} off{where}, {self.allowed:.1e} allowed; last loss "
            f"{self.losses[0]:.6g} in eager, {self.losses[1]:.6g} in the program"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields, and whether all errors are allowed, as JSON values."""
        return {**asdict(self), "right": self.right}


def compare_training(reference: nn.Module, candidate: nn.Module, steps: TrainingSteps) -> TrainingComparison:
    """Train copies of both modules, and compare losses, parameters and buffers with eager in float64.

    The limit is a multiple of eager's own error, with the samples of each batch in their order and in others. In
    float64 the limit follows from the update of a parameter, and from eager's own change with the order.

    Args:
        reference: the model; parts in training mode stay in it.
        candidate: a module with parameters of the same names and values.
        steps: loss, optimizer and batches.

    Raises:
        LawViolation: the candidate lacks a parameter, starts from other values, or cannot be trained.
        InputError: the reference itself cannot be trained.
    """
    dtype = next((each.dtype for each in reference.parameters() if each.is_floating_point()), torch.float32)
    _require_same_start(reference, candidate)
    eager = _train_reference(reference, steps, dtype)
    eager64 = eager if dtype == torch.float64 else _train_reference(reference, steps, torch.float64)
    permuted64 = _in_orders(reference, steps, torch.float64)
    start = {name: tensor.detach().double() for name, tensor in _tensors(reference).items()}
    updates = {name: _size(tensor.double() - start[name]) for name, tensor in eager64.tensors.items()}
    is_free = all(
        _distance(other, eager64, name) <= SAME_IN_FLOAT64 * max(updates[name], _size(start[name]))
        for other in permuted64
        for name in eager64.tensors
    )
    orders = _in_orders(reference, steps, dtype) if is_free else []
    actual = _train_candidate(candidate, steps, dtype)
    losses = float(eager.losses[-1]), float(actual.losses[-1])
    actual64 = _trained_in_float64(candidate, steps) if dtype != torch.float64 else None
    compared: list[TrainingComparison] = []
    for name in (*eager64.tensors, LOSS):
        scale = _size(eager64.losses) if name == LOSS else _size(eager64.tensors[name])
        rtol, atol = close.in_working_dtype
        for program, own, is_float64 in ((actual, [eager, *orders], False), (actual64, permuted64 * is_free, True)):
            if program is None:
                continue
            eager_error = max((_distance(each, eager64, name) for each in own), default=0.0)
            least = ERROR_FLOOR_ULPS * torch.finfo(torch.float64 if is_float64 else dtype).eps * scale
            tolerance = close.rtol * updates.get(name, scale) if is_float64 else rtol * scale + atol
            allowed = max(least + tolerance, close.error_factor * eager_error)
            error = _distance(program, eager64, name)
            compared.append(
                TrainingComparison(steps.steps, name, error, allowed, eager_error, is_float64, len(orders), losses)
            )
    return max(compared, key=_excess)


LOSS = "the loss"
"""The name of the losses among the compared tensors."""


def require_trained(comparison: TrainingComparison, program: str, model: str) -> None:
    """Raise :class:`LawViolation` unless a program trains as eager does."""
    __tracebackhide__ = True
    if comparison.right:
        return
    where = " in float64" if comparison.in_float64 else ""
    raise LawViolation(
        "training",
        f"{program} trains {model} otherwise than eager",
        where=f"{comparison.worst} after {comparison.steps} steps",
        value=f"{comparison.error:.2g} off{where}; last loss {comparison.losses[0]:.6g} in eager, "
        f"{comparison.losses[1]:.6g} in the program",
        why=f"{comparison.allowed:.2g} is allowed; eager's own error, with {comparison.orders} other orders of each "
        f"batch, is at most {comparison.eager_error:.2g}",
        kind="training",
    )


def _excess(comparison: TrainingComparison) -> float:
    if comparison.allowed == 0:
        return math.inf if comparison.error else 0.0
    return comparison.error / comparison.allowed


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and floating-point buffers of a module by name."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point() and is_strided(tensor)}


def _require_same_start(reference: nn.Module, candidate: nn.Module) -> None:
    own = dict(candidate.named_parameters(remove_duplicate=False))
    for name, parameter in reference.named_parameters():
        if not parameter.requires_grad:
            continue
        if name not in own or not own[name].requires_grad:
            raise LawViolation(
                "training",
                f"the program does not train {name!r}",
                value=f"its parameters are {', '.join(own) or 'none'}"[:200],
                why="an optimizer of the program's parameters leaves it as it is",
            )
        if own[name].shape != parameter.shape or not torch.equal(own[name].to(parameter.device), parameter):
            raise LawViolation(
                "training",
                f"the program starts from another value of {name!r}",
                why="results of other initial values cannot be compared",
            )


def _size(tensor: torch.Tensor) -> float:
    return float(tensor.detach().double().abs().max()) if tensor.numel() else 0.0


def _distance(first: TrainedState | None, second: TrainedState, name: str) -> float:
    """Return the largest distance of a tensor, or of the losses; infinite if only one is finite."""
    assert first is not None
    if name != LOSS and name not in first.tensors:
        return 0.0  # a buffer of eager alone, such as a running mean
    sides = [state.losses if name == LOSS else state.tensors[name] for state in (first, second)]
    errors = (sides[0].double() - sides[1].double().to(sides[0].device)).abs()
    same = (sides[0] == sides[1].to(sides[0].dtype)) | (sides[0].isnan() & sides[1].isnan())
    return _size(torch.where(same, torch.zeros_like(errors), errors.nan_to_num(math.inf, math.inf)))


def _train_reference(module: nn.Module, steps: TrainingSteps, dtype: torch.dtype) -> TrainedState:
    try:
        return _trained(module, steps, dtype)
    except Exception as error:
        raise InputError(
            "eager itself cannot be trained with these steps",
            where=users_line(error),
            why=in_a_line(error),
            remedy=_NEEDED,
        ) from error


def _train_candidate(module: nn.Module, steps: TrainingSteps, dtype: torch.dtype) -> TrainedState:
    try:
        return _trained(module, steps, dtype)
    except Exception as error:
        raise LawViolation(
            "training",
            "the program cannot be trained, where eager can",
            where=users_line(error),
            value=in_a_line(error),
            kind="raises",
        ) from error


def _trained_in_float64(module: nn.Module, steps: TrainingSteps) -> TrainedState | None:
    """Return the training in float64; None if the program does not run there, or computes in another dtype."""
    try:
        state = _trained(module, steps, torch.float64)
    except Exception:  # a program for one dtype, with kernels of its own
        return None
    return state


def _in_orders(module: nn.Module, steps: TrainingSteps, dtype: torch.dtype) -> list[TrainedState]:
    return [_train_reference(module, _reordered(steps, seed), dtype) for seed in range(1, ORDERS + 1)]


def _reordered(steps: TrainingSteps, seed: int) -> TrainingSteps:
    """Return the same steps with the samples of each batch in another order."""
    generator = torch.Generator().manual_seed(seed)
    batches: list[tuple[Arguments, Any]] = []
    for arguments, labels in steps.batches:
        count = arguments.samples
        order = torch.randperm(count, generator=generator) if count else None

        def reorder(tensor: torch.Tensor, count: int | None = count, order: Any = order) -> torch.Tensor:
            return tensor[order.to(tensor.device)] if count and tensor.dim() and len(tensor) == count else tensor

        batches.append((arguments.map(reorder), map_tensors(reorder, labels)))
    return TrainingSteps(steps.loss, steps.optimizer, batches, steps.steps)


def _trained(module: nn.Module, steps: TrainingSteps, dtype: torch.dtype) -> TrainedState:
    """Train a copy of a module."""
    own = copy.deepcopy(module)
    if dtype == torch.float64:
        own = own.double()
    optimizer = steps.optimizer(own.parameters())
    losses: list[torch.Tensor] = []
    with torch.enable_grad(), default_dtype(dtype), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eager gives the same warnings
        for number in range(steps.steps):
            arguments, labels = steps.batches[number % len(steps.batches)]
            if dtype == torch.float64:
                arguments = arguments.map(lambda tensor: converted(tensor, torch.float64))
                labels = map_tensors(lambda tensor: converted(tensor, torch.float64), labels)
            with same_random_numbers(arguments):
                optimizer.zero_grad()
                loss = steps.loss(arguments.copies().call(own), labels)
                loss.backward()
                optimizer.step()
            losses.append(loss.detach().double().cpu().reshape(()))
    tensors = {name: tensor.detach() for name, tensor in _tensors(own).items()}
    return TrainedState(torch.stack(losses), tensors)
