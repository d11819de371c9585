"""Laws on what the transformed program returns and does to what it is given."""

from __future__ import annotations

import itertools
from functools import partial
from operator import attrgetter
from typing import Any

import torch

from fx.operators.effects import effect_of
from fx.operators.tensor_queries import names_of
from pytest_fx.errors import LawViolation
from pytest_fx.harness import variants
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.run import Run
from pytest_fx.harness.snapshot import dense, is_plain, is_strided, memory_of, same_tensor, tensors_of
from pytest_fx.harness.structure import describe, leaves, skeleton
from pytest_fx.harness.subject import Inputs
from pytest_fx.harness.variants import LARGER, NON_CONTIGUOUS, NON_FINITE, OTHER_VALUES, PART_OF_LARGER, of_batch
from pytest_fx.laws.infinity import has_infinities
from pytest_fx.laws.judging import refuses_inputs, require_kept
from pytest_fx.laws.law import broken

BATCHES = (1, 0, 3)
"""The batch sizes that small programs are tried with besides their own."""
SIZES, SIZES_OF_LARGE = 12, 4
"""Variants of other sizes that a program is called with at most: a small model, and one of full size or drawn."""
LEAST_CHANGE, SHARE_LEFT = 1e-2, 1e-2
"""The least relative change of an output with its parameters that counts, and the share of it that may be missing."""
_OF_LAYOUT = names_of("memory")
_output, _inputs = attrgetter("output"), attrgetter("inputs")


def structure(pass_run: PassRun) -> None:
    """The result has the same structure: containers and their keys, shapes, and what is not a tensor."""
    runs = _both(pass_run)
    if runs is None:
        return
    eager, actual = runs
    if skeleton(eager.output) != skeleton(actual.output):
        shown = f"{describe(actual.output)} instead of {describe(eager.output)}"
        broken("structure", "the program returns something of another structure", value=shown)
    for (path, wanted), (_, found) in zip(leaves(eager.output), leaves(actual.output), strict=True):
        if isinstance(wanted, torch.Tensor):
            if not is_plain(found) and type(found) is not type(wanted):
                shown = f"{type(found).__qualname__} instead of {type(wanted).__qualname__}"
                broken("structure", "an output is a tensor of another class", where=f"output{path}", value=shown)
            if not (wanted.is_nested or found.is_nested) and wanted.shape != found.shape:  # nested ones have none
                shown = f"{list(found.shape)} instead of {list(wanted.shape)}"
                broken("structure", "an output has another shape", where=f"output{path}", value=shown)
        elif type(wanted) is not type(found):
            shown = f"{type(found).__name__} instead of {type(wanted).__name__}"
            broken("structure", "an output is of another type", where=f"output{path}", value=shown)


def dtype(pass_run: PassRun) -> None:
    """Every output has the same dtype, device and memory layout class (strided, sparse)."""
    runs = _both(pass_run)
    if runs is None or skeleton(runs[0].output) != skeleton(runs[1].output):
        return
    for (path, wanted), (_, found) in zip(leaves(runs[0].output), leaves(runs[1].output), strict=True):
        if not isinstance(wanted, torch.Tensor):
            continue
        for what in ("dtype", "device", "layout"):
            one, other = getattr(wanted, what), getattr(found, what)
            if one != other:
                broken("dtype", f"an output has another {what}", where=f"output{path}", value=f"{other}, not {one}")


def contract(pass_run: PassRun) -> None:
    """The outputs are as near to eager's as the pass promises: see :mod:`fx.passes.contract`."""
    if pass_run.program is not None:
        require_kept("contract", pass_run, range(pass_run.input_set_count), _output)


def inputs_untouched(pass_run: PassRun) -> None:
    """The program writes to its inputs what eager writes to them, which most often is nothing."""
    if pass_run.program is not None:
        require_kept("inputs untouched", pass_run, range(pass_run.input_set_count), _inputs, "input")


