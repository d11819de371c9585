"""Laws about repetition: apply the pass again, or call, copy, save and capture its result."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fx
from fx import GraphModule
from fx.errors import SaveError, TraceError
from fx.pipelines.pipeline import program_in
from pytest_fx.errors import LawViolation
from pytest_fx.harness.equality import Leaf
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.run import Run, Runner
from pytest_fx.harness.snapshot import dense, is_plain, is_strided, same_tensor, tensors_of
from pytest_fx.harness.structure import describe, leaves, skeleton
from pytest_fx.harness.subject import Inputs
from pytest_fx.harness.tolerances import SAME_PARAMETERS
from pytest_fx.harness.variants import AGAIN
from pytest_fx.laws.judging import identical, require_kept
from pytest_fx.laws.law import broken, said
from pytest_fx.processes.deadline import TookTooLong
from pytest_fx.processes.pickled import unpickled


def deterministic(pass_run: PassRun) -> None:
    """Applied to an equal program, the pass returns an equal program: code, parameters and buffers."""
    after, before = pass_run.after, pass_run.before
    if after is None or before is None or not pass_run.changed:
        return
    originals = {id(tensor) for tensor, _ in before.module.tensors.values()}
    computes = any(id(tensor) not in originals for tensor in tensors_of(after).values())
    if not computes and _equal_but_for_rounding(pass_run.after_float64, after):  # cheaper: it exists already
        return
    try:
        again = pass_run.transform(pass_run.subject.shared_copy())
    except TookTooLong:
        return
    except Exception as error:
        broken("deterministic", f"{pass_run.name} fails when applied again to the same program", value=said(error))
    if again is None:
        broken("deterministic", f"{pass_run.name} returns no program when applied again to the same program")
    if again.code != after.code:
        difference = "\n         ".join(first_difference(after.code, again.code))
        what = f"{pass_run.name} makes other code of the same program"
        broken("deterministic", what, value=difference, remedy=_ORDER)
    others = tensors_of(again)
    for name, tensor in tensors_of(after).items():
        if name not in others or not same_tensor(tensor, others[name]):
            broken("deterministic", f"{pass_run.name} makes another {name!r} of the same program", remedy=_ORDER)


_ORDER = "go over lists or dicts, not over sets of nodes, and draw no random numbers"


class _BufferTracer(fx.Tracer):
    """Tracer that also records operations on buffers alone, without an input."""

    proxy_buffer_attributes = True


def _captured_again(program: GraphModule) -> GraphModule:
    """Capture a program again; if it updates buffers from buffers alone, by a tracer that records this.

    The same tracer is used if the capture itself draws random numbers, as for a buffer.
    """
    state = Runner(program)
    drawn = torch.default_generator.get_state()
    try:
        again = fx.symbolic_trace(program)
        if torch.equal(drawn, torch.default_generator.get_state()):
            return again
    except TraceError:
        state.restore()  # the capture has written to a buffer
    return fx.GraphModule(program, _BufferTracer().trace(program))


def calls_in_a_row(pass_run: PassRun) -> None:
    """Called again, and then with other inputs, without a reset of its state, the program agrees with eager.

    So it does in the declared steps (:class:`~pytest_fx.Steps`), where inputs may follow from its own outputs.
    """
    for inputs in pass_run.later_calls if pass_run.program is not None else ():
        alone = pass_run.subject.alone(inputs)
        eager_repeats, program_repeats = (_alike(run(alone), run(inputs)) for run in (pass_run.eager, pass_run.actual))
        if eager_repeats and program_repeats:
            continue  # the other laws cover a call that does not depend on earlier ones
        if inputs == AGAIN and eager_repeats and pass_run.actual().error is None:
            _require_repeated(pass_run, inputs)
        else:
            require_kept("calls in a row", pass_run, (inputs,), attrgetter("output"))
    if pass_run.program is not None:
        _require_steps(pass_run)


def _require_steps(pass_run: PassRun) -> None:
    """Judge each step with the fewest calls before it that give every output enough elements."""
    steps = pass_run.subject.steps
    enough = pass_run.subject.float64_input_set_count if steps else 0
    for number in range(len(steps)):
        require_kept(
            "calls in a row", pass_run, steps[max(0, number + 1 - enough) : number + 1][::-1], attrgetter("output")
        )


def _alike(one: Run, other: Run) -> bool:
    return one is other or (one.error is None and other.error is None and identical(one.output, other.output))


def _require_repeated(pass_run: PassRun, inputs: Inputs) -> None:
    try:
        require_kept("calls in a row", pass_run, (inputs,), attrgetter("output"))
    except LawViolation as violation:
        again = pass_run.actual(inputs)
        raise LawViolation(
            "calls in a row",
            f"{pass_run.name} returns another result on a second call with the same inputs",
            value=said(again.error)
            if again.error is not None
            else _first_leaf_that_differs(pass_run.actual().output, again.output),
            why="eager returns the same result: it keeps no state between calls",
            remedy="compute each result from the inputs alone, and draw no numbers that torch.manual_seed does not set",
            kind="not repeatable",
            inputs=inputs,
        ) from violation


def retraceable(pass_run: PassRun) -> None:
    """The result of the pass can be captured again, and the capture computes the same bits."""
    if pass_run.after is None:
        return
    try:
        again = _captured_again(pass_run.after)
    except Exception as error:
        if _succeeds(_captured_again, pass_run.capture()):
            broken("retraceable", "the transformed program cannot be captured again", value=said(error))
        return
    # A value computed from constants alone becomes a constant, which holds only Python's own containers.
    only_leaves = lambda output: [leaf for _, leaf in leaves(output)]  # noqa: E731
    _require_same("retraceable", pass_run, again, "captured again, the program", part=only_leaves)


def round_trips(pass_run: PassRun) -> None:
    """Copied, pickled, or saved to a file and loaded, the program computes the same bits as before.

    A round trip that fails before the pass may fail after it, and data-only files may refuse the user's functions.
    A round trip may also fail for a torch module that fails alone, such as ``torch.ao.nn.quantized.Conv2d``.
    """
    if pass_run.after is None:
        return
    for how, trip in _TRIPS.items():
        try:
            result = trip(pass_run.after)
            tensors_of(result)  # a module that was pickled only in part raises here
        except SaveError:
            continue
        except Exception as error:
            if not _succeeds(trip, pass_run.capture()):
                pass_run.leave_out("round trips", f"the program cannot be {how} before the pass either")
            elif (module := _torch_module_that_fails(trip, pass_run.after)) is not None:
                pass_run.leave_out("round trips", f"it cannot be {how}, nor can torch's own {module} by itself")
            else:
                broken("round trips", f"the transformed program cannot be {how}", value=said(error))
            continue
        if result.code != pass_run.after.code:
            broken("round trips", f"{how}, the program has other code")
        _require_same("round trips", pass_run, result, f"{how}, the program")


def idempotent(pass_run: PassRun) -> None:
    """Applied to its own result, the pass changes nothing."""
    if pass_run.after is None:
        return
    once, copied = pass_run.after.code, copy.deepcopy(pass_run.after)
    again: Any = program_in(pass_run.pass_(copied)) or copied
    if isinstance(again, GraphModule) and again.code != once:
        difference = "\n         ".join(first_difference(once, again.code))
        broken("idempotent", f"{pass_run.name} changes what it made itself", value=difference)


def shrinks_the_graph(pass_run: PassRun) -> None:
    """The graph has fewer nodes after the pass, wherever the pass changes it."""
    if pass_run.after is not None and pass_run.changed:
        before, now = len(pass_run.before.nodes if pass_run.before else ()), len(pass_run.after.graph.nodes)
        if now >= before:
            broken("shrinks the graph", f"the graph has {now} nodes after {pass_run.name}, and had {before}")


def _through_a_file(program: GraphModule) -> GraphModule:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.safetensors"
        fx.save(program, path)
        return fx.load(path, device=next((tensor.device for tensor in tensors_of(program).values()), None))


_TRIPS: dict[str, Callable[[GraphModule], GraphModule]] = {
    "copied": copy.deepcopy,
    "pickled": unpickled,
    "saved to a file": _through_a_file,
}


def _torch_module_that_fails(trip: Callable[[Any], Any], program: nn.Module) -> str | None:
    """Return the class name of a torch module in ``program`` for which ``trip`` fails even by itself."""
    modules = (module for module in program.modules() if type(module).__module__.startswith("torch."))
    return next((type(module).__name__ for module in modules if not _succeeds(trip, module)), None)


def _succeeds(trip: Callable[[Any], nn.Module], program: nn.Module) -> bool:
    try:
        tensors_of(trip(program))
    except Exception:
        return False
    return True


def _require_same(
    law: str, pass_run: PassRun, program: nn.Module, what: str, part: Callable[[Any], Any] = lambda output: output
) -> None:
    """Raise unless ``program`` computes the same bits as the result of the pass."""
    actual, subject = pass_run.actual(), pass_run.subject
    if actual.error is not None:
        return
    assert pass_run.after is not None
    _lay_out_as(program, pass_run.after)
    run = Runner(program, thread_count=subject.threads)(subject.arguments(), subject.dtype)
    if run.error is not None:
        broken(law, f"{what} raises", value=said(run.error))
    if not identical(part(actual.output), part(run.output)):
        difference = _first_leaf_that_differs(part(actual.output), part(run.output))
        broken(law, f"{what} returns something else", value=difference)


def _first_leaf_that_differs(wanted: Any, actual: Any) -> str:
    if skeleton(wanted) == skeleton(actual):
        for (path, wanted_leaf), (_, leaf) in zip(leaves(wanted), leaves(actual), strict=True):
            if not identical(wanted_leaf, leaf):
                return f"output{path}: {_beside(wanted_leaf, leaf)}"
    return f"{describe(actual)} beside {describe(wanted)}"


def _beside(wanted: Any, actual: Any) -> str:
    if not (isinstance(wanted, torch.Tensor) and isinstance(actual, torch.Tensor)):
        return f"{actual!r} beside {wanted!r}"
    if not (is_plain(wanted) and is_plain(actual)):
        return f"a {type(actual).__qualname__} beside a {type(wanted).__qualname__}"
    expected, tensor = dense(wanted), dense(actual)
    if expected.shape == tensor.shape and expected.dtype == tensor.dtype and not expected.is_quantized:
        return f"elements up to {float(Leaf(path='', expected=expected, actual=tensor).errors.max()):.2g} apart"
    return f"{list(actual.shape)} of {actual.dtype} beside {list(wanted.shape)} of {wanted.dtype}"


def _lay_out_as(program: nn.Module, other: nn.Module) -> None:
    """Give tensors the strides of equal tensors in another program: the last bits of results depend on them."""
    others = tensors_of(other)
    for name, tensor in tensors_of(program).items():
        wanted = others.get(name)
        if wanted is None or not wanted.numel() or not is_strided(wanted) or not same_tensor(wanted, tensor):
            continue
        if (strides := wanted.stride()) != tensor.stride() and not wanted.is_quantized:
            count = 1 + sum((size - 1) * stride for size, stride in zip(wanted.shape, strides, strict=True))
            places = torch.arange(count, device=tensor.device).as_strided(wanted.shape, strides)
            memory = torch.empty(count, dtype=tensor.dtype, device=tensor.device)
            memory[places.flatten()] = tensor.detach().flatten()  # elements may share memory
            tensor.data = memory.as_strided(wanted.shape, strides)


def _equal_but_for_rounding(after_float64: nn.Module | None, after: GraphModule) -> bool:
    """Return whether the pass makes the same of the program in float64: equal code, and tensors up to rounding."""
    if not isinstance(after_float64, GraphModule) or after_float64.code != after.code:
        return False
    others = tensors_of(after_float64)
    return all(_nearly(tensor, others.get(name)) for name, tensor in tensors_of(after).items())


def _nearly(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    if other is None or one.shape != other.shape or not (is_plain(one) and is_plain(other)):
        return False
    leaf = Leaf("", other.detach(), one.detach())
    return not bool((leaf.errors > leaf.limits(*SAME_PARAMETERS)).any())


def first_difference(one: str, other: str) -> list[str]:
    """Return the first line that differs between two texts, from each text."""
    for line, other_line in zip(one.splitlines(), other.splitlines(), strict=False):
        if line != other_line:
            return [line.strip(), other_line.strip()]
    return ["one is longer than the other"]
