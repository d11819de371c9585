"""The gradient law: a transformed program trains as the original does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch

from fx import GraphModule
from fx.operators.families import CASTS
from fx.passes import Close
from pytest_fx.harness.equality import Leaf, worst_difference
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.metrics import is_approximate
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.run import Runner
from pytest_fx.harness.snapshot import in_pieces, is_finite, is_strided
from pytest_fx.harness.structure import leaves
from pytest_fx.harness.tolerances import (
    BESIDE_ZEROS,
    FEW,
    GRADIENTS,
    GRADIENTS_OF_HALVES,
    MOST_PERTURBATIONS,
    NUDGES,
    PERTURBATIONS,
    ROUNDING_OF_LARGEST,
)
from pytest_fx.laws.conditioning import Movement, perturbed
from pytest_fx.laws.counterparts import counterparts, is_folded, require_roles
from pytest_fx.laws.differentiation import BackwardPass, Gradients, backward_pass, gradients_by, gradients_of_eager
from pytest_fx.laws.judging import wherever_values_lie
from pytest_fx.laws.law import broken
from pytest_fx.laws.saved_operands import gradients_beside_writes


def gradients(pass_run: PassRun) -> None:
    """Inputs and parameters get the same gradients as in eager, unless the pass approximates.

    A parameter's counterpart in the program is the same object, or has the same name and values, or has equal values
    under any name. It is trainable if the parameter is trainable in eager, and shares its memory with another only if
    it does in eager. Parameters may be merged. In evaluation mode they may be folded away, for all or some of their
    uses; in training mode, as many numbers stay trainable as before. The backward pass changes no parameter or buffer
    that it does not change in eager.

    The program may write in place to a value that an operation of the pass saves for the backward pass. ``rsqrt`` saves
    its result, for example, and a division does not; other operations save an operand. Then the operation gets a copy,
    and the gradients of that program are compared.

    Gradients are not judged if inputs, parameters or outputs are not finite, since torch's results then depend on the
    memory layout. A gradient as small as rounding errors of the largest gradient is not compared.

    A program that was made elsewhere is compared if it can be differentiated: by its inputs, and by the parameters that
    it has. It may have frozen the other parameters, or hold them as constants.
    """
    before, program = pass_run.before, pass_run.program
    if program is None or is_approximate(pass_run.contract) or not pass_run.changed:
        return
    require_roles(pass_run, counterparts(pass_run))
    if pass_run.eager().error is not None:
        return
    tensors = pass_run.subject.tensors if before is None else before.module.values
    sources = (pass_run.subject.arguments().tensors, tensors.values())
    output = (leaf for _, leaf in leaves(pass_run.eager().output))
    if not all(map(_is_finite, chain(*sources, output))):
        pass_run.leave_out("gradients", "inputs, parameters or outputs are not finite")
        return
    if pass_run.subject.is_full_size and _look_kept(pass_run):
        return
    wherever_values_lie(pass_run, lambda: _require_gradients(pass_run, float64=_is_judged_in_float64(pass_run)))


def _is_finite(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return True
    return is_strided(value) and is_finite(value)  # other layouts rarely occur


def _is_judged_in_float64(pass_run: PassRun) -> bool:
    """Return whether the program stays in float64 as far as the capture does: the pass inserts no casts."""
    if not pass_run.has_float64:
        return False
    after = pass_run.after_float64
    if after is None or not isinstance(after, GraphModule):
        return after is not None
    return _casts(after) <= _casts(pass_run.capture(float64=True))


def _casts(program: GraphModule) -> int:
    """Return the number of arguments and casts that name a floating-point dtype other than float64."""
    named = (
        leaf
        for node in program.graph.nodes
        for _, leaf in leaves(
            (node.args, node.kwargs, CASTS.get(str(node.target)) if node.op == "call_method" else None)
        )
    )
    return sum(isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype != torch.float64 for dtype in named)


def _look_kept(pass_run: PassRun) -> bool:
    """Return whether gradients are as near to eager's as eager's own if its inputs change in their last bits.

    The comparison is fast and rough: on deep models, gradients of inputs differ by percents from one ReLU to the next.
    If the answer is no, float64 decides.
    """
    pass_run.subject.claim_float64(None)  # frees memory for the gradients
    arguments, dtype = pass_run.subject.arguments(), pass_run.subject.dtype
    eager, actual = pass_run.subject.eager_runner(), pass_run.runner()
    parameters = counterparts(pass_run)
    trained = parameters.kept
    expected = gradients_of_eager(pass_run.subject, trained)
    if isinstance(expected, Exception) or not expected:
        return False
    names = {parameters.trained(name)[0]: name for name in trained}
    with pass_run.watched(calls=True):
        errors = _distances(actual, arguments, dtype, set(names), expected, names)
    if isinstance(errors, Exception) or errors.keys() != expected.keys():
        return False
    limits = {name: _norm(wanted) * GRADIENTS.get(dtype, GRADIENTS_OF_HALVES)[0] for name, wanted in expected.items()}
    if all(errors[name] <= limits[name] for name in expected):
        return True
    nudged = _distances(eager, arguments.map(_nudged), dtype, trained, expected, {})
    return not isinstance(nudged, Exception) and all(
        errors[name] <= limits[name] + NUDGES * nudged[name] for name in expected
    )


def _distances(
    runner: Runner,
    arguments: Arguments,
    dtype: torch.dtype,
    names: set[str],
    expected: Gradients,
    known: Mapping[str, str],
) -> dict[str, float] | Exception:
    """Return the norm of each gradient's difference from the expected one, or the exception that prevented it.

    No gradient is stored. ``known`` maps the program's names of parameters to the expected ones, if they differ.
    """
    distances: dict[str, float] = {}

    def take(name: str, gradient: torch.Tensor) -> None:
        name = known.get(name, name)
        distances[name] = _norm(gradient, expected[name])

    try:
        error = gradients_by(runner.program, arguments, dtype, runner.program, names, take)
    finally:
        runner.restore()
    return error if isinstance(error, Exception) else distances


def _norm(tensor: torch.Tensor, other: torch.Tensor | None = None) -> float:
    """Return the Euclidean norm of a tensor, or of its difference from another."""
    if other is None:
        norms = [float(piece.norm()) for (piece,) in in_pieces(tensor)]
    else:
        norms = [float(piece.sub(subtrahend).norm()) for piece, subtrahend in in_pieces(tensor, other)]
    return math.hypot(*norms)


def _nudged(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    steps = torch.finfo(tensor.dtype).eps * torch.randint(-2, 3, tensor.shape, device=tensor.device)
    return tensor * (1 + steps).to(tensor.dtype)


def _require_gradients(pass_run: PassRun, float64: bool) -> None:
    subject = pass_run.subject
    arguments, dtype = subject.arguments(float64=float64), torch.float64 if float64 else subject.dtype
    eager = backward_pass(subject.eager_runner(float64), arguments, dtype, stored=subject.is_large)
    expected = eager.gradients
    if isinstance(expected, Exception) or not expected:
        pass_run.leave_out("gradients", "eager has none")
        return  # not every program that can be run can be differentiated
    actual = pass_run.runner(float64)
    with pass_run.watched(calls=True):
        step = backward_pass(actual, arguments, dtype, stored=subject.is_large)
    computed = step.gradients
    is_given = pass_run.is_given
    if isinstance(computed, Exception) and (is_given or pass_run.actual(float64=float64).error is not None):
        return
    if isinstance(computed, Exception):
        error, computed = computed, gradients_beside_writes(pass_run, actual, arguments, dtype)
        if computed is None:
            broken(
                "gradients",
                f"what {pass_run.name} makes cannot be differentiated, where eager can",
                value=f"{type(error).__name__}: {error}",
                kind="cannot be differentiated",
            )
    if is_given and not computed:
        return  # it exists only for its outputs, as an engine does
    if not is_given and not subject.is_large and step.gradients is computed:
        _require_state(pass_run, eager, step, float64)
    del actual  # frees a large program before eager is perturbed
    suspects = _suspects(pass_run, expected, computed)
    if suspects and not subject.is_large:
        sizes = (gradient.abs().nan_to_num(nan=0.0, posinf=0.0) for gradient in expected.values() if gradient.numel())
        largest = max(float(size.max()) for size in sizes)
        suspects = {name: leaf for name, leaf in suspects.items() if not _is_noise(leaf, largest)}
    if suspects:
        _require_explained(pass_run, arguments, dtype, float64, suspects)


def _require_state(pass_run: PassRun, eager: BackwardPass, actual: BackwardPass, float64: bool) -> None:
    """Report a buffer that the backward pass of the program changes, and that of eager does not."""
    changed = _changed_by_backward(pass_run.actual(float64=float64).state, actual.state)
    changed_in_eager = _changed_by_backward(pass_run.subject.eager(0, float64).state, eager.state)
    for name in changed:
        if pass_run.names.get(name, name) not in changed_in_eager:
            broken(
                "gradients",
                f"the backward pass changes {name!r} of the program, but not in eager",
                why="running statistics are updated twice where a part of the forward pass is computed again",
            )


def _changed_by_backward(state: Mapping[str, torch.Tensor], later: Mapping[str, torch.Tensor]) -> list[str]:
    """Return the names of the parameters and buffers that differ after a call and after its backward pass."""
    names = dict.fromkeys((*state, *later))
    return [name for name in names if name not in state or name not in later or _is_other(state[name], later[name])]


def _is_other(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Return whether two values of a buffer differ; real and complex values, by more than rounding errors."""
    if before.shape != after.shape or not (before.is_floating_point() or before.is_complex()):
        return not torch.equal(before, after)
    return differ(Leaf("", before, after))


