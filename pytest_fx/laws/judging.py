"""Whether what a transformed program computes is what its pass promises, also where eager itself is ill-conditioned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from fx import Interpreter, Node
from fx.errors import note_lines
from fx.operators.effects import effect_of
from fx.passes import Approximate, Contract, Exact, PassPipeline, pass_name
from pytest_fx.errors import ContractViolation, LawViolation
from pytest_fx.harness.application import Application
from pytest_fx.harness.contracts import Comparison, near
from pytest_fx.harness.equality import Leaf, pair_leaves
from pytest_fx.harness.evaluation import converted
from pytest_fx.harness.run import Run, by
from pytest_fx.harness.snapshot import dense, is_strided, overlaps, same_tensor
from pytest_fx.harness.structure import leaves, map_tensors, skeleton
from pytest_fx.harness.subject import Inputs
from pytest_fx.laws.infinity import without_infinities
from pytest_fx.laws.law import failure_class

SHAKES = 8
"""How often eager is run with other rounding errors before a difference is held against the pass."""
SHAKE_ULPS = 16
"""How large these errors are, in rounding steps of the largest element of a value."""
SHAKE_ULPS_OF_HALVES = 2
"""The same where such a step is a hundredth or thousandth of the value: 16 would forgive what is plainly wrong."""

_ROUNDS = frozenset("floor ceil round trunc fix sign floordiv floor_divide".split())
"""Operations whose results are integers, by name."""

Part = Callable[[Run], Any]
"""What of a call is compared."""
Normal = Callable[[Any], Any]
"""Puts other values for elements that are not compared."""


def identical(expected: Any, actual: Any) -> bool:
    """Whether two answers are the same in structure, dtypes and bits; NaN equals NaN."""
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
    return not torch.equal(one.signbit() & ~one.isnan(), other.signbit() & ~other.isnan())


def require_kept(
    law: str, application: Application, inputs: Sequence[Inputs], part: Part, whose: str = "output"
) -> None:
    """Raise :class:`LawViolation` unless ``part`` of a call keeps the contract on each of some inputs.

    The tensors of that part are outputs, or inputs or buffers that are written to: ``whose`` says which.

    Answers that are the same in every bit keep every contract. Otherwise they are compared as
    :mod:`pytest_fx.harness.contracts` does, with eager in float64 as the reference; NaN and infinities stay where
    they are, but where the contract is not ``exact`` one may become the other, and what follows from an infinity is
    not compared (:mod:`pytest_fx.laws.infinity`). A difference is forgiven where eager, with rounding errors of its own
    added to each value, differs from itself as much: ``round(x)`` at 0.5, say.
    """
    wherever_values_lie(application, lambda: _require_kept(law, application, inputs, part, whose))


def wherever_values_lie(application: Application, judge: Callable[[], None]) -> None:
    """Call ``judge``, which raises if it does so too where results do not depend on how values lie in memory."""
    try:
        judge()
    except LawViolation as violation:
        if not _may_depend_on_layout(application):
            raise
        try:
            with application.layout_independent():
                judge()
        except LawViolation:
            raise violation from violation.__cause__


def _may_depend_on_layout(application: Application) -> bool:
    """Whether a program draws random numbers, or normalizes over batches (:mod:`pytest_fx.harness.layouts`)."""
    programs = (application.untouched().after, application.after)
    if None in programs:
        return True
    nodes = (node for program in programs if program is not None for node in program.graph.nodes)
    return any(_depends_on_layout(node) for node in nodes)


def _depends_on_layout(node: Node) -> bool:
    effect = effect_of(node)
    if effect is not None and (effect.draws or effect.kind in ("random", "unknown", "state")):
        return True
    if node.op != "call_module":
        return "norm" in str(node.target)
    owner = node.graph.owning_module
    assert owner is not None, "the effect of a module without an owner is unknown"
    return any("norm" in type(part).__name__.lower() for part in owner.get_submodule(str(node.target)).modules())


def _require_kept(law: str, application: Application, inputs: Sequence[Inputs], part: Part, whose: str) -> None:
    inputs = [each for each in inputs if application.eager(each).error is None]
    for each in inputs:
        error = application.actual(each).error
        if error is not None and not refuses_inputs(application, error):
            _raises(law, application, each, error)
    inputs = [each for each in inputs if application.actual(each).error is None]
    if all(identical(part(application.eager(each)), part(application.actual(each))) for each in inputs):
        return
    if _is_as_near_as_on_draws(application, inputs, part):
        return
    violation = _violation(compared(application, inputs, part, whose), application.contract)
    if violation is not None and application.has_float64 and not _is_captured_in_float64(application, inputs, part):
        application.forget_float64()
        violation = _violation(compared(application, inputs, part, whose), application.contract)
    if violation is None:
        return
    if not isinstance(application.contract, Exact):
        normals = [_of_what_is_finite(application, each, part) for each in inputs]
        violation = _violation(compared(application, inputs, part, whose, normals), application.contract)
        if violation is None or _is_ill_conditioned(application, inputs, part, normals):
            return
    raise LawViolation.of(law, violation, inputs[0])


def _is_as_near_as_on_draws(application: Application, inputs: Sequence[Inputs], part: Part) -> bool:
    """Whether a model of full size answers other inputs as near to eager as its rounding errors on draws leave it.

    Those are known when the contract has been looked at, and then no more calls in float64 are needed.
    """
    subject = application.subject
    if not subject.is_full_size or subject.is_wide or isinstance(application.contract, Exact):
        return False
    draws = range(subject.wide_draws)
    if not set(draws).isdisjoint(inputs) or any(subject.eager(draw, wide=True).error is not None for draw in draws):
        return False
    eager, actual = ([part(answers(each)) for each in inputs] for answers in (application.eager, application.actual))
    known, known64 = ([part(subject.eager(draw, wide=wide)) for draw in draws] for wide in (False, True))
    return near(eager, actual, known, known64)


def _is_captured_in_float64(application: Application, inputs: Sequence[Inputs], part: Part) -> bool:
    """Whether eager and its capture agree in float64, too: ``c = x.half(); c *= x`` is half in eager alone."""
    for each in inputs:
        expected, captured = application.eager(each, wide=True), application.untouched().actual(each, wide=True)
        if expected.error is None and captured.error is None:
            pairs = _pairs(part(expected), part(captured))
            if pairs is None or any(bool((leaf.errors > leaf.limits(1e-5, 1e-8)).any()) for leaf in pairs):
                return False
    return True


def refuses_inputs(application: Application, error: Exception) -> bool:
    """Whether a check failed that the pass, or one of a pipeline, put into the program, naming itself in its message.

    So a pass refuses inputs of which it cannot know beforehand, as it refuses programs by a ``PassError``.
    """
    pass_ = application.pass_
    if pass_ is None:
        return False
    parts = pass_.passes if isinstance(pass_, PassPipeline) else [pass_]
    names = tuple(f"{name} " for name in (application.name, *map(pass_name, parts)))
    return isinstance(error, AssertionError) and str(error).startswith(names)


def _raises(law: str, application: Application, inputs: Inputs, error: Exception) -> None:
    notes = note_lines(error)
    violation = LawViolation(
        law,
        f"{application.name} makes {_called(application, inputs)} raise where eager answers",
        value=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
        why="\n         ".join(line.strip() for line in notes) or None,
        kind=f"raises {failure_class(error)}",
        inputs=inputs,
    )
    raise violation from error


def _called(application: Application, inputs: Inputs) -> str:
    """The subject in a message, with its inputs where these are no draw."""
    name = application.subject.name
    return f"{name} on {inputs}" if isinstance(inputs, str) else name


def _violation(comparison: Comparison, contract: Contract) -> ContractViolation | None:
    try:
        comparison.require(contract)
    except ContractViolation as violation:
        return violation
    return None


def compared(
    application: Application,
    inputs: Sequence[Inputs],
    part: Part,
    whose: str = "output",
    normals: Sequence[Normal] | None = None,
) -> Comparison:
    """The answers to several inputs beside each other, and beside eager's in float64.

    Float64 is left out on inputs that are not needed to tell how large rounding errors are, if all is well there. What
    is compared of the answers to each of the inputs is what ``normals`` make of them.
    """
    if normals is None:
        normals = [_normal(application.contract)] * len(inputs)
    eager = [make(part(application.eager(each))) for make, each in zip(normals, inputs, strict=True)]
    actual = [make(part(application.actual(each))) for make, each in zip(normals, inputs, strict=True)]
    narrow = partial(
        Comparison, _called(application, inputs[0]), application.name, eager, actual, whose=whose
    )  # fmt: skip
    if application.subject.is_wide:
        return narrow(eager, actual)
    if application.subject.eager(inputs[0], wide=True).error is not None:
        return narrow([_widened(answer) for answer in eager])
    count = min(len(inputs), application.subject.wide_draws)
    comparison = _beside_float64(application, inputs[:count], part, normals, narrow)
    if count < len(inputs) and not near(eager[count:], actual[count:], eager[:count], comparison.eager64):
        return _beside_float64(application, inputs, part, normals, narrow)
    return comparison


def _beside_float64(
    application: Application,
    inputs: Sequence[Inputs],
    part: Part,
    normals: Sequence[Normal],
    narrow: Callable[..., Comparison],
) -> Comparison:
    """The comparison with what eager and the program do in float64 with some of the inputs."""
    runs: list[Run] = []
    for each in inputs:  # all of them before the transformed program is there in float64
        expected = application.eager(each, wide=True)
        if expected.error is not None:
            break
        runs.append(expected)
    eager = [normal(part(run)) for normal, run in zip(normals, runs, strict=False)]
    # What is approximate by design, a quantizer say, need not exist in float64.
    if isinstance(application.contract, Approximate) or not application.has_float64:
        return narrow(eager)
    found = [application.actual(each, wide=True) for each in inputs[: len(runs)]]
    if any(run.error is not None for run in found):  # a pass that is right in one dtype need not take the other
        return narrow(eager)
    return narrow(eager, [normal(part(run)) for normal, run in zip(normals, found, strict=False)])


def _of_what_is_finite(application: Application, inputs: Inputs, part: Part) -> Normal:
    """What puts 0 for what follows from an infinity: elements that are others in eager once each is NaN, or 0.

    What is NaN in eager follows from an overflow where there is one: ``exp(x) / exp(x).sum()`` has no other.
    """
    normal = _normal(application.contract)
    expected = part(application.eager(inputs))
    found = without_infinities(application, inputs)
    same = [part(run) for run in found.runs if run.error is None]
    masks = [_differing(expected, answer) for answer in same if skeleton(answer) == skeleton(expected)]
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
    """Where the elements of two answers differ: a mask for each tensor, None for another size or storage."""
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
    return tensor if mask is None or mask.shape != tensor.shape else tensor.masked_fill(mask, 0)


def _widened(value: Any) -> Any:
    return map_tensors(lambda tensor: converted(tensor, torch.float64) if tensor.is_floating_point() else tensor, value)


def _as_it_is(value: Any) -> Any:
    return value


def _without_infinities(value: Any) -> Any:
    """``value`` with NaN for each infinity: in another order of arithmetic one may become the other."""

    def normal(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or not is_strided(tensor) or bool(tensor.isfinite().all()):
            return tensor
        return torch.where(tensor.isinf(), torch.full_like(tensor, torch.nan), tensor)

    return map_tensors(normal, value)


def _finite(value: Any) -> Any:
    """``value`` with 0 for what is not finite, which has no ratio of signal to noise."""

    def finite(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.nan_to_num(0.0, 0.0, 0.0) if tensor.is_floating_point() and is_strided(tensor) else tensor

    return map_tensors(finite, value)


_NORMAL: dict[type[Contract], Callable[[Any], Any]] = {Exact: _as_it_is, Approximate: _finite}


def _normal(contract: Contract) -> Normal:
    """What answers are compared as under a contract."""
    return _NORMAL.get(type(contract), _without_infinities)


# Where eager itself does not know better.


def _is_ill_conditioned(
    application: Application, inputs: Sequence[Inputs], part: Part, normals: Sequence[Normal]
) -> bool:
    """Whether eager, slightly shaken, differs from itself as much as from the transformed program, in both dtypes."""
    for each, normal in zip(inputs, normals, strict=True):
        for wide in (False, True):
            if wide and not application.has_float64:
                continue
            expected, actual = application.eager(each, wide), application.actual(each, wide)
            if expected.error is not None or actual.error is not None:
                continue
            pairs = _pairs(normal(part(expected)), normal(part(actual)))
            if pairs is None:
                return False
            allowed = _shaken_errors(application, each, part, wide)
            for leaf, limit in zip(pairs, allowed or [torch.inf] * len(pairs), strict=True):
                own = leaf.limits(1e-5, 1e-8) if wide else leaf.limits(0, 64 * _eps(leaf) * leaf.scale)
                if bool((leaf.errors > torch.maximum(own, torch.full_like(own, 4 * limit))).any()):
                    return False
    return True


def _eps(leaf: Leaf) -> float:
    return torch.finfo(leaf.actual.dtype).eps if leaf.actual.is_floating_point() else 0.0


def _shaken_errors(application: Application, inputs: Inputs, part: Part, wide: bool) -> list[float] | None:
    """How much eager differs from itself when shaken, for each tensor of ``part``; None if it then cannot answer."""
    expected = part(application.eager(inputs, wide))
    errors: list[float] = []
    for answer in shaken_answers(application, inputs, wide):
        pairs = None if answer.error is not None else _pairs(expected, part(answer))
        if pairs is None:
            return None
        found = [_largest(leaf) for leaf in pairs]
        errors = [max(one, other) for one, other in zip(errors or found, found, strict=True)]
    return errors


def shaken_answers(application: Application, inputs: Inputs, wide: bool) -> Iterator[Run]:
    """Yield what eager does with other rounding errors than it has."""
    subject = application.subject
    program = application.to_shake(wide)
    for shake in range(SHAKES):
        runner = subject.runner(program, by(Shaken(program, shake)), wide=wide)
        yield runner(subject.arguments(inputs, wide), torch.float64 if wide else subject.dtype)


def _pairs(expected: Any, actual: Any) -> list[Leaf] | None:
    found = pair_leaves(_without_infinities(expected), _without_infinities(actual))
    return found if isinstance(found, list) else None


def _largest(leaf: Leaf) -> float:
    errors = leaf.errors
    return float(errors.max()) if errors.numel() else 0.0


def _is_shaken(value: torch.Tensor) -> bool:
    return value.is_floating_point() and is_strided(value)


def _ulps(dtype: torch.dtype) -> int:
    return SHAKE_ULPS if torch.finfo(dtype).eps < 1e-4 else SHAKE_ULPS_OF_HALVES


def _is_exact(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())


class Shaken(Interpreter):
    """Runs a program and adds a few rounding errors to each floating-point value that it computes.

    Where gradients are computed, those of each use of a value get some, too.
    """

    def __init__(self, program: Any, shake: int) -> None:
        super().__init__(program, garbage_collect_values=False)
        self._generator = torch.Generator().manual_seed(shake)
        self._sign = {0: 1.0, 1: -1.0}.get(shake)
        self._whole: set[Node] = set()
        self.coarsest = 0.0
        """The rounding step of the least precise dtype among the values."""

    def run_node(self, n: Node) -> Any:
        """Run the node and shake its value where that is; views and attributes are shaken with what they show."""
        value = super().run_node(n)
        if self._is_whole(n, value):
            self._whole.add(n)
            return value
        if isinstance(value, torch.Tensor) and value.requires_grad and _is_shaken(value):
            return value + self._noise(value.detach()) if self._is_new(n, value) else value
        if n.op not in ("get_attr", "output"):
            for _, leaf in leaves(value):
                if isinstance(leaf, torch.Tensor) and _is_shaken(leaf) and not overlaps(leaf):
                    leaf.data.add_(self._noise(leaf.detach()))
        return value

    def fetch_args_kwargs_from_env(self, n: Node) -> Any:
        """Return the arguments of ``n``, whose gradients are shaken on their way back."""
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        return map_tensors(self._shaken_backward, args), map_tensors(self._shaken_backward, kwargs)

    def _shaken_backward(self, value: torch.Tensor) -> torch.Tensor:
        if not value.requires_grad or not _is_shaken(value):
            return value
        used = value.view_as(value)
        factor = 1 + self._direction(value) * _ulps(value.dtype) * torch.finfo(value.dtype).eps
        used.register_hook(lambda gradient: (gradient * factor).to(gradient.dtype))
        return used

    def _is_whole(self, node: Node, value: Any) -> bool:
        """Whether a value is rounded to integers, or made of these or of booleans alone: it has no rounding errors."""
        read = node.all_input_nodes
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if not isinstance(value, torch.Tensor) or not read:
            return False
        if name not in _ROUNDS and not all(used in self._whole or _is_exact(self.env.get(used)) for used in read):
            return False
        return _is_shaken(value) and bool((value == value.round()).all())

    def _is_new(self, node: Node, value: torch.Tensor) -> bool:
        """Whether nothing else shares the memory of ``value``, so that a sum may stand for it.

        Where gradients are computed, operations have kept their results: these are not to be written to.
        """
        given = (self.env.get(used) for used in node.all_input_nodes)
        is_alone = not value._is_view() and value._version == 0 and all(value is not other for other in given)
        return is_alone and node.op not in ("get_attr", "output")

    def _noise(self, value: torch.Tensor) -> torch.Tensor:
        info = torch.finfo(value.dtype)
        self.coarsest = max(self.coarsest, info.eps)
        finite = value[value.isfinite()]
        scale = float(finite.abs().max()) if finite.numel() else 0.0
        return (self._direction(value) * _ulps(value.dtype) * (info.eps * scale + info.tiny)).to(value.dtype)

    def _direction(self, value: torch.Tensor) -> torch.Tensor:
        if self._sign is None:
            return torch.rand(value.shape, generator=self._generator, dtype=torch.float64) * 2 - 1
        return torch.full(value.shape, self._sign, dtype=torch.float64)
