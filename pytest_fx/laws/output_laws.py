"""Laws about the outputs of a transformed program, and about its effects on inputs and state."""

from __future__ import annotations

import itertools
from functools import partial
from operator import attrgetter

import torch

from fx.operators.effects import effect_of
from fx.operators.tensor_queries import names_of
from pytest_fx.errors import LawViolation, in_a_line
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
"""Batch sizes on which small programs are tried, besides their own."""
SIZES, SIZES_OF_LARGE, SIZES_OF_GROUP = 12, 4, 1
"""The most variants of other sizes: for a small model, for a model of full size or a random program, and for several of
these."""
LEAST_CHANGE, SHARE_LEFT = 1e-2, 1e-2
"""The least relative change of an output that counts if parameters change, and the share of it that may be missing."""
_OF_LAYOUT = names_of("memory")
_output, _inputs = attrgetter("output"), attrgetter("inputs")


def structure(pass_run: PassRun) -> None:
    """The result has the same structure: containers and their keys, shapes, and types of leaves."""
    runs = _both(pass_run)
    if runs is None:
        return
    eager, actual = runs
    if skeleton(eager.output) != skeleton(actual.output):
        difference = f"{describe(actual.output)} instead of {describe(eager.output)}"
        broken("structure", "the program returns something of another structure", value=difference)
    for (path, wanted), (_, leaf) in zip(leaves(eager.output), leaves(actual.output), strict=True):
        if isinstance(wanted, torch.Tensor):
            if not is_plain(leaf) and type(leaf) is not type(wanted):
                difference = f"{type(leaf).__qualname__} instead of {type(wanted).__qualname__}"
                broken("structure", "an output is a tensor of another class", where=f"output{path}", value=difference)
            if not (wanted.is_nested or leaf.is_nested) and wanted.shape != leaf.shape:  # nested tensors have no shape
                difference = f"{list(leaf.shape)} instead of {list(wanted.shape)}"
                broken("structure", "an output has another shape", where=f"output{path}", value=difference)
        elif type(wanted) is not type(leaf):
            difference = f"{type(leaf).__name__} instead of {type(wanted).__name__}"
            broken("structure", "an output is of another type", where=f"output{path}", value=difference)


def dtype(pass_run: PassRun) -> None:
    """Every output has the same dtype, device and memory layout class (strided, sparse)."""
    runs = _both(pass_run)
    if runs is None or skeleton(runs[0].output) != skeleton(runs[1].output):
        return
    for (path, wanted), (_, leaf) in zip(leaves(runs[0].output), leaves(runs[1].output), strict=True):
        if not isinstance(wanted, torch.Tensor):
            continue
        for what in ("dtype", "device", "layout"):
            expected, actual = getattr(wanted, what), getattr(leaf, what)
            if expected != actual:
                difference = f"{actual}, not {expected}"
                broken("dtype", f"an output has another {what}", where=f"output{path}", value=difference)


def contract(pass_run: PassRun) -> None:
    """The outputs are as near to eager's as the contract of the pass promises: see :mod:`fx.pipelines.contract`."""
    if pass_run.program is not None:
        require_kept("contract", pass_run, range(pass_run.input_set_count), _output)


def inputs_untouched(pass_run: PassRun) -> None:
    """The program writes the same values to its inputs as eager does; most programs write none."""
    if pass_run.program is not None:
        require_kept("inputs untouched", pass_run, range(pass_run.input_set_count), _inputs, "input")


def state(pass_run: PassRun) -> None:
    """A call changes buffers as in eager: running statistics in training mode, counters, caches.

    The same holds for the calls that follow. A pass adds no buffer that calls change. In a program that was made
    elsewhere, only buffers with the model's names and initial values are compared.
    """
    for inputs in (0, *pass_run.later_calls):
        _require_state(pass_run, inputs)


def _require_state(pass_run: PassRun, inputs: Inputs) -> None:
    runs = _both(pass_run, inputs)
    if runs is None:
        return
    known_names, is_given = _known_state(pass_run), pass_run.is_given
    changed, rewritten = runs[0].state, runs[0].rewritten
    eager = {name: changed[name] for name in known_names & changed.keys()} if is_given else changed
    actual = _by_first_name(pass_run, runs[1].state)
    wanted = list(eager)
    for name in eager:
        if name not in actual:
            why = "training reads it later, and saves it"
            broken("state", f"a call no longer changes {name!r} of the program, as it does in eager", why=why)
    for name in actual:
        if name in rewritten:  # eager writes its old values to it, which a rounding error may change
            wanted.append(name)
        elif name not in eager and name in known_names:
            broken("state", f"a call changes {name!r} of the program, but not in eager")
        elif name not in eager and not is_given:
            broken(
                "state",
                f"a call changes {name!r} of the program, which eager does not have",
                why="the next call reads the new values, and the saved state depends on them",
                remedy="write to a new tensor, or to a copy, or let the pass declare it: may_change = ('writes',)",
            )
    if wanted:
        part = partial(_state, pass_run, wanted)
        require_kept("state", pass_run, (inputs,), part, "buffer")


