"""Judge a transformed program by the contract of its pass, also where eager itself is ill-conditioned."""

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
from pytest_fx.errors import ContractViolation, InputError, LawViolation, in_a_line
from pytest_fx.harness.contracts import Comparison, near
from pytest_fx.harness.equality import Mismatch, pair_leaves
from pytest_fx.harness.evaluation import Arguments, converted, places
from pytest_fx.harness.layouts import LayoutIndependent, Unchanged
from pytest_fx.harness.metrics import Measured, measure
from pytest_fx.harness.output_contracts import OutputContract, is_split, split
from pytest_fx.harness.pass_run import PassRun, parts_of
from pytest_fx.harness.run import Part, Run
from pytest_fx.harness.snapshot import dense, is_finite, is_plain, is_strided, same_tensor, tensors_of
from pytest_fx.harness.structure import leaves, map_tensors, skeleton
from pytest_fx.harness.subject import Inputs
from pytest_fx.harness.tolerances import FEW, MOST_PERTURBATIONS
from pytest_fx.laws.conditioning import Conditioning, deviation_of
from pytest_fx.laws.infinity import without_infinities
from pytest_fx.laws.law import failure_class, in_brief
from pytest_fx.laws.noise import is_lost_to_noise, is_of_few_elements
from pytest_fx.laws.precision import told_with_precision

_OF_LAYOUT = names_of("memory") - {"contiguous"}
_equal = torch.equal  # a program may put another function in its place
Normal = Callable[[Any], Any]
"""Function that normalizes an output for comparison: it replaces the elements that are not compared."""


def identical(expected: Any, actual: Any) -> bool:
    """Return whether two outputs are the same in structure, dtypes and bits; NaN equals NaN."""
    if skeleton(expected) != skeleton(actual):
        return False
    for (_, wanted), (_, leaf) in zip(leaves(expected), leaves(actual), strict=True):
        if isinstance(wanted, torch.Tensor):
            if not same_tensor(wanted, leaf) or _zeros_differ(wanted, leaf):
                return False
        elif type(wanted) is not type(leaf) or not (wanted == leaf or (wanted != wanted and leaf != leaf)):
            return False
    return True


def _zeros_differ(first: torch.Tensor, second: torch.Tensor) -> bool:
    if not first.is_floating_point() or first.is_nested or first.is_meta:
        return False
    first, second = dense(first), dense(second)
    return not _equal(first.signbit() & ~first.isnan(), second.signbit() & ~second.isnan())


def require_kept(law: str, pass_run: PassRun, inputs: Sequence[Inputs], part: Part, whose: str = "output") -> None:
    """Raise :class:`LawViolation` unless ``part`` of a call keeps the contract for each of ``inputs``.

    ``part`` selects tensors of a call, and ``whose`` names them in messages: outputs, or written inputs or buffers.

    Results with the same bits keep every contract. Other results are compared by :mod:`pytest_fx.harness.contracts`,
    with eager in float64 as the reference. NaN and infinities must stay in place. Unless the contract is ``exact``, one
    may become the other, and elements that depend on an infinity are not compared (:mod:`pytest_fx.laws.infinity`).
    An element may also differ as far as eager's own moves when eager's values are perturbed in their last bits, as
    ``round(x)`` at 0.5 does (:mod:`pytest_fx.laws.conditioning`).
    """

    if isinstance(pass_run.contract, Measured):
        _require_measured(law, pass_run, inputs, part, whose)
        return
    if is_split(pass_run.contract):
        output = part(pass_run.eager(inputs[0]))
        for contract, own_part, own_whose in split(pass_run.contract, part, whose, output):
            with pass_run.promising(contract):
                require_kept(law, pass_run, inputs, own_part, own_whose)
        return

    def judge_first() -> None:
        accepted = _inputs_taken(law, pass_run, inputs[:1])
        if accepted:
            _require_kept(law, pass_run, accepted, part, whose)

    def judge() -> None:
        accepted = _inputs_taken(law, pass_run, inputs)
        normals = _require_kept(law, pass_run, accepted, part, whose) if accepted else []
        for each, normal in zip(accepted, normals, strict=True):
            output = part(pass_run.eager(each))
            written = _written_to(output, pass_run.subject.arguments(each)) if whose == "input" else output
            pass_run.compared += _count_compared(written, normal)

    wherever_values_lie(pass_run, judge, judge_first if len(inputs) > 1 else None)