def _is_noise(leaf: Leaf, largest: float) -> bool:
    """Return whether both gradients of a leaf are as small as rounding errors of the ``largest`` gradient.

    In a half-precision dtype the rule would excuse gradients of half that size, so it does not apply there.
    """
    if leaf.expected.dtype not in GRADIENTS:
        return False
    limit = ROUNDING_OF_LARGEST * torch.finfo(leaf.expected.dtype).eps * largest
    return max(leaf.scale, float(leaf.actual.abs().max())) <= limit


def _suspects(pass_run: PassRun, expected: Gradients, actual: Gradients) -> dict[str, Leaf]:
    """Return the differing gradients, each paired with the nearest gradient of its counterparts."""
    parameters, suspects, assigned = counterparts(pass_run), dict[str, Leaf](), set[str]()
    pending = dict.fromkeys(expected)
    for is_last in (False, True):  # first match the counterparts with equal gradients
        for name in list(pending):
            wanted, is_input = expected[name], name.startswith("input[")
            own = [name] if is_input else [each for each in parameters.trained(name) if each not in assigned]
            nearest, leaf = _nearest(name, wanted, {each: actual[each] for each in own if each in actual})
            if own and not differ(leaf):
                assigned.add(nearest)
                del pending[name]
            elif own and is_last and (is_input or not is_folded(pass_run, name)):
                suspects[name] = leaf
            elif is_last and not own:
                _require_as_many(pass_run, name, wanted)
    return suspects


