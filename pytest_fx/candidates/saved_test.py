"""A test file that judges a wrong candidate alone, on the inputs that show the fault and by the law that it breaks."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from fx.errors import FxError
from fx.naming.targets import torch_path
from pytest_fx.failures.explanation import replace_folder
from pytest_fx.failures.reproducer_file import import_paths, spell_value
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.named_objects import import_attribute
from pytest_fx.records.journal import ignore_in_git

_TEMPLATE = '''\
"""{headline}.

Run it with pytest, from any folder; it passes once the candidate is right.
"""

import pathlib
import sys

import torch
from safetensors.torch import load_file

from pytest_fx import judge

FOLDER = pathlib.Path(__file__).parent
{path}

def test_{slug}():
    tensors = load_file(FOLDER / "inputs.safetensors")
    inputs = {inputs}
    torch.set_num_threads(1)  # a fork has one thread alone
    verdict = judge({subjects}, inputs, {options})
    assert verdict, str(verdict)
'''


@dataclass(frozen=True, slots=True)
class FailingCase:
    """A wrong candidate with the inputs that show it."""

    reference: Any
    """The reference, as the user gave it."""
    candidate: Any
    """The candidate, as the user gave it."""
    prepare: Any
    """The function that prepares the candidate, or None."""
    headline: str
    """The verdict in one line."""
    inputs: Arguments
    """The inputs."""
    law: str
    """The law to check alone; empty for all laws."""
    contract: str
    """The contract, as text."""
    forward_only: bool
    """Whether gradients and training mode are left out."""
    seed: int
    """The seed of the judgement."""
    mode: str
    """The mode of modules: ``"eval"``, ``"train"`` or ``"both"``."""
    device: str
    """The device."""


def write_test(case: FailingCase, folder: Path) -> Path:
    """Write a test of a case to a folder of its own below ``folder``, and return its path.

    The folder of an earlier run for the same candidate is replaced.

    Raises:
        FxError: reference, candidate or inputs cannot be written to a file.
        OSError: the folder cannot be written.
    """
    ignore_in_git(folder)
    tensors: dict[str, torch.Tensor] = {}
    spelled = spell_value(case.inputs.kwargs or case.inputs.args, tensors)
    temporary = Path(tempfile.mkdtemp(prefix=".judge.", dir=folder))
    try:
        subjects = [_spelled(each, name, temporary) for each, name in _subjects(case)]
        options = [f"contract={case.contract!r}", f"forward_only={case.forward_only}", f"seed={case.seed}"]
        choices = {"mode": (case.mode, "both"), "device": (case.device, "cpu"), "law": (case.law, "")}
        options += [f"{name}={value!r}" for name, (value, default) in choices.items() if value != default]
        options += [f"prepare={_spelled(case.prepare, 'prepare', temporary)[0]}"] if case.prepare is not None else []
        slug = _slug(case)
        target = folder / slug
        text = _TEMPLATE.format(
            headline=case.headline, path=import_paths([module for _, module in subjects], target), inputs=spelled,
            slug=slug, subjects=", ".join(text for text, _ in subjects),
            options=", ".join([*options, "timing=False", "folder=None"]),
        )  # fmt: skip
        (temporary / f"test_{slug}.py").write_text(text, encoding="utf-8")
        save_file(tensors, temporary / "inputs.safetensors")
        replace_folder(target, temporary)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target / f"test_{slug}.py"


def _subjects(case: FailingCase) -> tuple[tuple[Any, str], tuple[Any, str]]:
    return (case.reference, "reference"), (case.candidate, "candidate")


def _slug(case: FailingCase) -> str:
    names = [each if isinstance(each, str) else _named(each) for each, _ in _subjects(case)]
    text = re.sub(r"\W+", "_", f"{names[1]} for {names[0]}").strip("_").lower()[:60]
    return f"{text}_{hashlib.sha1(' '.join(names).encode()).hexdigest()[:6]}"


def _named(subject: Any) -> str:
    """Return ``module:attribute`` for a function, a class, or the class of an object."""
    if (path := torch_path(subject)) is not None:
        return path.replace(".", ":", 1)
    definition = subject if hasattr(subject, "__qualname__") else type(subject)
    return f"{definition.__module__}:{definition.__qualname__}"


def _spelled(subject: Any, name: str, folder: Path) -> tuple[str, str]:
    """Return an expression for a reference or a candidate, and the module to import for it.

    A module's instance is saved, by the name of its class and with its parameters.
    """
    if isinstance(subject, str):
        return repr(subject), subject.partition(":")[0]
    path = _named(subject)
    module = path.partition(":")[0]
    if module == "__main__":
        raise FxError(f"the {name} is defined in __main__", remedy="define it at the top of a module")
    if isinstance(subject, nn.Module):
        try:
            torch.save(subject, folder / f"{name}.pt")
            torch.load(folder / f"{name}.pt", weights_only=False)
        except Exception as error:
            raise FxError(f"the {name} cannot be saved", why=f"{type(error).__name__}: {error}") from error
        return f'torch.load(FOLDER / "{name}.pt", weights_only=False)', module
    try:
        is_same = import_attribute(path, name) is subject
    except FxError:
        is_same = False
    if not is_same:
        raise FxError(
            f"the {name} has no name under which it can be imported",
            value=repr(subject)[:80],
            remedy="define it at the top of a module",
        )
    return repr(path), module