def _require_measured(law: str, pass_run: PassRun, inputs: Sequence[Inputs], part: Part, whose: str) -> None:
    """Raise :class:`LawViolation` if a metric drops by more than allowed, or the values of outputs break a contract.

    The metric is measured once, for the law on the contract.
    """
    promise = pass_run.contract
    assert isinstance(promise, Measured)
    if law == "contract":
        _inputs_taken(law, pass_run, inputs)
        pass_run.metric_drop = measure(promise, *_runs_of_batches(law, pass_run))
    if promise.values is not None:
        with pass_run.promising(promise.values):
            require_kept(law, pass_run, inputs, part, whose)
    elif law != "contract":
        pass_run.leave_out(law, "outputs are judged by a metric")
    drop = pass_run.metric_drop
    if law != "contract" or drop is None:
        return
    pass_run.compared += drop.samples
    if not drop.right:
        interval = "" if drop.interval is None else f"; 95 % interval {drop.interval[0]:.4g} to {drop.interval[1]:.4g}"
        raise LawViolation(
            law,
            f"{pass_run.name} lowers the {drop.metric} of {pass_run.subject.name} by more than it promises",
            value=f"{drop.reference:.4g} -> {drop.candidate:.4g} on {drop.samples:,} {drop.unit}{interval}",
            where=drop.changes or None,
            why=f"a drop of {drop.drop:.4g} exceeds max_drop={drop.max_drop:g}",
            kind="metric",
        )
    if drop.open_end is not None:
        pass_run.waive(f"the interval of the drop of {drop.metric} reaches {drop.open_end:.4g}: more samples decide")


def _runs_of_batches(law: str, pass_run: PassRun) -> tuple[Callable[[Arguments], Any], Callable[[Arguments], Any]]:
    """Return functions that run eager and the program on the inputs of a batch of labelled data."""
    subject = pass_run.subject
    runners = subject.eager_runner(), pass_run.runner()

    def eager(arguments: Arguments) -> Any:
        run = runners[0](subject.on_device(arguments), subject.dtype)
        if run.error is not None:
            raise InputError(
                f"{subject.name} cannot be called with its labelled data",
                why=in_a_line(run.error),
                remedy="let the data give (inputs, labels), inputs a tuple (positional), a dict (keywords) or the only "
                "argument",
            ) from run.error
        return run.output

    def actual(arguments: Arguments) -> Any:
        with pass_run.watched(calls=True):
            run = runners[1](subject.on_device(arguments), subject.dtype)
        if run.error is not None:
            _raises(law, pass_run, 0, run.error)
        return run.output

    return eager, actual


def both_take(pass_run: PassRun, inputs: Iterable[Inputs]) -> list[Inputs]:
    """Return the inputs for which neither eager nor the program raises; only these are compared."""
    return [each for each in inputs if pass_run.eager(each).error is None and pass_run.actual(each).error is None]


def calls_measured(pass_run: PassRun) -> list[Inputs]:
    """Return the calls on which errors are measured: the last step first, since errors are largest there."""
    return both_take(pass_run, [*reversed(pass_run.subject.steps), *range(pass_run.input_set_count)])


def _inputs_taken(law: str, pass_run: PassRun, inputs: Sequence[Inputs]) -> list[Inputs]:
    """Return the inputs to compare, or raise :class:`LawViolation` if only the program raises on one of them.

    A program may refuse inputs by a check that its pass inserted, with the name of the pass in the message.
    """
    for each in inputs:
        error = pass_run.actual(each).error if pass_run.eager(each).error is None else None
        if error is not None and not refuses_inputs(pass_run, error):
            _raises(law, pass_run, each, error)
    return both_take(pass_run, inputs)


def _written_to(inputs: Mapping[str, torch.Tensor], arguments: Arguments) -> dict[str, torch.Tensor]:
    """Return the inputs that a call has changed."""
    before = places(arguments)
    return {place: tensor for place, tensor in inputs.items() if not same_tensor(tensor, before[place])}


def _count_compared(output: Any, normal: Normal) -> int:
    """Return the number of finite elements of eager's ``output`` that ``normal`` does not replace by 0."""
    tensors = [leaf for _, leaf in leaves(output) if isinstance(leaf, torch.Tensor)]
    if not tensors:
        return sum(leaf is not None for _, leaf in leaves(output))
    counted = normal(map_tensors(lambda tensor: dense(tensor).isfinite().double(), output))
    return sum(int(leaf.sum()) for _, leaf in leaves(counted) if isinstance(leaf, torch.Tensor))


