"""The law on gradients: a transformed program trains as the original does."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

from fx import GraphModule, Interpreter, Node
from fx.operators.effects import effect_of
from fx.operators.sharing import find_sharing, module_sharing
from fx.passes import Approximate, Close
from pytest_fx.harness.application import Application
from pytest_fx.harness.equality import Leaf, worst_difference
from pytest_fx.harness.evaluation import Arguments, default_dtype, same_random_numbers
from pytest_fx.harness.run import Runner, by, places
from pytest_fx.harness.snapshot import dense, in_pieces, is_finite, is_strided, same_tensor
from pytest_fx.harness.stored import StoredTensors
from pytest_fx.harness.structure import leaves, map_tensors
from pytest_fx.laws.conditioning import PERTURBATIONS, Movement, Perturbed
from pytest_fx.laws.judging import wherever_values_lie
from pytest_fx.laws.law import broken

Gradients = Mapping[str, torch.Tensor]
Take = Callable[[str, torch.Tensor], None]
"""Does something with a gradient, which it gets with the name of what it is the gradient of."""

_Movements = dict[str, Movement]

_TOLERANCES = {torch.float64: (1e-5, 1e-10), torch.float32: (1e-3, 1e-5)}
"""How far an element of a gradient may be off, for its own size and for that of the largest element."""
_CASTS = frozenset({"float", "half", "bfloat16"})
"""Methods that cast to a dtype with fewer digits than float64."""
_OF_HALVES = (0.1, 1e-2)
"""The same where an ulp is a hundredth or a thousandth."""
NUDGES = 4
"""How many times the change of eager's own gradients a rough look allows."""


def gradients(application: Application) -> None:
    """Inputs and parameters get the gradients that they get in eager; a pass that approximates need not keep them.

    Parameters may be merged with others and in evaluation mode folded away, for all or some of their uses; in training
    mode as many numbers can be trained as before. Where the program itself writes to a value in place, the pass may
    compute it by an operation that keeps its result for the gradients, as ``rsqrt`` does and a division does not, or
    read it by one that keeps what it is given: the gradients are then those of a program where it gets a copy. Those of
    inputs, parameters and outputs that are not finite are not judged: what torch answers there depends on how they lie
    in memory.
    """
    before = application.before
    if application.after is None or before is None or isinstance(application.contract, Approximate):
        return
    if not application.changed or application.eager().error is not None:
        return
    held = (application.subject.arguments().tensors, before.module.values.values())
    answer = (leaf for _, leaf in leaves(application.eager().answer))
    if not all(map(_is_finite, chain(*held, answer))):
        return
    if application.subject.is_full_size and _look_kept(application):
        return
    wherever_values_lie(application, lambda: _require_gradients(application, wide=_is_judged_in_float64(application)))


