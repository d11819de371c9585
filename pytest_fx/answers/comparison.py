"""Comparison with saved answers: by output, and by the first layer that differs, with both machines' names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fx.container_kinds import map_leaves
from fx.passes import Close, Contract, close
from pytest_fx.answers.answer_file import Answers, AnswerSet, Flat, read_answers
from pytest_fx.answers.recording import digests, run_with_layers, subject_of
from pytest_fx.errors import AnswerError, AnswerViolation, ContractViolation
from pytest_fx.harness.contracts import Comparison
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.structure import describe, dtype_name, leaves
from pytest_fx.harness.subject import Subject
from pytest_fx.loading import load_contract
from pytest_fx.records.baseline import describe as describe_record
from pytest_fx.records.records import describe_machine


def assert_equal_to_answers(
    module: nn.Module, inputs: Any, path: str | os.PathLike[str], *, contract: Contract | str = close
) -> Comparison:
    """Raise :class:`~pytest_fx.errors.AnswerViolation` unless ``module`` gives the answers in a file.

    It is called with the saved inputs. ``inputs`` are example inputs as for :func:`~pytest_fx.save_answers`, of which
    only the structure is read. The error of the machine that wrote the file bounds that of this one, by ``contract``.

    Args:
        module: the model, with the same weights.
        inputs: example inputs.
        path: a file of :func:`~pytest_fx.save_answers` or ``--fx-save-answers``.
        contract: the contract, or its text.

    Returns:
        The comparison of the outputs.

    Raises:
        AnswerViolation: an output differs.
        AnswerError: the file is damaged, or of another model, other weights or other inputs.
    """
    __tracebackhide__ = True
    subject = subject_of(module, inputs)
    answers = answers_for(subject, path, read_answers(path))
    return require_answers(subject, answers, load_contract(contract), path)


def answers_for(subject: Subject, path: str | os.PathLike[str], answers: Sequence[Answers]) -> Answers:
    """Return the answers of a model among those in a file, by its name and mode.

    Raises:
        AnswerError: there are none, or they are of other weights.
    """
    own = next((each for each in answers if (each.model, each.mode) == (subject.name, subject.mode)), None)
    if own is None:
        names = ", ".join(f"{each.model} ({each.mode})" for each in answers) or "none"
        raise AnswerError(f"{path} has no answers of {subject.name} in mode {subject.mode!r}", why=f"it has {names}")
    here = digests(subject.tensors)
    differing = [name for name in {**own.state, **here} if own.state.get(name) != here.get(name)]
    if differing:
        raise AnswerError(
            f"the answers in {path} are of other weights of {subject.name}",
            why=f"{len(differing)} of {len(here)} parameters and buffers differ, {differing[0]!r} first",
            remedy="load the same checkpoint, or let the factory draw the weights from a seed",
        )
    return own


def require_answers(
    subject: Subject,
    answers: Answers,
    contract: Contract,
    path: str | os.PathLike[str],
    program: Callable[[Subject], Callable[[int], Any]] | None = None,
    name: str = "",
) -> Comparison:
    """Raise :class:`AnswerViolation` unless a model, or a program made of it, gives these answers.

    Args:
        subject: the model, with inputs of the structure of the saved ones.
        answers: its answers.
        contract: the contract of the outputs.
        path: the file, for messages.
        program: makes a function that returns the program's output for a numbered input set; None for the model itself.
        name: the name of the program.

    Raises:
        AnswerError: the saved inputs do not fit to the model.
    """
    __tracebackhide__ = True
    example = subject.arguments()
    saved = subject.called_with([_saved_arguments(example, each, path) for each in answers.sets])
    output = _eager_output if program is None else program
    outputs = list(map(output(saved), range(len(answers.sets))))
    wanted = [_restored(each.output, actual, path) for each, actual in zip(answers.sets, outputs, strict=True)]
    exact = [
        _restored(each.output64 or each.output, actual, path)
        for each, actual in zip(answers.sets, outputs, strict=True)
    ]
    what = name or subject.name
    comparison = Comparison(f"the saved {subject.name}", what, wanted, outputs, exact)
    try:
        comparison.require(contract)
    except ContractViolation as violation:
        lines = [
            f"  there  {describe_record(answers.machine)}",
            f"  here   {describe_record(describe_machine())}",
            *(_first_layer(saved, answers, contract) if program is None else []),
        ]
        text = "\n".join([f"{what} does not give the answers in {path}", *_parts(violation), *lines])
        raise AnswerViolation(text) from None
    return comparison


def _parts(violation: ContractViolation) -> list[str]:
    """Return the lines of a violation but the first; the reference is saved, and no program is transformed."""
    return [line.replace("transformed", "here") for line in str(violation).splitlines()[1:]]


def _eager_output(subject: Subject) -> Callable[[int], Any]:
    def output(number: int) -> Any:
        run = subject.eager(number)
        if run.error is not None:
            raise run.error
        return run.output

    return output


def _saved_arguments(example: Arguments, saved: AnswerSet, path: str | os.PathLike[str]) -> Arguments:
    """Return the saved inputs in the containers of the example.

    Raises:
        AnswerError: they are of another structure.
    """
    parts: list[Any] = []
    for values, like in ((saved.args, example.args), (saved.kwargs, example.kwargs)):
        own = dict(leaves(like))
        if own.keys() != values.keys() or any(_kind(own[key]) != _kind(value) for key, value in values.items()):
            raise AnswerError(
                f"the answers in {path} are of other inputs",
                value=f"{_listed(values)} there, {_listed(own)} here",
                remedy="let the factory return inputs of the same structure, dtypes and dimensions",
            )
        devices = {key: leaf.device for key, leaf in own.items() if isinstance(leaf, torch.Tensor)}
        parts.append(
            _filled(like, {key: value.to(devices[key]) if key in devices else value for key, value in values.items()})
        )
    return Arguments(*parts)


def _kind(leaf: Any) -> Any:
    return (leaf.dtype, leaf.dim()) if isinstance(leaf, torch.Tensor) else type(leaf)


def _listed(values: Mapping[str, Any]) -> str:
    texts = (
        f"{path} {dtype_name(leaf.dtype)} {list(leaf.shape)}" if isinstance(leaf, torch.Tensor) else f"{path} {leaf!r}"
        for path, leaf in values.items()
    )
    return ", ".join(texts) or "none"


def _restored(saved: Flat, actual: Any, path: str | os.PathLike[str]) -> Any:
    """Return a saved output in the containers of the output here."""
    own = dict(leaves(actual))
    if own.keys() != saved.keys():
        raise AnswerViolation(
            f"the output has another structure than in {path}",
            value=f"{describe(actual)} here; saved were {_listed(saved)}",
        )
    on_device = {
        key: value.to(own[key].device)
        if isinstance(value, torch.Tensor) and isinstance(own[key], torch.Tensor)
        else value
        for key, value in saved.items()
    }
    return _filled(actual, on_device)


def _filled(template: Any, values: Mapping[str, Any]) -> Any:
    """Return ``template`` with the leaves of ``values``, which have its paths in its order."""
    remaining = iter(values[path] for path, _ in leaves(template))
    return map_leaves(lambda _: next(remaining), template)


def _first_layer(subject: Subject, answers: Answers, contract: Contract) -> list[str]:
    """Return a line with the first saved layer whose output differs."""
    for number, saved in enumerate(answers.sets):
        if not saved.layers:
            return ["  layer  none was saved: --fx-layer PATH|CLASS, with --fx-save-answers, chooses some"]
        _, calls = run_with_layers(subject, number, sorted({layer.path for layer in saved.layers}))
        for position, (layer, call) in enumerate(zip(saved.layers, calls, strict=False)):
            if layer.path != call[0] or layer.value.keys() != call[2].keys():
                return [f"  layer  {layer.path} was called there, and {call[0]} here"]
            exact = layer.value64 or layer.value
            comparison = Comparison(answers.model, "", [layer.value], [call[2]], [exact])
            promise = contract if isinstance(contract, Close) else replace(close)
            try:
                comparison.require(promise)
            except ContractViolation:
                return [
                    f"  layer  {layer.path} ({layer.kind}) is the first of {len(saved.layers)} saved that differs, "
                    f"by {comparison.largest_error():.2g}; {position} before it are right"
                ]
    return ["  layer  all that were saved are right: what differs comes after them"]