def wherever_values_lie(
    pass_run: PassRun, judge: Callable[[], None], judge_first: Callable[[], None] | None = None
) -> None:
    """Call ``judge``; waive a violation that disappears when kernels do not depend on memory layout.

    The second look runs under a PyTorch mode, which disables compilation. A program that already keeps the law under a
    mode that changes nothing is compiled, opaque or not repeatable. The second look would judge another program, so
    the violation counts. ``judge_first`` judges the first inputs alone.
    """
    try:
        judge()
    except LawViolation as violation:
        if not (pass_run.looks_twice and _may_depend_on_layout(pass_run)):
            raise
        # A plain fault shows under both modes, and on the first inputs alone.
        if judge_first is not None and _is_broken_under(LayoutIndependent, pass_run, judge_first, by_itself=True):
            raise
        if _is_broken_under(LayoutIndependent, pass_run, judge) or not _is_broken_under(Unchanged, pass_run, judge):
            raise
        pass_run.waive(f"the law {violation.law!r} is broken only by how values lie in memory")


def _is_broken_under(
    mode: type[KernelMode], pass_run: PassRun, judge: Callable[[], None], *, by_itself: bool = False
) -> bool:
    """Return whether ``judge`` reports a violation under ``mode``.

    With ``by_itself`` it must hold whatever the other inputs give. These may widen the bound of rounding errors, or
    raise the signal-to-noise ratio.
    """
    try:
        with pass_run.under(mode):
            judge()
    except LawViolation as violation:
        return not (by_itself and violation.kind.startswith(("rounding", "sqnr")))
    return False


def _may_depend_on_layout(pass_run: PassRun) -> bool:
    """Return whether results may depend on memory layout (:mod:`pytest_fx.harness.layouts`).

    They may if a program draws random numbers, normalizes, has unknown effects, or has another layout than before. The
    answer is False unless both programs are graphs, and none of their operations sets or reads strides.
    """
    before, after = pass_run.untouched().after if pass_run.subject.capture_error is None else None, pass_run.after
    if before is None or after is None:
        return False
    nodes = [node for program in (before, after) for node in program.graph.nodes]
    if any(_name(node) == "as_strided" or _name(node) in _OF_LAYOUT for node in nodes):
        return False
    return _layouts(before) != _layouts(after) or any(map(_depends_on_layout, nodes))


def _layouts(program: GraphModule) -> tuple[int, list[tuple[int, ...]]]:
    """Return the number of a program's requests for a layout, and the strides of its tensors."""
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
    """Raise if ``part`` breaks the contract; else return for each of ``inputs`` the normalization that was compared."""
    everything: list[Normal] = [_as_it_is] * len(inputs)
    # 1. Equal bits keep every contract, and need no call in float64.
    if all(identical(part(pass_run.eager(each)), part(pass_run.actual(each))) for each in inputs):
        return everything
    # 2. A large model runs in float64 only on its first inputs; their rounding errors bound those of other inputs.
    if _is_as_near_as_on_input_sets(pass_run, inputs, part):
        return everything
    # 3. The contract itself, in the working dtype and in float64.
    violation = _violation(compared(pass_run, inputs, part, whose), pass_run.contract)
    if violation is not None and (not pass_run.looks_twice or isinstance(pass_run.contract, OutputContract)):
        raise LawViolation.of(law, violation, _variant_of(inputs))
    # 4. If the capture without the pass already differs from eager in float64, float64 proves nothing about the pass.
    # Example: `c = x.half(); c *= x`, where a write keeps the dtype, and a capture as `c * x` promotes it.
    if violation is not None and pass_run.has_float64 and not _is_captured_in_float64(pass_run, inputs, part):
        pass_run.forget_float64()
        violation = _violation(compared(pass_run, inputs, part, whose), pass_run.contract)
        if violation is None:
            pass_run.waive("not judged in float64, where the capture itself differs from eager")
    if violation is None:
        return everything
    if not isinstance(pass_run.contract, Exact):  # exact promises bits, even meaningless ones
        # 5. An overflow: eager may compute `inf` for `a * b / c` where `a / c * b` is a number. Elements that depend on
        # the overflow are not compared.
        normals = [_of_what_is_finite(pass_run, each, part) for each in inputs]
        comparison = compared(pass_run, inputs, part, whose, normals)
        violation = _violation(comparison, pass_run.contract)
        if violation is None:
            pass_run.waive("differs in what follows from an infinity")
            return normals
        # 6. An ill-conditioned result: `round(x)` at 0.5 is 0 or 1. An element may differ as far as eager's own moves
        # when its values are perturbed in their last bits. This step comes late, since it takes 8 to 32 runs of eager.
        parts = [lambda run, normal=normal: normal(part(run)) for normal in normals]
        conditionings = [_conditioning(pass_run, each, whose, part) for part, each in zip(parts, inputs, strict=True)]
        violation = _beside_eager_perturbed(comparison, pass_run.contract, conditionings, violation)
        if violation is None:
            pass_run.waive("ill-conditioned: eager itself moves as far when its values change in their last bits")
            return normals
        # 7. An output that amplifies noise, such as a histogram of approximated values.
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