def state(pass_run: PassRun) -> None:
    """A call changes buffers as in eager: running statistics in training mode, counters, caches.

    So do the calls that follow it. A pass adds no buffer that calls change. A program that was made elsewhere is
    compared in the buffers with the same names and initial values.
    """
    for inputs in (0, *pass_run.later_calls):
        _require_state(pass_run, inputs)


def _require_state(pass_run: PassRun, inputs: Inputs) -> None:
    runs = _both(pass_run, inputs)
    if runs is None:
        return
    known, is_given = _known_state(pass_run), pass_run.is_given
    changed, rewritten = runs[0].state, runs[0].rewritten
    eager = {name: changed[name] for name in known & changed.keys()} if is_given else changed
    actual = _by_first_name(pass_run, runs[1].state)
    wanted = list(eager)
    for name in eager:
        if name not in actual:
            why = "training reads and saves it afterwards"
            broken("state", f"a call no longer changes {name!r} of the program, as it does in eager", why=why)
    for name in actual:
        if name in rewritten:  # with the values that it had, which a rounding error may change
            wanted.append(name)
        elif name not in eager and name in known:
            broken("state", f"a call changes {name!r} of the program, but not in eager")
        elif name not in eager and not is_given:
            broken(
                "state",
                f"a call changes {name!r} of the program, which eager does not have",
                why="the next call reads what this one left, and the state that is saved depends on it",
                remedy="write to a new tensor, or to a copy, or let the pass say so: may_change = ('writes',)",
            )
    if wanted:
        part = partial(_state, pass_run, wanted)
        require_kept("state", pass_run, (inputs,), part, "buffer")


def _known_state(pass_run: PassRun) -> set[str]:
    """The names of the parameters and buffers of eager that the program may hold."""
    if pass_run.before is not None:
        return set(pass_run.before.module.tensors)
    if not pass_run.is_given:
        return set(pass_run.subject.tensors)
    assert pass_run.program is not None
    held = pass_run.subject.tensors
    own = tensors_of(pass_run.program).items()
    return {name for name, tensor in own if name in held and same_tensor(tensor, held[name])}


def aliasing(pass_run: PassRun) -> None:
    """An output shares memory with an input, or with another output, where it does in eager, and nowhere else."""
    runs = _both(pass_run)
    if runs is None or runs[0].shared == runs[1].shared:
        return
    eager, actual = (set(run.shared) for run in runs)
    for output, given in sorted(actual - eager):
        why = "writing to one then changes the other, which callers do not expect"
        broken("aliasing", f"output{output} now shares memory with {given}", why=why)
    for output, given in sorted(eager - actual):
        why = "who writes to one in eager changes the other as well"
        broken("aliasing", f"output{output} no longer shares memory with {given}", why=why)


def batch_sizes(pass_run: PassRun) -> None:
    """The same holds for other batch sizes, 1 and 0 included, wherever eager takes them."""
    if not pass_run.subject.is_full_size:
        for size in BATCHES:
            _require_on(pass_run, "batch sizes", of_batch(size))
        return
    _require_on(pass_run, "batch sizes", pass_run.subject.of_another_size)


def non_contiguous_inputs(pass_run: PassRun) -> None:
    """The same holds for inputs that lie in memory in another order, or behind other elements.

    That is asked wherever eager takes them. Of several inputs, each also lies in another order alone.
    """
    subject = pass_run.subject
    alone = variants.not_contiguous_alone(subject.arguments())
    names = alone[:1] or [NON_CONTIGUOUS] if subject.is_full_size else [NON_CONTIGUOUS, PART_OF_LARGER, *alone]
    for inputs in names:
        _require_on(pass_run, "non-contiguous inputs", inputs)


def non_finite_inputs(pass_run: PassRun) -> None:
    """NaN and infinities in the inputs reach the outputs where they do in eager, unless the pass approximates."""
    _require_on(pass_run, "non-finite inputs", NON_FINITE)