def _nearest(name: str, wanted: torch.Tensor, actual: Gradients) -> tuple[str, Leaf]:
    """Return the name of the gradient nearest to ``wanted``, and the pair of both; a pair with zeros if none exists."""
    leaves = {each: Leaf(name, wanted, gradient) for each, gradient in actual.items()}
    if not leaves:
        return "", Leaf(name, wanted, torch.zeros_like(wanted))
    nearest = min(leaves, key=lambda each: leaves[each].largest_error) if len(leaves) > 1 else next(iter(leaves))
    return nearest, leaves[nearest]


def _require_as_many(pass_run: PassRun, name: str, gradient: torch.Tensor) -> None:
    """Report a parameter without counterpart if, in training mode, fewer numbers are trainable than before."""
    parameters = counterparts(pass_run)
    if pass_run.before is None or pass_run.mode != "train" or not bool(gradient.any()):
        return
    if _trainable(parameters.program) < _trainable(parameters.model):
        broken("gradients", f"the parameter {name!r} of the program can no longer be trained")


def _require_explained(
    pass_run: PassRun, arguments: Arguments, dtype: torch.dtype, float64: bool, suspects: Mapping[str, Leaf]
) -> None:
    """Report a gradient that differs by more than eager's own gradients do under other rounding errors.

    If only few elements differ, eager is run more often: a sum that cancels consists of rounding errors, and the
    largest of few draws may be small by chance.
    """
    if not pass_run.looks_twice:
        leaf = next(iter(suspects.values()))
        _report(pass_run, leaf, torch.zeros_like(leaf.errors))
    # The tolerance of the contract applies to gradients, too, relative to their scale: their elements are long sums.
    contract = pass_run.contract
    rtol, atol = contract.in_working_dtype if isinstance(contract, Close) else (0.0, 0.0)
    # For a large model only the largest movement of each gradient is kept, to save memory; it applies to all elements.
    is_large = pass_run.subject.is_large
    movements = {
        name: Movement.none(leaf.expected.new_zeros(()) if is_large else leaf.expected)
        for name, leaf in suspects.items()
    }
    for runs in (range(PERTURBATIONS), range(PERTURBATIONS, MOST_PERTURBATIONS)):
        _move(pass_run, arguments, dtype, float64, suspects, movements, runs)
        unexplained: dict[str, torch.Tensor] = {}
        for name, movement in movements.items():
            leaf = suspects[name]
            allowed = movement.allowed().expand(leaf.expected.shape) + (rtol + atol) * leaf.scale
            if (share := share_that_differs(leaf, allowed)) > 0:
                unexplained[name] = allowed
                if share > FEW:
                    _report(pass_run, leaf, allowed)
        movements = {name: movements[name] for name in unexplained}
    for name, allowed in unexplained.items():
        _report(pass_run, suspects[name], allowed)


