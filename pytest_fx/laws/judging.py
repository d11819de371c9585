"""Whether what a transformed program computes is what its pass promises, also where eager itself is ill-conditioned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fx import GraphModule, Node
from fx.analysis.kernel_calls import KernelMode
from fx.errors import note_lines
from fx.operators.effects import effect_of
from fx.operators.tensor_queries import names_of
from fx.passes import Approximate, Close, Contract, Exact, close, pass_name
from pytest_fx.errors import ContractViolation, LawViolation
from pytest_fx.harness.contracts import Comparison, near
from pytest_fx.harness.equality import Mismatch, pair_leaves
from pytest_fx.harness.evaluation import Arguments, converted, places
from pytest_fx.harness.layouts import LayoutIndependent, Unchanged
from pytest_fx.harness.pass_run import PassRun, parts_of
from pytest_fx.harness.run import Run
from pytest_fx.harness.snapshot import dense, is_finite, is_plain, is_strided, same_tensor, tensors_of
from pytest_fx.harness.structure import leaves, map_tensors, skeleton
from pytest_fx.harness.subject import Inputs
from pytest_fx.harness.tolerances import FEW, MOST_PERTURBATIONS
from pytest_fx.laws.conditioning import Conditioning, Part
from pytest_fx.laws.infinity import without_infinities
from pytest_fx.laws.law import failure_class, in_brief
from pytest_fx.laws.noise import is_lost_to_noise, is_of_few_elements
from pytest_fx.laws.precision import told_with_precision

_OF_LAYOUT = names_of("memory") - {"contiguous"}
_equal = torch.equal  # a program may put another function in its place
Normal = Callable[[Any], Any]
"""Puts other values for elements that are not compared."""


def identical(expected: Any, actual: Any) -> bool:
    """Return whether two outputs are the same in structure, dtypes and bits; NaN equals NaN."""
    if skeleton(expected) != skeleton(actual):
        return False
    for (_, one), (_, other) in zip(leaves(expected), leaves(actual), strict=True):
        if isinstance(one, torch.Tensor):
            if not same_tensor(one, other) or _zeros_differ(one, other):
                return False
        elif type(one) is not type(other) or not (one == other or (one != one and other != other)):
            return False
    return True


def _zeros_differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not one.is_floating_point() or one.is_nested or one.is_meta:
        return False
    one, other = dense(one), dense(other)
    return not _equal(one.signbit() & ~one.isnan(), other.signbit() & ~other.isnan())


def require_kept(law: str, pass_run: PassRun, inputs: Sequence[Inputs], part: Part, whose: str = "output") -> None:
    """Raise :class:`LawViolation` unless ``part`` of a call keeps the contract on each of some inputs.

    The tensors of that part are outputs, or inputs or buffers that are written to: ``whose`` says which.

    Answers that are the same in every bit keep every contract. Otherwise they are compared as
    :mod:`pytest_fx.harness.contracts` does, with eager in float64 as the reference; NaN and infinities stay where
    they are, but where the contract is not ``exact`` one may become the other, and what follows from an infinity is
    not compared (:mod:`pytest_fx.laws.infinity`). An element may differ as far as eager's own moves when eager's values
    are perturbed in their last bits: ``round(x)`` at 0.5, say (:mod:`pytest_fx.laws.conditioning`).
    """

    def judge() -> None:
        taken = _inputs_taken(law, pass_run, inputs)
        normals = _require_kept(law, pass_run, taken, part, whose) if taken else []
        for each, normal in zip(taken, normals, strict=True):
            output = part(pass_run.eager(each))
            written = _written_to(output, pass_run.subject.arguments(each)) if whose == "input" else output
            pass_run.compared += _count_compared(written, normal)

    wherever_values_lie(pass_run, judge)


def both_take(pass_run: PassRun, inputs: Iterable[Inputs]) -> list[Inputs]:
    """Return those inputs for which both eager and the program return something: others are not compared."""
    return [each for each in inputs if pass_run.eager(each).error is None and pass_run.actual(each).error is None]


def _inputs_taken(law: str, pass_run: PassRun, inputs: Sequence[Inputs]) -> list[Inputs]:
    """Return the inputs to compare, or raise :class:`LawViolation` for one that only the program fails on.

    A program may refuse inputs by a check that its pass has put in and named in the message.
    """
    for each in inputs:
        error = pass_run.actual(each).error if pass_run.eager(each).error is None else None
        if error is not None and not refuses_inputs(pass_run, error):
            _raises(law, pass_run, each, error)
    return both_take(pass_run, inputs)


def _written_to(inputs: Mapping[str, torch.Tensor], given: Arguments) -> dict[str, torch.Tensor]:
    """The inputs that a call has changed."""
    before = places(given)
    return {place: tensor for place, tensor in inputs.items() if not same_tensor(tensor, before[place])}


def _count_compared(output: Any, normal: Normal) -> int:
    """Return how many finite elements of eager's are left of ``output`` by ``normal``, which puts 0 for the others."""
    tensors = [leaf for _, leaf in leaves(output) if isinstance(leaf, torch.Tensor)]
    if not tensors:
        return sum(leaf is not None for _, leaf in leaves(output))
    counted = normal(map_tensors(lambda tensor: dense(tensor).isfinite().double(), output))
    return sum(int(leaf.sum()) for _, leaf in leaves(counted) if isinstance(leaf, torch.Tensor))