def other_values(pass_run: PassRun) -> None:
    """The same holds for inputs of opposite signs, ten times as large, or zero, wherever eager takes them.

    Inputs are made from the example's floating-point tensors. A program that was made elsewhere also gets the example
    with one element changed, and a pass on a model of full size gets inputs of opposite signs alone. What approximates
    is made for the values that it has seen.
    """
    of_pass = 1 if pass_run.subject.is_full_size else len(OTHER_VALUES) - 1  # it cannot know the example's elements
    # Errors are rounding errors if they are so beside the outputs for the example, which may be far larger: those of
    # `gelu` for negative numbers are about zero. A model of full size knows that of its input sets.
    beside = () if pass_run.subject.is_full_size else (0,)
    for inputs in list(OTHER_VALUES)[: None if pass_run.is_given else of_pass]:
        try:
            _require_on(pass_run, "other values", inputs, beside)
        except LawViolation:
            # A better formula, such as `log_softmax`, has numbers where eager overflows.
            if inputs != LARGER or not has_infinities(pass_run, inputs):
                raise
            pass_run.leave_out("other values", f"eager overflows on {inputs}")


def other_weights(pass_run: PassRun) -> None:
    """A program made elsewhere that has the model's parameters follows them: it computes with their present values.

    All are halved in both. A program that has only some of them, as where others were folded, is not asked.
    """
    if _both(pass_run) is None:
        return
    runners = pass_run.subject.eager_runner(), pass_run.runner()
    own, held = (list(runner.program.parameters()) for runner in runners)
    wanted = [parameter for parameter in own if parameter.is_floating_point() and is_strided(parameter)]
    matching = [each for each in held if any(same_tensor(each, parameter) for parameter in wanted)]
    if not wanted or not all(any(same_tensor(each, parameter) for each in matching) for parameter in wanted):
        return
    halved = list({memory_of(tensor): tensor for tensor in (*wanted, *matching)}.values())
    arguments, dtype = pass_run.subject.arguments(), pass_run.subject.dtype
    runs: list[Run] = []
    for runner in runners:
        with torch.no_grad():
            for tensor in halved:
                tensor.mul_(0.5)
        try:
            runs.append(runner(arguments, dtype))
        finally:
            for each in runners:
                each.restore()
    outputs = pass_run.eager().output, *(run.output for run in runs)
    if any(run.error is not None for run in runs) or len({str(skeleton(output)) for output in outputs}) > 1:
        return
    for (path, before), (_, wanted_now), (_, now) in zip(*map(leaves, outputs), strict=True):
        if isinstance(before, torch.Tensor) and _lags_behind(before, wanted_now, now):
            broken(
                "other weights",
                f"{pass_run.name} does not follow its parameters when they change",
                where=f"output{path}",
                why="it computes with what it made of them before: load_state_dict and training have no effect on it",
                remedy="compute from the parameters in each call, or do not keep them as parameters of the program",
            )


def _lags_behind(before: torch.Tensor, wanted: torch.Tensor, now: torch.Tensor) -> bool:
    """Return whether an output is away from eager's by more than a hundredth of what changed parameters change."""
    if not before.is_floating_point() or not before.shape == wanted.shape == now.shape:
        return False
    if not all(map(is_plain, (before, wanted, now))):
        return False
    old, new, actual = (dense(tensor).double().nan_to_num(0.0, 0.0, 0.0) for tensor in (before, wanted, now))
    change = float((new - old).norm())
    return change > LEAST_CHANGE * float(old.norm()) and float((actual - new).norm()) > SHARE_LEFT * change


def other_sizes(pass_run: PassRun) -> None:
    """The same holds for inputs of other sizes along each dimension, in all inputs or in one, if eager takes them.

    Examples are lengths of sequences, heights and widths. A pass for the sizes of the example lists "sizes" in
    ``may_change``. A capture, or a program that was made elsewhere, may refuse other sizes.
    """
    subject = pass_run.subject
    # A longer sequence may ask for positions that there are not, which only a CPU lets one catch.
    longer = subject.device.type == "cpu" and not subject.is_full_size
    names = variants.other_sizes(subject.arguments(), longer=longer)
    taken = (name for name in reversed(names) if pass_run.eager(name).error is None)
    most = SIZES_OF_LARGE if subject.is_full_size or subject.source else SIZES
    for inputs in reversed(list(itertools.islice(taken, most))):
        _require_on(pass_run, "other sizes", inputs)