def _report(pass_run: PassRun, leaf: Leaf, moved: torch.Tensor) -> None:
    errors, limits = leaf.errors, _limits(leaf, moved)
    worst = worst_difference(leaf, errors > limits, errors, limits)
    values = None if worst is None else f"eager {worst.expected!r}, transformed {worst.actual!r}"
    broken(
        "gradients",
        f"{pass_run.name} changes the gradient of {leaf.path}",
        where=None if worst is None else f"element {list(worst.index)}, the worst of {worst.count} in {worst.size}",
        value=values,
        why="there is none any more" if not bool(leaf.actual.any()) else None,
    )


def _trainable(parameters: Mapping[str, torch.Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters.values() if parameter.requires_grad)


def differ(leaf: Leaf) -> bool:
    """Return whether some element of a gradient differs by more than rounding errors."""
    return share_that_differs(leaf) > 0


def share_that_differs(leaf: Leaf, moved: torch.Tensor | None = None) -> float:
    """Return the share of a gradient's elements that differ by more than rounding errors and ``moved``."""
    parts = (leaf.expected, leaf.actual, *(() if moved is None else (moved,)))
    pieces = ((Leaf(leaf.path, each[0], each[1]), each[2] if moved is not None else None) for each in in_pieces(*parts))
    count = sum(int((piece.errors > _limits(piece, allowed, leaf.scale)).sum()) for piece, allowed in pieces)
    return count / max(leaf.expected.numel(), 1)


def _limits(leaf: Leaf, moved: torch.Tensor | None = None, scale: float | None = None) -> torch.Tensor:
    """Return the permitted error of each element of a gradient.

    Elements are sums, so that their rounding errors are relative to the largest element of the gradient, ``scale``.
    """
    relative, absolute = GRADIENTS.get(leaf.expected.dtype, GRADIENTS_OF_HALVES)
    scale = leaf.scale if scale is None else scale
    floor = absolute * scale if scale else BESIDE_ZEROS * relative
    limits = relative * leaf.expected.abs().double() + floor
    if moved is not None:
        limits = limits + moved.to(limits.device)
    # Outputs are finite here. A non-finite gradient of eager is not compared: in `log(softmax(x))` the inverse of a
    # small share overflows, but `log_softmax` has a number there.
    return torch.where(leaf.expected.isfinite(), limits, torch.inf)


def _move(
    pass_run: PassRun, arguments: Arguments, dtype: torch.dtype, float64: bool, suspects: Mapping[str, Leaf],
    movements: dict[str, Movement], runs: range,
) -> None:  # fmt: skip
    """Record in ``movements`` how far each element of eager's gradients moves under other rounding errors.

    A gradient that is missing in such a run is removed from ``movements``.
    """
    met = set[str]()
    for number in runs if movements else ():
        met.clear()

        def take(name: str, gradient: torch.Tensor, number: int = number) -> None:
            if name in movements:
                met.add(name)
                leaf = Leaf("", suspects[name].expected, gradient)
                largest = torch.tensor(leaf.largest_error, dtype=torch.float64) if pass_run.subject.is_large else None
                movements[name].note(leaf.errors.cpu() if largest is None else largest, number)

        with perturbed(pass_run, float64, number) as (program, call):
            runner = pass_run.subject.runner(program, float64=float64)
            try:
                error: Any = gradients_by(call or program, arguments, dtype, program, take=take)
            finally:
                runner.restore()  # each run starts with the same buffers
        for name in list(movements):
            if isinstance(error, Exception) or name not in met:
                del movements[name]