def _conditioning(pass_run: PassRun, inputs: Inputs, whose: str, part: Part) -> Conditioning:
    """Return the conditioning of eager's output; reused under other modes in which eager's output is the same."""
    output = part(pass_run.eager(inputs))
    looks: list[tuple[Any, Conditioning]] = pass_run.once(("conditioning", whose, inputs), list[Any])
    for same, conditioning in looks:
        pairs = pair_leaves(same, output)
        if not isinstance(pairs, Mismatch) and all(
            bool((leaf.errors <= leaf.limits(close.rtol, close.atol)).all()) for leaf in pairs
        ):
            return conditioning
    looks.append((output, Conditioning(pass_run, inputs, part)))
    return looks[-1][1]


def _beside_eager_perturbed(
    comparison: Comparison, contract: Contract, conditionings: Sequence[Conditioning], violation: ContractViolation
) -> ContractViolation | None:
    """Return the violation that remains if elements may differ as far as eager's own move under perturbations."""
    comparison = replace(comparison, deviation=partial(deviation_of, conditionings))
    # Movements are known for each element, but decibels describe all elements together. So an approximate program is
    # excused only if each element is as close as rounding allows: `floor(x * 10)` compared with `floor(x / 0.1)`.
    promise = contract if isinstance(contract, Close) else close
    remaining = _violation(comparison, promise)
    if remaining is not None and remaining.share <= FEW:
        for conditioning in conditionings:
            conditioning.perturbations = MOST_PERTURBATIONS
        remaining = _violation(comparison, promise)
    return violation if remaining is not None and promise is not contract else remaining


def _is_as_near_as_on_input_sets(pass_run: PassRun, inputs: Sequence[Inputs], part: Part) -> bool:
    """Return whether a model of full size is as near to eager on other inputs as its rounding errors on the input sets.

    The contract law has computed the input sets in float64, so that no more calls in float64 are needed.
    """
    subject = pass_run.subject
    if not subject.is_full_size or subject.is_float64 or isinstance(pass_run.contract, (Exact, OutputContract)):
        return False
    input_sets = range(subject.float64_input_set_count)
    if not set(input_sets).isdisjoint(inputs) or any(
        subject.eager(input_set, float64=True).error is not None for input_set in input_sets
    ):
        return False
    eager, actual = ([part(run(each)) for each in inputs] for run in (pass_run.eager, pass_run.actual))
    reference, reference64 = (
        [part(subject.eager(input_set, float64=float64)) for input_set in input_sets] for float64 in (False, True)
    )
    return near(eager, actual, reference, reference64, pass_run.contract)


def _is_captured_in_float64(pass_run: PassRun, inputs: Sequence[Inputs], part: Part) -> bool:
    """Return whether eager and its capture agree in float64; for ``c = x.half(); c *= x``, only eager is half."""
    for each in inputs:
        expected, captured = pass_run.eager(each, float64=True), pass_run.untouched().actual(each, float64=True)
        if expected.error is None and captured.error is None:
            pairs = pair_leaves(*(_without_infinities(part(run)) for run in (expected, captured)))
            if isinstance(pairs, Mismatch):
                return False
            # A capture keeps the usual tolerances; those of the contract are for the pass.
            if any(bool((leaf.errors > leaf.limits(close.rtol, close.atol)).any()) for leaf in pairs):
                return False
    return True