def _known_state(pass_run: PassRun) -> set[str]:
    """Return the names of eager's parameters and buffers that the program may hold."""
    if pass_run.before is not None:
        return set(pass_run.before.module.tensors)
    if not pass_run.is_given:
        return set(pass_run.subject.tensors)
    assert pass_run.program is not None
    originals = pass_run.subject.tensors
    own = tensors_of(pass_run.program).items()
    return {name for name, tensor in own if name in originals and same_tensor(tensor, originals[name])}


def aliasing(pass_run: PassRun) -> None:
    """An output shares memory with an input, or with another output, exactly if it does in eager."""
    runs = _both(pass_run)
    if runs is None or runs[0].shared == runs[1].shared:
        return
    eager, actual = (set(run.shared) for run in runs)
    for output, partner in sorted(actual - eager):
        why = "a write to one then changes the other, which callers do not expect"
        broken("aliasing", f"output{output} now shares memory with {partner}", why=why)
    for output, partner in sorted(eager - actual):
        why = "in eager, a write to one changes the other as well"
        broken("aliasing", f"output{output} no longer shares memory with {partner}", why=why)


def batch_sizes(pass_run: PassRun) -> None:
    """The contract holds for other batch sizes, 1 and 0 included, if eager accepts them."""
    if not pass_run.subject.is_full_size:
        for size in BATCHES[-1:] if pass_run.subject.is_group else BATCHES:
            _require_on(pass_run, "batch sizes", of_batch(size))
        return
    _require_on(pass_run, "batch sizes", pass_run.subject.of_another_size)


def non_contiguous_inputs(pass_run: PassRun) -> None:
    """The contract holds for inputs with other strides, or with a storage offset, if eager accepts them.

    If there are several inputs, each is also made non-contiguous alone, but not in groups of programs.
    """
    subject = pass_run.subject
    if subject.is_group:
        names = [NON_CONTIGUOUS]
    else:
        alone = variants.not_contiguous_alone(subject.arguments())
        names = alone[:1] or [NON_CONTIGUOUS] if subject.is_full_size else [NON_CONTIGUOUS, PART_OF_LARGER, *alone]
    for inputs in names:
        _require_on(pass_run, "non-contiguous inputs", inputs)


def non_finite_inputs(pass_run: PassRun) -> None:
    """NaN and infinities in the inputs reach the same outputs as in eager, unless the pass approximates."""
    _require_on(pass_run, "non-finite inputs", NON_FINITE)


def other_values(pass_run: PassRun) -> None:
    """The contract holds for inputs of opposite signs, ten times as large, or zero, if eager accepts them.

    The inputs are made from the example's floating-point tensors. A program that was made elsewhere also gets the
    example with one element changed. A pass on a model of full size gets only inputs of opposite signs. An approximate
    pass is exempt, since it is calibrated on the example's values.
    """
    of_pass = 1 if pass_run.subject.is_full_size else len(OTHER_VALUES) - 1  # a pass cannot know the example's elements
    # The outputs for the example set the scale of rounding errors: for negative numbers, the outputs of `gelu` are
    # about zero. For a model of full size, the outputs for its input sets already set the scale.
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
    """A program made elsewhere that has the model's parameters computes with their current values.

    All parameters are halved in both programs. A program that has only some of them, as after folding, is exempt.
    """
    if _both(pass_run) is None:
        return
    runners = pass_run.subject.eager_runner(), pass_run.runner()
    model_parameters, program_parameters = (list(runner.program.parameters()) for runner in runners)
    wanted = [parameter for parameter in model_parameters if parameter.is_floating_point() and is_strided(parameter)]
    matching = [each for each in program_parameters if any(same_tensor(each, parameter) for parameter in wanted)]
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
                why="it computes with values derived from them earlier: load_state_dict and training have no effect",
                remedy="compute from the parameters in each call, or do not keep them as parameters of the program",
            )


def _lags_behind(before: torch.Tensor, wanted: torch.Tensor, now: torch.Tensor) -> bool:
    """Return whether an output misses more than ``SHARE_LEFT`` of eager's change under new parameters."""
    if not before.is_floating_point() or not before.shape == wanted.shape == now.shape:
        return False
    if not all(map(is_plain, (before, wanted, now))):
        return False
    old, new, actual = (dense(tensor).double().nan_to_num(0.0, 0.0, 0.0) for tensor in (before, wanted, now))
    change = float((new - old).norm())
    return change > LEAST_CHANGE * float(old.norm()) and float((actual - new).norm()) > SHARE_LEFT * change