def checks(pass_run: PassRun) -> None:
    """Inputs that a check of the program refuses are refused, with its message.

    A pass that says in ``may_change`` that it takes away ``"checks"`` is not held to that, and none is to checks of how
    computed values lie in memory.
    """
    if pass_run.before is None or pass_run.after is None or not pass_run.before.has_checks:
        return
    for inputs in (0, *map(of_batch, BATCHES), NON_CONTIGUOUS, NON_FINITE):
        if not pass_run.subject.has(inputs):
            continue
        refused = _refusal(pass_run.untouched().actual(inputs).error)
        if refused is None or _is_about_layout(refused, pass_run):
            continue
        found = pass_run.actual(inputs)
        if found.error is not None and refuses_inputs(pass_run, found.error):
            continue  # sooner, by a check of its own
        if refused != _refusal(found.error):
            shown = "it returns" if found.error is None else f"it raises {_said(found.error)}"
            raise LawViolation(
                "checks",
                f"{pass_run.name} lets the program no longer refuse what it refused",
                value=f"{shown}, instead of raising {refused}",
                where=None if inputs == 0 else f"called with {inputs}",
                why="whoever calls the program relies on its checks, and reads their messages",
                remedy="keep torch._assert and what else raises, or list 'checks' in may_change",
                inputs=inputs,
            )


def _refusal(error: Exception | None) -> str | None:
    """Return what a check said, if it is one that raised."""
    return _said(error) if isinstance(error, AssertionError) else None


def _is_about_layout(refused: str, pass_run: PassRun) -> bool:
    """Return whether what refused is a check of how a computed value lies in memory, which passes may change."""
    captured = pass_run.untouched().after
    assert captured is not None
    for node in captured.graph.nodes:
        effect = effect_of(node) if node.op == "call_function" else None
        if effect is not None and effect.kind == "check" and refused.endswith(_first_line(node.args[-1])):
            read = {node}
            for earlier in reversed(captured.graph.nodes):
                if earlier in read:
                    read.update(earlier.all_input_nodes)
                    if earlier.target in _OF_LAYOUT and any(of.op != "placeholder" for of in earlier.all_input_nodes):
                        return True
    return False


def _first_line(text: Any) -> str:
    return str(text).partition("\n")[0]


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {_first_line(error)}"


def _require_on(pass_run: PassRun, law: str, inputs: Inputs, beside: tuple[Inputs, ...] = ()) -> None:
    """Raise unless the contract is kept on a variant of the inputs, and ``beside``, if the captured program takes it.

    A program that is made for some inputs, a size say, may refuse others, and so may a capture.
    """
    if pass_run.program is None or not pass_run.subject.has(inputs) or pass_run.eager(inputs).error is not None:
        return
    if pass_run.actual(inputs).error is None:
        require_kept(law, pass_run, (*beside, inputs), _output)
    elif pass_run.is_given:
        pass_run.leave_out(law, f"the program refuses {inputs}")
    elif pass_run.with_nothing_changed().actual(inputs).error is not None:
        pass_run.leave_out(law, f"the capture refuses {inputs}")
    else:
        require_kept(law, pass_run, (*beside, inputs), _output)


def _both(pass_run: PassRun, inputs: Inputs = 0) -> tuple[Run, Run] | None:
    """Return what eager and the program do; None where either raises, which is for the law of the contract."""
    if pass_run.program is None or pass_run.eager(inputs).error is not None:
        return None
    actual = pass_run.actual(inputs)
    return None if actual.error is not None else (pass_run.eager(inputs), actual)


def _by_first_name(pass_run: PassRun, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state that a call of the transformed program changed, by the names that it has in the captured module."""
    return {pass_run.names.get(name, name): tensor for name, tensor in state.items()}


def _state(pass_run: PassRun, wanted: list[str], run: Run) -> dict[str, torch.Tensor | None]:
    written = {**run.rewritten, **run.state}
    found = {**written, **_by_first_name(pass_run, written)}
    return {name: found.get(name) for name in wanted}