def refuses_inputs(pass_run: PassRun, error: Exception) -> bool:
    """Return whether the error is from a check that the pass, or a pass of the pipeline, put into the program.

    The message of such a check starts with the name of the pass. By a check a pass refuses inputs that it cannot know
    in advance, as it refuses programs by a ``PassError``.
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
    """Return the first variant among ``inputs``, or else the first input set: the one that the law is about."""
    return next((each for each in inputs if isinstance(each, str)), inputs[0])


def _called(pass_run: PassRun, inputs: Inputs) -> str:
    """Return the name of the subject for a message, with its inputs unless these are a numbered input set."""
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
    """Return the comparison of the program's outputs with eager's, and with eager's in float64.

    Only as many inputs run in float64 as are needed to bound rounding errors, unless other inputs exceed that bound.
    The outputs for each of ``inputs`` are normalized by the function at its place in ``normals``.
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
    reference = eager[:count], comparison.eager64
    if count < len(inputs) and not near(eager[count:], actual[count:], *reference, pass_run.contract):
        return _beside_float64(pass_run, inputs, part, normals, in_working_dtype)
    return comparison


def _beside_float64(
    pass_run: PassRun,
    inputs: Sequence[Inputs],
    part: Part,
    normals: Sequence[Normal],
    in_working_dtype: Callable[..., Comparison],
) -> Comparison:
    """Return the comparison, with eager and the program in float64 on ``inputs``."""
    runs: list[Run] = []
    for each in inputs:  # all of eager's before the transformed program is converted to float64
        expected = pass_run.eager(each, float64=True)
        if expected.error is not None:
            break
        runs.append(expected)
    eager = [normal(part(run)) for normal, run in zip(normals, runs, strict=False)]
    # A program that is approximate by design, such as a quantized one, need not exist in float64.
    if isinstance(pass_run.contract, (Approximate, OutputContract)) or not pass_run.has_float64:
        return in_working_dtype(eager)
    actual_runs = [pass_run.actual(each, float64=True) for each in inputs[: len(runs)]]
    if any(run.error is not None for run in actual_runs):  # a pass that is right in one dtype need not take the other
        return in_working_dtype(eager)
    return in_working_dtype(eager, [normal(part(run)) for normal, run in zip(normals, actual_runs, strict=False)])


def _of_what_is_finite(pass_run: PassRun, inputs: Inputs, part: Part) -> Normal:
    """Return a normalization that puts 0 for elements that depend on an infinity.

    These elements change in eager if NaN, 0 or 1 replaces each infinity. If values overflow, eager's NaN elements
    count, too: in ``exp(x) / exp(x).sum()`` there is no other cause.
    """
    normal = _normal(pass_run.contract)
    expected = part(pass_run.eager(inputs))
    substituted = without_infinities(pass_run, inputs)
    outputs = [part(run) for run in substituted.runs if run.error is None]
    masks = [_differing(expected, output) for output in outputs if skeleton(output) == skeleton(expected)]
    if substituted.overflows:
        masks.append(_nans(expected))

    def masked(value: Any) -> Any:
        value = normal(value)
        for mask in masks:
            own = iter(mask)
            value = map_tensors(lambda tensor, own=own: _zero_where(next(own, None), tensor), value)
        return value

    return masked


def _differing(first: Any, second: Any) -> list[torch.Tensor | None]:
    """Return a mask of the differing elements for each tensor; None for tensors of other shapes or layouts."""
    return [
        (tensor != other_tensor) & ~((tensor != tensor) & (other_tensor != other_tensor))
        if tensor.shape == other_tensor.shape and is_strided(tensor)
        else None
        for (_, tensor), (_, other_tensor) in zip(leaves(first), leaves(second), strict=True)
        if isinstance(tensor, torch.Tensor)
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
    """Replace infinities by NaN: in another order of arithmetic, one may become the other."""

    def normal(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or not is_strided(tensor) or is_finite(tensor):
            return tensor
        values = dense(tensor)
        return values.masked_fill(values.isinf(), torch.nan).to(tensor.dtype)

    return map_tensors(normal, value)


def _finite(value: Any) -> Any:
    """Replace non-finite elements by 0: they have no signal-to-noise ratio."""

    def finite(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or not is_strided(tensor):
            return tensor
        return dense(tensor).nan_to_num(0.0, 0.0, 0.0).to(tensor.dtype)

    return map_tensors(finite, value)


_NORMAL: dict[type[Contract], Callable[[Any], Any]] = {Exact: _as_it_is, Approximate: _finite}


def _normal(contract: Contract) -> Normal:
    """Return the normalization of outputs for a contract."""
    return _NORMAL.get(type(contract), _without_infinities)