def wherever_values_lie(pass_run: PassRun, judge: Callable[[], None]) -> None:
    """Call ``judge``, which raises if it does so too where results do not depend on how values lie in memory.

    The second look needs a mode of PyTorch's, under which nothing is compiled. A program that keeps the law under a
    mode that changes nothing is compiled, opaque or not repeatable: there the mode would judge another program.
    """
    try:
        judge()
    except LawViolation as violation:
        if not (pass_run.looks_twice and _may_depend_on_layout(pass_run)):
            raise
        if not _is_broken_under(Unchanged, pass_run, judge) or _is_broken_under(LayoutIndependent, pass_run, judge):
            raise
        pass_run.waive(f"the law {violation.law!r} is broken only by how values lie in memory")


def _is_broken_under(mode: type[KernelMode], pass_run: PassRun, judge: Callable[[], None]) -> bool:
    try:
        with pass_run.under(mode):
            judge()
    except LawViolation:
        return True
    return False


def _may_depend_on_layout(pass_run: PassRun) -> bool:
    """Return whether results may depend on how values lie in memory (:mod:`pytest_fx.harness.layouts`).

    So they may where a program draws random numbers, normalizes over batches, or has another layout than before. Both
    are programs of which every operation is known, and neither reads memory by places of its own.
    """
    before, after = pass_run.untouched().after if pass_run.subject.capture_error is None else None, pass_run.after
    if before is None or after is None:
        return False
    nodes = [node for program in (before, after) for node in program.graph.nodes]
    if any(_name(node) == "as_strided" or _name(node) in _OF_LAYOUT for node in nodes):
        return False
    return _layouts(before) != _layouts(after) or any(map(_depends_on_layout, nodes))


def _layouts(program: GraphModule) -> tuple[int, list[tuple[int, ...]]]:
    """Return how often a program asks for a layout, and the strides of what it holds."""
    requests = sum(
        _name(node) == "contiguous" or any(isinstance(leaf, torch.memory_format) for _, leaf in leaves(node.kwargs))
        for node in program.graph.nodes
    )
    strides = [tensor.stride() for tensor in tensors_of(program).values() if is_strided(tensor)]
    return requests, sorted(each for each in strides if len(each) > 1)