def other_sizes(pass_run: PassRun) -> None:
    """The contract holds for other sizes along each dimension, of all inputs or of one, if eager accepts them.

    Examples are lengths of sequences, heights and widths. A pass for the sizes of the example lists "sizes" in
    ``may_change``. A capture, or a program that was made elsewhere, may refuse other sizes.
    """
    subject = pass_run.subject
    # A longer sequence may index positions out of range; only on a CPU can that error be caught.
    longer = subject.device.type == "cpu" and not subject.is_full_size
    names = variants.other_sizes(subject.arguments(), longer=longer)
    accepted = (name for name in reversed(names) if subject.has(name) and pass_run.eager(name).error is None)
    most = SIZES_OF_LARGE if subject.is_full_size or subject.source else SIZES_OF_GROUP if subject.is_group else SIZES
    for inputs in reversed(list(itertools.islice(accepted, most))):
        _require_on(pass_run, "other sizes", inputs)


def checks(pass_run: PassRun) -> None:
    """Inputs that a check of the program refuses are still refused, with the same message.

    A pass with ``"checks"`` in ``may_change`` is exempt. Checks of the memory layout of computed values are ignored.
    """
    if pass_run.before is None or pass_run.after is None or not pass_run.before.has_checks:
        return
    for inputs in (0, *map(of_batch, BATCHES), NON_CONTIGUOUS, NON_FINITE):
        if not pass_run.subject.has(inputs):
            continue
        refused = _refusal(pass_run.untouched().actual(inputs).error)
        if refused is None or _is_about_layout(refused, pass_run):
            continue
        actual = pass_run.actual(inputs)
        if actual.error is not None and refuses_inputs(pass_run, actual.error):
            continue  # refused by the pass's own check
        if refused != _refusal(actual.error):
            outcome = "it returns" if actual.error is None else f"it raises {in_a_line(actual.error)}"
            raise LawViolation(
                "checks",
                f"{pass_run.name} removes or changes a check of the program",
                value=f"{outcome}, instead of raising {refused}",
                where=None if inputs == 0 else f"called with {inputs}",
                why="callers rely on the checks of a program, and read their messages",
                remedy="keep torch._assert and other nodes that raise, or list 'checks' in may_change",
                inputs=inputs,
            )


def _refusal(error: Exception | None) -> str | None:
    """Return the message of a failed check; None for another error, or none."""
    return in_a_line(error) if isinstance(error, AssertionError) else None


def _is_about_layout(refused: str, pass_run: PassRun) -> bool:
    """Return whether the failed check tests the memory layout of a computed value, which passes may change."""
    captured = pass_run.untouched().after
    assert captured is not None
    for node in captured.graph.nodes:
        effect = effect_of(node) if node.op == "call_function" else None
        if effect is not None and effect.kind == "check" and refused.endswith(str(node.args[-1]).partition("\n")[0]):
            read = {node}
            for earlier in reversed(captured.graph.nodes):
                if earlier in read:
                    read.update(earlier.all_input_nodes)
                    if earlier.target in _OF_LAYOUT and any(of.op != "placeholder" for of in earlier.all_input_nodes):
                        return True
    return False


def _require_on(pass_run: PassRun, law: str, inputs: Inputs, beside: tuple[Inputs, ...] = ()) -> None:
    """Raise unless the contract is kept on ``inputs`` and ``beside``, if the capture accepts these.

    A program that was made elsewhere, for one size of inputs for instance, may refuse others, and so may a capture.
    """
    if pass_run.program is not None and pass_run.subject.is_outside(inputs):
        pass_run.leave_out(law, f"{inputs} are outside of the declared domain")
    if pass_run.program is None or not pass_run.subject.has(inputs) or pass_run.eager(inputs).error is not None:
        return
    if pass_run.actual(inputs).error is None:
        require_kept(law, pass_run, (*beside, inputs), _output)
    elif pass_run.is_made_elsewhere:
        pass_run.leave_out(law, f"the program refuses {inputs}")
    elif pass_run.with_nothing_changed().actual(inputs).error is not None:
        pass_run.leave_out(law, f"the capture refuses {inputs}")
    else:
        require_kept(law, pass_run, (*beside, inputs), _output)


def _both(pass_run: PassRun, inputs: Inputs = 0) -> tuple[Run, Run] | None:
    """Return the runs of eager and of the program; None if either raises, which the contract law covers."""
    if pass_run.program is None or pass_run.eager(inputs).error is not None:
        return None
    actual = pass_run.actual(inputs)
    return None if actual.error is not None else (pass_run.eager(inputs), actual)


def _by_first_name(pass_run: PassRun, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the state that a call of the transformed program changed, by its names in the captured module."""
    return {pass_run.names.get(name, name): tensor for name, tensor in state.items()}


def _state(pass_run: PassRun, wanted: list[str], run: Run) -> dict[str, torch.Tensor | None]:
    written = {**run.rewritten, **run.state}
    values = {**written, **_by_first_name(pass_run, written)}
    return {name: values.get(name) for name in wanted}
