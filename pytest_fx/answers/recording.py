"""Recording of answers: a model's inputs, outputs, float64 outputs, and outputs of chosen layers."""

from __future__ import annotations

import fnmatch
import hashlib
import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from pytest_fx.answers.answer_file import Answers, AnswerSet, Flat, LayerAnswer, flat, write_answers
from pytest_fx.errors import AnswerError
from pytest_fx.harness.contracts import rounding_error
from pytest_fx.harness.equality import Mismatch, pair_leaves
from pytest_fx.harness.input_sets import as_arguments
from pytest_fx.harness.run import Run
from pytest_fx.harness.subject import Subject, is_training
from pytest_fx.records.records import describe_machine

CHILDREN = "*"
"""The default pattern of layers: all direct parts of the model, whose paths have no dot."""
LayerCall = tuple[str, str, Flat]
"""The path and the class of a called layer, and its output."""


def save_answers(
    module: nn.Module, inputs: Any, path: str | os.PathLike[str], *, layers: Sequence[str] = (CHILDREN,)
) -> None:
    """Save the answers of ``module`` to a file of safetensors, for :func:`~pytest_fx.assert_equal_to_answers`.

    Args:
        module: the model, which need not be capturable.
        inputs: example inputs of a call: a tuple of positional arguments, a dict of named ones, the only one, or a list
            of several such sets.
        path: the file, which is replaced.
        layers: paths of modules, patterns of paths, or names of classes, whose outputs are saved. A star does not match
            a dot. Empty for none.

    Raises:
        AnswerError: the model cannot be called, or an output cannot be saved.
    """
    write_answers(path, [answers_of(subject_of(module, inputs), layers)])


def subject_of(module: nn.Module, inputs: Any) -> Subject:
    """Return a module with its inputs, in its own mode and dtypes, as a subject."""
    sets = [as_arguments(each) for each in (inputs if isinstance(inputs, list) else [inputs])]
    return Subject(
        type(module).__name__,
        module,
        sets.__getitem__,
        input_set_count=len(sets),
        mode="train" if is_training(module) else "eval",
        keeps_dtypes=True,
    )


def answers_of(subject: Subject, layers: Sequence[str]) -> Answers:
    """Call a model on all its input sets, and return its answers.

    Raises:
        AnswerError: the model raises, or an input or output cannot be saved.
    """
    sets = tuple(_answer_set(subject, number, layers) for number in range(subject.input_set_count))
    return Answers(subject.name, subject.mode, describe_machine(), digests(subject.tensors), sets)


def _answer_set(subject: Subject, number: int, layers: Sequence[str]) -> AnswerSet:
    run, calls = run_with_layers(subject, number, layers)
    if run.error is not None:
        raise AnswerError(f"{subject.name} has no answer", why=f"{type(run.error).__name__}: {run.error}")
    run64, calls64 = run_with_layers(subject, number, layers, float64=True)
    values64 = [value for _, _, value in calls64] if len(calls64) == len(calls) else [{} for _ in calls]
    arguments = subject.arguments(number)
    return AnswerSet(
        flat(arguments.args),
        flat(arguments.kwargs),
        flat(run.output),
        {} if run64.error is not None else flat(run64.output),
        _errors(run, run64),
        tuple(LayerAnswer(*call, value64) for call, value64 in zip(calls, values64, strict=True)),
    )


def _errors(run: Run, run64: Run) -> dict[str, float]:
    """Return eager's own largest rounding error at each place of the output."""
    pairs = None if run64.error is not None else pair_leaves(run64.output, run.output, same_dtype=False)
    return {} if pairs is None or isinstance(pairs, Mismatch) else {leaf.path: rounding_error(leaf) for leaf in pairs}


def run_with_layers(
    subject: Subject, number: int, layers: Sequence[str], *, float64: bool = False
) -> tuple[Run, list[LayerCall]]:
    """Call a model on an input set; return the call, and the outputs of the layers whose path or class matches.

    A layer is omitted if its output is not data.
    """
    runner, calls = subject.eager_runner(float64), list[LayerCall]()
    with _watched(runner.program, layers, calls):
        run = subject.run_in_a_row(runner, number, float64)[-1]
    return run, calls


@contextmanager
def _watched(module: nn.Module, layers: Sequence[str], calls: list[LayerCall]) -> Generator[None]:
    """Append the output of each call of the chosen layers to ``calls`` inside the block."""

    def note(path: str, part: nn.Module, args: Any, output: Any) -> None:
        try:
            value = flat(output)
        except AnswerError:
            return
        copies = {key: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for key, leaf in value.items()}
        calls.append((path, type(part).__name__, copies))

    chosen = chosen_layers(module, layers)
    handles = [part.register_forward_hook(partial(note, path)) for path, part in chosen.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def chosen_layers(module: nn.Module, patterns: Iterable[str]) -> dict[str, nn.Module]:
    """Return the modules whose path or class one of the patterns names; a star does not match a dot.

    >>> layers = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    >>> list(chosen_layers(layers, ["*"])), list(chosen_layers(layers, ["1.*", "Linear"]))
    (['0', '1'], ['0', '1.0'])
    """
    patterns = list(patterns)

    def is_chosen(path: str, part: nn.Module) -> bool:
        return any(
            type(part).__name__ == pattern
            or (path.count(".") == pattern.count(".") and fnmatch.fnmatchcase(path, pattern))
            for pattern in patterns
        )

    return {path: part for path, part in module.named_modules() if path and is_chosen(path, part)}


def digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return a digest of the dtype, shape and elements of each tensor."""
    return {name: _digest(tensor) for name, tensor in tensors.items()}


def _digest(tensor: torch.Tensor) -> str:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        return "unknown"
    digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}".encode())
    octets: Any = tensor.detach().cpu().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy()
    digest.update(memoryview(octets))
    return digest.hexdigest()[:16]