def _is_finite(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return True
    return is_strided(value) and is_finite(value)  # others have few


def _is_judged_in_float64(application: Application) -> bool:
    """Whether both programs compute in float64 there: not what a pass casts to another dtype on purpose."""
    if not application.has_float64:
        return False
    after = application.wide_after
    return after is not None and _casts(after) <= _casts(application.capture(wide=True))


def _casts(program: GraphModule) -> int:
    """How many operations name a dtype with fewer digits than float64."""
    named = sum(
        leaf.is_floating_point and leaf != torch.float64
        for node in program.graph.nodes
        for _, leaf in leaves((node.args, node.kwargs))
        if isinstance(leaf, torch.dtype)
    )
    return named + sum(node.target in _CASTS for node in program.graph.nodes if node.op == "call_method")


def _look_kept(application: Application) -> bool:
    """Whether gradients are as near to eager's as eager's own are when its inputs change in their last bits.

    That is fast and rough: on deep models those of the inputs differ by percents, from one ReLU to the next. Where the
    answer is no, float64 tells.
    """
    application.subject.claim_float64(None)  # there is no room for gradients beside it
    arguments, dtype = application.subject.arguments(), application.subject.dtype
    eager, actual = application.subject.eager_runner(), application.runner()
    kept = _kept_parameters(application.names, eager.program, actual.program)
    expected = gradients_of(eager, arguments, dtype, kept, stored=application.subject.is_large)
    if isinstance(expected, Exception) or not expected:
        return False
    held = {name for name, original in application.names.items() if original in kept}
    errors = _distances(actual, arguments, dtype, held, expected, application.names)
    if isinstance(errors, Exception) or errors.keys() != expected.keys():
        return False
    limits = {name: _norm(wanted) * _TOLERANCES.get(dtype, _OF_HALVES)[0] for name, wanted in expected.items()}
    if all(errors[name] <= limits[name] for name in expected):
        return True
    nudged = _distances(eager, arguments.map(_nudged), dtype, kept, expected, {})
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
    """How far the gradients of a program are from those expected, in the norm of each, or why there are none.

    None of them is kept. What the program calls its parameters is in ``known``, where that is something else.
    """
    found: dict[str, float] = {}

    def take(name: str, gradient: torch.Tensor) -> None:
        name = known.get(name, name)
        found[name] = _norm(gradient, expected[name])

    try:
        error = _gradients(runner.program, arguments, dtype, runner.program, names, take)
    finally:
        runner.restore()
    return error if isinstance(error, Exception) else found


def _norm(tensor: torch.Tensor, other: torch.Tensor | None = None) -> float:
    """The Euclidean norm of a tensor, or of its difference from another."""
    if other is None:
        norms = [float(piece.norm()) for (piece,) in in_pieces(tensor)]
    else:
        norms = [float(left.sub(right).norm()) for left, right in in_pieces(tensor, other)]
    return math.hypot(*norms)


def _nudged(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    steps = torch.finfo(tensor.dtype).eps * torch.randint(-2, 3, tensor.shape, device=tensor.device)
    return tensor * (1 + steps).to(tensor.dtype)


def _require_gradients(application: Application, wide: bool) -> None:
    subject = application.subject
    arguments, dtype = subject.arguments(wide=wide), torch.float64 if wide else subject.dtype
    expected = gradients_of(subject.eager_runner(wide), arguments, dtype, stored=subject.is_large)
    if isinstance(expected, Exception) or not expected:
        return  # not every program that can be run can be differentiated
    both = wide and not subject.is_large  # else they are not there in float64 at the same time
    original = subject.eager_runner(both).program
    kept = _kept_parameters(application.names, original, application.runner(both).program)
    actual = application.runner(wide)
    found = gradients_of(actual, arguments, dtype, stored=subject.is_large)
    if isinstance(found, Exception) and application.actual(wide=wide).error is not None:
        return
    if isinstance(found, Exception):
        error, found = found, _gradients_beside_writes(application, actual, arguments, dtype)
        if found is None:
            broken(
                "gradients",
                f"what {application.name} makes cannot be differentiated, where eager can",
                value=f"{type(error).__name__}: {error}",
                kind="cannot be differentiated",
            )
    names = {application.names.get(name, name): name for name in found}
    fewer = _trainable(actual.program) < _trainable(original)
    del actual, original  # a large one is let go of where eager is perturbed
    suspects: dict[str, Leaf] = {}
    for name, wanted in expected.items():
        if name not in kept and not name.startswith("input["):
            if application.mode == "train" and bool(wanted.any()) and fewer:
                broken("gradients", f"the parameter {name!r} of the program can no longer be trained")
            continue
        leaf = Leaf(name, wanted, found[names[name]] if name in names else torch.zeros_like(wanted))
        if differ(leaf) and not _is_folded(application, name):
            suspects[name] = leaf
    if not suspects:
        return
    moved = _moved(application, arguments, dtype, wide, {name: leaf.expected for name, leaf in suspects.items()})
    for name, leaf in suspects.items():
        allowed = moved[name] + _tolerated(application, leaf) if name in moved else None
        if allowed is not None and differ(leaf, allowed):
            _report(application, leaf, allowed)


def _tolerated(application: Application, leaf: Leaf) -> float:
    """What the contract tolerates of a gradient, where it is wider than usual: its elements are sums of many."""
    contract = application.contract
    rtol, atol = contract.in_working_dtype if isinstance(contract, Close) else (0.0, 0.0)
    return (rtol + atol) * leaf.scale


def _gradients_beside_writes(
    application: Application, runner: Runner, arguments: Arguments, dtype: torch.dtype
) -> Gradients | None:
    """The gradients of a program that the writes of the original do not disturb; None if more is wrong with it.

    Operations that the pass put in may keep for the gradients what others did not, and what is written to later.
    """
    program, before = runner.program, application.capture()
    if not isinstance(program, GraphModule) or len(_writers(program)) > len(_writers(before)):
        return None
    targets = {node.name: node.target for node in before.graph.nodes}
    added = (node for node in program.graph.nodes if targets.get(node.name) != node.target)
    new = {node for node in added if _computes(program, node)}
    try:
        found = _gradients(by(_KeepingCopies(program, new - _writers(program))), arguments, dtype, program)
    finally:
        runner.restore()
    return None if isinstance(found, Exception) else found


class _KeepingCopies(Interpreter):
    """Runs a program in which some operations get, and give away, copies of what they keep for the gradients."""

    def __init__(self, program: GraphModule, keeping: set[Node]) -> None:
        super().__init__(program)
        self._keeping = keeping

    def fetch_args_kwargs_from_env(self, n: Node) -> Any:
        """Return the arguments of ``n``, or copies of them."""
        given = super().fetch_args_kwargs_from_env(n)
        return map_tensors(torch.Tensor.clone, given) if n in self._keeping else given

    def run_node(self, n: Node) -> Any:
        """Run ``n``, and return what it gives or a copy of it."""
        value = super().run_node(n)
        return map_tensors(torch.Tensor.clone, value) if n in self._keeping else value


def _computes(program: GraphModule, node: Node) -> bool:
    """Whether a node computes new tensors, that is, gives no view of those that it reads."""
    if node.op == "call_module":
        sharing = module_sharing(program.get_submodule(str(node.target)))
    else:
        sharing = find_sharing(node.target) if node.op in ("call_function", "call_method") else None
    if sharing is None or "out" in node.kwargs:
        return False
    if sharing.places is None:
        return sharing.kind == "arithmetic"
    return all(name == "out" for _, name in sharing.places)


def _writers(program: GraphModule) -> set[Node]:
    """The nodes that write to what they are given first."""
    effects = [(node, effect_of(node)) for node in program.graph.nodes]
    return {node for node, effect in effects if effect is not None and effect.written == 0}


def _is_folded(application: Application, name: str) -> bool:
    """Whether a parameter was folded into others, in evaluation mode, for some of its uses at least.

    Those are new, or have other values than they had, whatever they are called.
    """
    after, before = application.after, application.before
    assert after is not None
    assert before is not None
    if application.mode == "train":
        return False
    names, known = application.names, before.module.values
    held = dict(after.named_parameters(remove_duplicate=False))
    originals = {own: known.get(names.get(own, own)) for own in held}
    if all(value is not None and same_tensor(value, held[own]) for own, value in originals.items()):
        return False
    now = sum(_uses(after, own) for own in held if names.get(own, own) == name)
    return now < _uses(application.capture(), name)


def _uses(program: GraphModule, name: str) -> int:
    """How many nodes fetch a parameter or call a module that holds it."""
    nodes = (node for node in program.graph.nodes if node.op in ("get_attr", "call_module"))
    return sum(f"{name}.".startswith(f"{node.target}.") for node in nodes)


def _report(application: Application, leaf: Leaf, moved: torch.Tensor) -> None:
    errors, limits = leaf.errors, _limits(leaf, moved)
    worst = worst_difference(leaf, errors > limits, errors, limits)
    shown = None if worst is None else f"eager {worst.expected!r}, transformed {worst.actual!r}"
    broken(
        "gradients",
        f"{application.name} changes the gradient of {leaf.path}",
        where=None if worst is None else f"element {list(worst.index)}, the worst of {worst.count} in {worst.size}",
        value=shown,
        why="there is none any more" if not bool(leaf.actual.any()) else None,
    )


def _trainable(program: nn.Module) -> int:
    return sum(parameter.numel() for parameter in program.parameters() if parameter.requires_grad)


def _kept_parameters(names: Mapping[str, str], eager: nn.Module, actual: nn.Module) -> set[str]:
    """The parameters of eager that the program still has, with the values that they had, under other names maybe."""
    held = actual.named_parameters(remove_duplicate=False)
    now = {names.get(name, name): parameter for name, parameter in held}
    kept: set[str] = set()
    for name, parameter in eager.named_parameters():
        if name in now and same_tensor(parameter, now[name]):
            if parameter.requires_grad and not now[name].requires_grad:
                broken("gradients", f"the parameter {name!r} of the program no longer requires a gradient")
            kept.add(name)
    return kept


def gradients_of(
    runner: Runner, arguments: Arguments, dtype: torch.dtype, names: set[str] | None = None, *, stored: bool = False
) -> Gradients | Exception:
    """The gradients of a program, whose state is put back afterwards; or why there are none.

    Where they are ``stored`` they take no memory while nobody reads them.
    """
    kept = StoredTensors() if stored else None
    try:
        take = None if kept is None else kept.__setitem__
        found = _gradients(runner.program, arguments, dtype, runner.program, names, take)
        return found if kept is None or isinstance(found, Exception) else kept
    finally:
        runner.restore()


def _gradients(
    call: Callable[..., Any],
    arguments: Arguments,
    dtype: torch.dtype,
    owner: nn.Module,
    names: set[str] | None = None,
    take: Take | None = None,
) -> Gradients | Exception:
    """The gradients of a weighted sum of all outputs, or what is raised in their place; empty if there are none.

    They are those of the inputs and of the parameters called ``names``, or of all. If there is ``take``, it gets each
    of them, and none is returned.
    """
    given = arguments.copies()
    inputs = {
        f"input{place}": tensor.requires_grad_()
        for place, tensor in places(given).items()
        if tensor.is_floating_point()
    }
    parameters = {
        name: tensor
        for name, tensor in owner.named_parameters()
        if tensor.requires_grad and (names is None or name in names)
    }
    wanted = {**parameters, **inputs}
    if not wanted:
        return {}
    passed = given.map(lambda tensor: tensor.clone() if tensor.requires_grad else tensor)  # which may be written to
    try:
        with torch.enable_grad(), default_dtype(dtype), same_random_numbers(arguments), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            total = weighted_sum(call(*passed.args, **passed.kwargs))
            if total is None:
                return {}
            if take is not None:
                _give_each(total, wanted, take)
                return {}
            found: Any = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
    except Exception as error:
        return error
    pairs = zip(wanted.items(), found, strict=True)
    return {name: torch.zeros_like(tensor) if grad is None else dense(grad) for (name, tensor), grad in pairs}


def _give_each(total: torch.Tensor, wanted: Mapping[str, torch.Tensor], take: Take) -> None:
    """Call ``take`` with each gradient of ``total`` when it is there, so that they need not be there all at once."""
    left = dict(wanted)
    handles: list[Any] = []

    def hook(name: str, tensor: torch.Tensor) -> None:
        gradient, tensor.grad = tensor.grad, None
        assert gradient is not None, "called with a gradient"
        del left[name]
        take(name, dense(gradient))

    had = [(tensor, tensor.grad) for tensor in wanted.values()]
    try:
        for name, tensor in wanted.items():
            tensor.grad = None
            handles.append(tensor.register_post_accumulate_grad_hook(partial(hook, name)))
        torch.autograd.backward(total, inputs=list(wanted.values()))
    finally:
        for handle in handles:
            handle.remove()
        for tensor, gradient in had:
            tensor.grad = gradient
    for name, tensor in left.items():
        take(name, torch.zeros_like(tensor))


def weighted_sum(answer: Any) -> torch.Tensor | None:
    """A sum in which each element of each output that can be differentiated has another weight."""
    total: torch.Tensor | None = None
    for number, (_, leaf) in enumerate(leaves(answer)):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_floating_point():
            steps = torch.arange(1, leaf.numel() + 1, dtype=torch.float64, device=leaf.device).reshape(leaf.shape)
            part = (leaf * torch.cos(steps + number).to(leaf.dtype)).sum()
            total = part if total is None else total + part
    return total


def differ(leaf: Leaf, moved: torch.Tensor | None = None) -> bool:
    """Whether a gradient is another one, by more in some element than rounding errors and ``moved`` explain there."""
    parts = (leaf.expected, leaf.actual, *(() if moved is None else (moved,)))
    pieces = ((Leaf(leaf.path, each[0], each[1]), each[2] if moved is not None else None) for each in in_pieces(*parts))
    return any(bool((piece.errors > _limits(piece, allowed, leaf.scale)).any()) for piece, allowed in pieces)


def _limits(leaf: Leaf, moved: torch.Tensor | None = None, scale: float | None = None) -> torch.Tensor:
    """The error that each element of a gradient may have.

    Of a gradient whose largest element is ``scale``, elements are sums, which have rounding errors of that size.
    """
    relative, absolute = _TOLERANCES.get(leaf.expected.dtype, _OF_HALVES)
    scale = leaf.scale if scale is None else scale
    floor = absolute * scale if scale else 1e-3 * relative  # beside zeros there is no size
    limits = relative * leaf.expected.abs().double() + floor
    if moved is not None:
        limits = limits + moved.to(limits.device)
    return torch.where(leaf.expected.isfinite(), limits, torch.zeros_like(limits))


def _moved(
    application: Application, arguments: Arguments, dtype: torch.dtype, wide: bool, expected: Gradients
) -> dict[str, torch.Tensor]:
    """How much each element of eager's gradients may differ: as it does itself with other rounding errors.

    What has no gradient in such a run is left out: nothing is known of it. Elements of a large model may differ as much
    as that of their gradient which moves most, as there is no room for more.
    """
    is_large = application.subject.is_large
    moving = {name: wanted.new_zeros(()) if is_large else wanted for name, wanted in expected.items()}
    movements, met = {name: Movement.none(wanted) for name, wanted in moving.items()}, set[str]()
    for number in range(PERTURBATIONS):
        program = application.capture(wide)
        met.clear()

        def take(name: str, gradient: torch.Tensor, number: int = number, known: _Movements = movements) -> None:
            if name in known:
                met.add(name)
                leaf = Leaf("", expected[name], gradient)
                errors = torch.tensor(leaf.largest_error, dtype=torch.float64) if is_large else leaf.errors.cpu()
                known[name].note(errors, number)

        error: Any = _gradients(by(Perturbed(program, number)), arguments, dtype, program, take=take)
        for name in list(movements):
            if isinstance(error, Exception) or name not in met:
                del movements[name]
    return {name: movement.allowed().expand(expected[name].shape) for name, movement in movements.items()}