def _name(node: Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _depends_on_layout(node: Node) -> bool:
    effect = effect_of(node)
    if effect is not None and (effect.draws or effect.kind in ("random", "unknown", "state")):
        return True
    if node.op != "call_module":
        return "norm" in str(node.target)
    owner = node.graph.owning_module
    assert owner is not None, "the effect of a module without an owner is unknown"
    return any("norm" in type(part).__name__.lower() for part in owner.get_submodule(str(node.target)).modules())


def _require_kept(law: str, pass_run: PassRun, inputs: Sequence[Inputs], part: Part, whose: str) -> Sequence[Normal]:
    """Compare, and return a function for each of the inputs that zeroes the elements that were not compared."""
    everything: list[Normal] = [_as_it_is] * len(inputs)
    # 1. The same bits keep every contract; this needs no call in float64.
    if all(identical(part(pass_run.eager(each)), part(pass_run.actual(each))) for each in inputs):
        return everything
    # 2. A large model runs in float64 on its first inputs only: their rounding errors tell what others may have.
    if _is_as_near_as_on_input_sets(pass_run, inputs, part):
        return everything
    # 3. The contract itself, in the working dtype and in float64.
    violation = _violation(compared(pass_run, inputs, part, whose), pass_run.contract)
    if violation is not None and not pass_run.looks_twice:
        raise LawViolation.of(law, violation, _variant_of(inputs))
    # 4. Where already the capture, without the pass, is not what eager computes in float64, float64 says nothing about
    # the pass. The case was `c = x.half(); c *= x`: a write keeps the dtype, and a capture as `c * x` promotes it.
    if violation is not None and pass_run.has_float64 and not _is_captured_in_float64(pass_run, inputs, part):
        pass_run.forget_float64()
        violation = _violation(compared(pass_run, inputs, part, whose), pass_run.contract)
        if violation is None:
            pass_run.waive("not judged in float64, where the capture itself differs from eager")
    if violation is None:
        return everything
    if not isinstance(pass_run.contract, Exact):  # which promises bits, also where they mean nothing
        # 5. An overflow: of `a * b / c` eager may have `inf` where `a / c * b` has a number, and all that is computed
        # from it differs. These elements are not compared, the others are.
        normals = [_of_what_is_finite(pass_run, each, part) for each in inputs]
        comparison = compared(pass_run, inputs, part, whose, normals)
        violation = _violation(comparison, pass_run.contract)
        if violation is None:
            pass_run.waive("differs in what follows from an infinity")
            return normals
        # 6. What eager cannot tell either: `round(x)` at 0.5 is 0 or 1. An element may differ as far as eager's own
        # moves when its values are perturbed in their last bits. It comes last as it takes 8 to 32 more runs of eager.
        parts = [lambda run, normal=normal: normal(part(run)) for normal in normals]
        conditioning = _conditioning(pass_run, inputs, whose, parts)
        violation = _beside_eager_perturbed(comparison, pass_run.contract, conditioning, violation)
        if violation is None:
            pass_run.waive("ill-conditioned: eager itself moves as far when its values change in their last bits")
            return normals
        # 7. A histogram of approximated values, and other outputs to which noise does more than there is of it.
        promise = pass_run.contract
        if isinstance(promise, Approximate) and is_of_few_elements(comparison, promise.sqnr_db):
            pass_run.waive(f"fewer than {promise.sqnr_db:g} dB, as noise of that size has in so few elements")
            return normals
        if isinstance(promise, Approximate) and is_lost_to_noise(pass_run, inputs, parts, comparison, promise.sqnr_db):
            pass_run.waive(f"without decibels: noise of {promise.sqnr_db:g} dB in eager's own values loses as many")
            return normals
    raise told_with_precision(pass_run, LawViolation.of(law, violation, _variant_of(inputs)), violation)


def _as_it_is(value: Any) -> Any:
    return value


def _conditioning(pass_run: PassRun, inputs: Sequence[Inputs], whose: str, parts: Sequence[Part]) -> Conditioning:
    """Return how far outputs move in eager; once for looks under several modes, unless eager computes others there."""
    outputs = [part(pass_run.eager(each)) for part, each in zip(parts, inputs, strict=True)]
    looks: list[tuple[list[Any], Conditioning]] = pass_run.once(("conditioning", whose, *inputs), list[Any])
    for same, conditioning in looks:
        pairs = pair_leaves(same, outputs)
        if not isinstance(pairs, Mismatch) and all(
            bool((leaf.errors <= leaf.limits(close.rtol, close.atol)).all()) for leaf in pairs
        ):
            return conditioning
    looks.append((outputs, Conditioning(pass_run, inputs, parts)))
    return looks[-1][1]


def _beside_eager_perturbed(
    comparison: Comparison, contract: Contract, conditioning: Conditioning, violation: ContractViolation
) -> ContractViolation | None:
    """The violation that is left where elements may differ as far as eager itself moves when it is perturbed."""
    comparison = replace(comparison, deviations=conditioning.deviations)
    # How far eager moves is known of each element, decibels are of all of them: so an approximate program is excused
    # where each element is as close as rounding decides, as `floor(x * 10)` is beside `floor(x / 0.1)`, not elsewhere.
    promise = contract if isinstance(contract, Close) else close
    found = _violation(comparison, promise)
    if found is not None and found.share <= FEW:
        conditioning.perturbations = MOST_PERTURBATIONS
        found = _violation(comparison, promise)
    return violation if found is not None and promise is not contract else found


def _is_as_near_as_on_input_sets(pass_run: PassRun, inputs: Sequence[Inputs], part: Part) -> bool:
    """Return whether a model of full size is as near to eager for other inputs as rounding leaves it on the input sets.

    Those are known when the contract has been looked at, and then no more calls in float64 are needed.
    """
    subject = pass_run.subject
    if not subject.is_full_size or subject.is_float64 or isinstance(pass_run.contract, Exact):
        return False
    input_sets = range(subject.float64_input_set_count)
    if not set(input_sets).isdisjoint(inputs) or any(
        subject.eager(input_set, float64=True).error is not None for input_set in input_sets
    ):
        return False
    eager, actual = ([part(run(each)) for each in inputs] for run in (pass_run.eager, pass_run.actual))
    known, known64 = (
        [part(subject.eager(input_set, float64=float64)) for input_set in input_sets] for float64 in (False, True)
    )
    return near(eager, actual, known, known64, pass_run.contract)


def _is_captured_in_float64(pass_run: PassRun, inputs: Sequence[Inputs], part: Part) -> bool:
    """Return whether eager and its capture agree in float64, too: ``c = x.half(); c *= x`` is half in eager alone."""
    for each in inputs:
        expected, captured = pass_run.eager(each, float64=True), pass_run.untouched().actual(each, float64=True)
        if expected.error is None and captured.error is None:
            pairs = pair_leaves(*(_without_infinities(part(run)) for run in (expected, captured)))
            if isinstance(pairs, Mismatch):
                return False
            # Not the contract's tolerances, which are the pass's: a capture keeps the usual ones.
            if any(bool((leaf.errors > leaf.limits(close.rtol, close.atol)).any()) for leaf in pairs):
                return False
    return True


def refuses_inputs(pass_run: PassRun, error: Exception) -> bool:
    """Return whether a check failed that the pass, or one of a pipeline, put into the program, as its message says.

    So a pass refuses inputs of which it cannot know beforehand, as it refuses programs by a ``PassError``.
    """
    pass_ = pass_run.pass_
    if pass_ is None:
        return False
    names = tuple(f"{name} " for name in (pass_run.name, *map(pass_name, parts_of(pass_))))
    return isinstance(error, AssertionError) and str(error).startswith(names)


def _raises(law: str, pass_run: PassRun, inputs: Inputs, error: Exception) -> None:
    notes = note_lines(error)
    violation = LawViolation(
        law,
        f"{pass_run.name} makes {_called(pass_run, inputs)} raise where eager does not",
        value=in_brief(error),
        why="\n         ".join(line.strip() for line in notes) or None,
        kind=f"raises {failure_class(error)}",
        inputs=inputs,
    )
    raise told_with_precision(pass_run, violation) from error


def _variant_of(inputs: Sequence[Inputs]) -> Inputs:
    """The variant among some inputs, or else the first of them: a law is about that."""
    return next((each for each in inputs if isinstance(each, str)), inputs[0])


def _called(pass_run: PassRun, inputs: Inputs) -> str:
    """The subject in a message, with its inputs where these are not a numbered input set."""
    name = pass_run.subject.name
    return f"{name} on {inputs}" if isinstance(inputs, str) else name


def _violation(comparison: Comparison, contract: Contract) -> ContractViolation | None:
    try:
        comparison.require(contract)
    except ContractViolation as violation:
        return violation
    return None


def compared(
    pass_run: PassRun,
    inputs: Sequence[Inputs],
    part: Part,
    whose: str = "output",
    normals: Sequence[Normal] | None = None,
) -> Comparison:
    """The outputs for several inputs beside each other, and beside eager's in float64.

    Float64 is left out on inputs that are not needed to tell how large rounding errors are, if all is well there. What
    is compared of the outputs for each of the inputs is what ``normals`` make of them.
    """
    if normals is None:
        normals = [_normal(pass_run.contract)] * len(inputs)
    eager = [make(part(pass_run.eager(each))) for make, each in zip(normals, inputs, strict=True)]
    actual = [make(part(pass_run.actual(each))) for make, each in zip(normals, inputs, strict=True)]
    in_working_dtype = partial(
        Comparison, _called(pass_run, _variant_of(inputs)), pass_run.name, eager, actual, whose=whose
    )
    if pass_run.subject.is_float64:
        return in_working_dtype(eager, actual)
    if pass_run.subject.eager(inputs[0], float64=True).error is not None:
        return in_working_dtype([_to_float64(output) for output in eager])
    count = min(len(inputs), pass_run.subject.float64_input_set_count)
    comparison = _beside_float64(pass_run, inputs[:count], part, normals, in_working_dtype)
    known = eager[:count], comparison.eager64
    if count < len(inputs) and not near(eager[count:], actual[count:], *known, pass_run.contract):
        return _beside_float64(pass_run, inputs, part, normals, in_working_dtype)
    return comparison


def _beside_float64(
    pass_run: PassRun,
    inputs: Sequence[Inputs],
    part: Part,
    normals: Sequence[Normal],
    in_working_dtype: Callable[..., Comparison],
) -> Comparison:
    """The comparison with what eager and the program do in float64 with some of the inputs."""
    runs: list[Run] = []
    for each in inputs:  # all of them before the transformed program is there in float64
        expected = pass_run.eager(each, float64=True)
        if expected.error is not None:
            break
        runs.append(expected)
    eager = [normal(part(run)) for normal, run in zip(normals, runs, strict=False)]
    # What is approximate by design, a quantizer say, need not exist in float64.
    if isinstance(pass_run.contract, Approximate) or not pass_run.has_float64:
        return in_working_dtype(eager)
    found = [pass_run.actual(each, float64=True) for each in inputs[: len(runs)]]
    if any(run.error is not None for run in found):  # a pass that is right in one dtype need not take the other
        return in_working_dtype(eager)
    return in_working_dtype(eager, [normal(part(run)) for normal, run in zip(normals, found, strict=False)])


def _of_what_is_finite(pass_run: PassRun, inputs: Inputs, part: Part) -> Normal:
    """Return what puts 0 for what follows from an infinity: elements that are others in eager once each is NaN, or 0.

    What is NaN in eager follows from an overflow where there is one: ``exp(x) / exp(x).sum()`` has no other.
    """
    normal = _normal(pass_run.contract)
    expected = part(pass_run.eager(inputs))
    found = without_infinities(pass_run, inputs)
    same = [part(run) for run in found.runs if run.error is None]
    masks = [_differing(expected, output) for output in same if skeleton(output) == skeleton(expected)]
    if found.overflows:
        masks.append(_nans(expected))

    def masked(value: Any) -> Any:
        value = normal(value)
        for mask in masks:
            own = iter(mask)
            value = map_tensors(lambda tensor, own=own: _zero_where(next(own, None), tensor), value)
        return value

    return masked


def _differing(one: Any, other: Any) -> list[torch.Tensor | None]:
    """Return where the elements of two outputs differ: a mask for each tensor, None for another size or storage."""
    return [
        (left != right) & ~((left != left) & (right != right))
        if left.shape == right.shape and is_strided(left)
        else None
        for (_, left), (_, right) in zip(leaves(one), leaves(other), strict=True)
        if isinstance(left, torch.Tensor)
    ]


def _nans(value: Any) -> list[torch.Tensor | None]:
    tensors = (tensor for _, tensor in leaves(value) if isinstance(tensor, torch.Tensor))
    return [tensor != tensor if is_strided(tensor) else None for tensor in tensors]


def _zero_where(mask: torch.Tensor | None, tensor: torch.Tensor) -> torch.Tensor:
    if mask is None or mask.shape != tensor.shape or not is_plain(tensor):
        return tensor
    return tensor.masked_fill(mask, 0)


def _to_float64(value: Any) -> Any:
    return map_tensors(lambda tensor: converted(tensor, torch.float64) if is_plain(tensor) else tensor, value)


def _without_infinities(value: Any) -> Any:
    """``value`` with NaN for each infinity: in another order of arithmetic one may become the other."""

    def normal(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or not is_strided(tensor) or is_finite(tensor):
            return tensor
        values = dense(tensor)
        return values.masked_fill(values.isinf(), torch.nan).to(tensor.dtype)

    return map_tensors(normal, value)


def _finite(value: Any) -> Any:
    """``value`` with 0 for what is not finite, which has no ratio of signal to noise."""

    def finite(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or not is_strided(tensor):
            return tensor
        return dense(tensor).nan_to_num(0.0, 0.0, 0.0).to(tensor.dtype)

    return map_tensors(finite, value)


_NORMAL: dict[type[Contract], Callable[[Any], Any]] = {Exact: _as_it_is, Approximate: _finite}


def _normal(contract: Contract) -> Normal:
    """Return what outputs are compared as under a contract."""
    return _NORMAL.get(type(contract), _without_infinities)
