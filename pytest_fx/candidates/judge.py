"""``judge``: check whether a candidate may replace a reference, and measure its speed-up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fx.errors import FxError
from fx.passes import Contract, close
from pytest_fx.candidates.batch_timing import timed
from pytest_fx.candidates.drawn_inputs import Drawn, InputSet, batches_of_calls, input_sets, samples
from pytest_fx.candidates.judgement import (
    LAWS_ALONE,
    BrokenLaw,
    Judgement,
    Unjudged,
    described,
)
from pytest_fx.candidates.party_process import Party, PartySetting, RecordedParty
from pytest_fx.candidates.saved_test import FailingCase, write_test
from pytest_fx.candidates.verdict import NOT_JUDGED, WRONG, RefusedCandidate, Verdict
from pytest_fx.errors import InputError
from pytest_fx.harness.domains import InputDomain
from pytest_fx.harness.input_sets import InputSets
from pytest_fx.loading import load_contract
from pytest_fx.named_objects import by_module, import_attribute
from pytest_fx.option_table import DEVICES, MODES
from pytest_fx.processes.child import ChildEnded, Limits, unavailable
from pytest_fx.records.running import FOLDER

SECONDS = 60.0
"""Seconds that a call may take."""
Prepare = Callable[[Any], object] | str | None
"""A function that prepares a candidate, or its name."""


def judge(
    reference: Any,
    candidate: Any,
    inputs: Any,
    *,
    contract: Contract | str = close,
    forward_only: bool = False,
    prepare: Prepare = None,
    timing: bool = True,
    seed: int = 0,
    timeout: float = SECONDS,
    mode: str = "both",
    device: str = "cpu",
    law: str = "",
    folder: Path | None = Path(FOLDER),
) -> Verdict:
    """Judge whether ``candidate`` computes the same as ``reference``, by a float64 reference, and time it if it does.

    Each runs in its own process, forked from this one. A subject given by name is imported only there.

    Args:
        reference: a module, a function, ``package.module:attribute`` or ``folder/file.py:attribute``.
        candidate: the same; parameters and buffers of a module must have the names of the reference's.
        inputs: a callable from a seed to the inputs of a call, or an example from which others are drawn. Inputs are a
            tuple of positional arguments, a dict of named ones, or a single one. Or :class:`pytest_fx.InputSets`, with
            shapes and a domain that drawn inputs keep to.
        contract: the contract on the outputs, or its text, such as ``"exact"``; ``fx.passes.close`` by default.
        forward_only: whether to leave out gradients and training mode.
        prepare: called with the candidate in its process after parameters are written, for example to pack them; a
            function or its name.
        timing: whether to time a right candidate.
        seed: the seed of drawn inputs and parameters.
        timeout: most seconds of a call.
        mode: ``"eval"`` or ``"train"`` to call modules in this mode alone; ``"both"`` by default.
        device: ``"cpu"`` or ``"cuda"``; modules and inputs are copied to it in their processes.
        law: check this law alone, on the inputs as given; empty for all laws. Tests of failures use it.
        folder: the folder for the test of a failure, which fails alone; None for no test. By default ``.pytest_fx``.

    Returns:
        The verdict: right, wrong (with the law and small inputs that show it), not judged, or degenerate reference.

    Raises:
        InputError: ``inputs`` is a callable that fails, or has no tensors; or no law, mode or device has the name; or
            there is no GPU, or this process has used it.
        CannotLoadError: ``contract`` is not a contract, or a file does not exist.

    >>> import torch
    >>> verdict = judge(torch.nn.functional.relu, lambda x: x.clamp(min=0), torch.randn(4, 3), timing=False)
    >>> verdict.verdict, verdict.law
    ('wrong', 'gradients')
    """
    options: dict[str, Any] = {"timing": timing, "seed": seed, "timeout": timeout, "law": law, "folder": folder}
    options |= {"mode": mode, "device": device}
    with Judge(reference, inputs, contract=contract, forward_only=forward_only, **options) as judge_of_reference:
        return judge_of_reference.judge(candidate, prepare=prepare)


class Judge:
    """A judge of many candidates for one reference, which computes the reference once for all of them.

    The process, the drawn inputs and the results of the reference are kept until :meth:`close`; use it in a ``with``
    statement. Each candidate still has its own process, which cannot reach the results.

    >>> import torch
    >>> with Judge(torch.nn.functional.relu, torch.randn(4, 3), forward_only=True, timing=False) as judge_of_relu:
    ...     [judge_of_relu.judge(candidate).verdict for candidate in (torch.relu, torch.abs)]
    ['right', 'wrong']
    """

    def __init__(
        self,
        reference: Any,
        inputs: Any,
        *,
        contract: Contract | str = close,
        forward_only: bool = False,
        timing: bool = True,
        seed: int = 0,
        timeout: float = SECONDS,
        mode: str = "both",
        device: str = "cpu",
        law: str = "",
        folder: Path | None = Path(FOLDER),
    ) -> None:
        """Draw the inputs. The arguments, and the errors raised, are those of :func:`judge`."""
        self._contract, self._forward_only, self._timing, self._seed = (
            load_contract(contract),
            forward_only,
            timing,
            seed,
        )
        if law and law not in LAWS_ALONE:
            raise InputError(f"no law {law!r} is checked alone", remedy="use one of " + ", ".join(LAWS_ALONE))
        self._law, self._folder = law, folder
        self._setting = _setting(mode, device)
        self._domain = inputs.domain if isinstance(inputs, InputSets) else InputDomain()
        several = self._several = samples(inputs, seed)
        if not several[0].tensors:
            raise InputError(
                "judge needs tensors as inputs", remedy="give inputs=(x,), or a function that takes a seed"
            )
        self._input_sets = Drawn(lambda: input_sets(several, seed, self._domain), several[0])
        self._batches = Drawn(lambda: batches_of_calls(several, self._domain), several[0])
        self._limits = Limits(seconds=timeout)
        self._reference = _in_module(reference, "reference")
        self._party: RecordedParty | None = None

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process of the reference."""
        if self._party is not None:
            self._party.close()
            self._party = None

    def judge(self, candidate: Any, *, prepare: Prepare = None) -> Verdict:
        """Judge a candidate as :func:`judge` does."""
        candidate = _in_module(candidate, "candidate")
        start, names = time.perf_counter(), (_name(self._reference), _name(candidate))
        if (why := unavailable()) is not None:
            return Verdict(NOT_JUDGED, *names, evidence=f"no process for a candidate can be started: {why}")
        try:
            verdict, inputs = self._verdict(candidate, prepare, names)
        except BaseException:
            self.close()  # the reference may be in the middle of a call
            raise
        if verdict.verdict == WRONG and self._folder is not None:
            verdict = self._with_test(verdict, candidate, prepare, inputs, self._folder)
        return replace(verdict, seconds=time.perf_counter() - start)

    def _verdict(self, candidate: Any, prepare: Prepare, names: tuple[str, str]) -> tuple[Verdict, InputSet | None]:
        """Return the verdict, with the inputs that show a broken law if there are any."""
        failing: InputSet | None = None
        judgement: Judgement | None = None
        party: Party | None = None
        try:
            reference = self._reference_party()
            load = _loader(candidate, "candidate")
            party = Party(load, _preparation(prepare), self._limits, self._setting, apart_from=(reference,))
            reference.resume()
            judgement = Judgement(
                reference, party, self._several, self._input_sets, self._batches, self._domain,
                self._contract, self._forward_only, self._seed, self._setting.mode, self._law,
            )  # fmt: skip
            judgement.check_laws()
            verdict = judgement.right(names)
            if self._timing and judgement.is_random:
                verdict = replace(verdict, why_no_speedup="the reference is random, so that no output can be compared")
            elif self._timing:
                verdict = timed(reference, party, self._several, self._domain, verdict, judgement.allowed)
                judgement.check_process()  # later calls may have changed it
        except BrokenLaw as broken:
            smallest = judgement.smaller(broken) if judgement is not None else broken
            failing = smallest.inputs
            verdict = Verdict(
                WRONG, *names, law=smallest.law, evidence=smallest.evidence, inputs=described(failing),
                intermediate="" if judgement is None else judgement.first_wrong_part(smallest),
            )  # fmt: skip
        except Unjudged as unjudged:
            verdict = Verdict(unjudged.kind, *names, evidence=str(unjudged))  # type: ignore[arg-type]
        except ChildEnded as ended:
            verdict = Verdict(WRONG, *names, law="process", evidence=f"the candidate {ended.ending.cause}")
            if self._party is None or self._party.has_ended:
                verdict = Verdict(NOT_JUDGED, *names, evidence=f"the reference {ended.ending.cause}")
        finally:
            if party is not None:
                party.close()
        if judgement is not None:
            laws, refused = tuple(judgement.laws), tuple(judgement.refused)
            verdict = replace(
                verdict,
                laws=laws,
                input_sets=judgement.count,
                most_elements=judgement.most_elements,
                refused=refused,
            )
        return verdict, failing

    def _with_test(
        self, verdict: Verdict, candidate: Any, prepare: Prepare, failing: InputSet | None, folder: Path
    ) -> Verdict:
        """Write a test of a wrong candidate, by its law alone if the candidate is wrong then, too."""
        as_given = self._several[0]
        options: dict[str, Any] = {
            "contract": str(self._contract),
            "forward_only": self._forward_only or (failing is not None and failing.forward_only),
            "seed": self._seed,
            "mode": self._setting.mode,
            "device": self._setting.device,
        }
        case = FailingCase(
            self._reference, candidate, prepare, str(verdict).partition("\n")[0],
            as_given if failing is None else failing.arguments, verdict.law, **options,
        )  # fmt: skip
        if not self._is_wrong_alone(case):
            options["forward_only"] = self._forward_only
            case = replace(case, inputs=as_given, law="", **options)
        try:
            return replace(verdict, test=str(write_test(case, folder)))
        except (FxError, OSError) as error:
            return replace(verdict, why_no_test=str(error).partition("\n")[0])

    def _is_wrong_alone(self, case: FailingCase) -> bool:
        if case.law not in LAWS_ALONE:
            return False
        options: dict[str, Any] = {"contract": self._contract, "forward_only": case.forward_only, "seed": case.seed}
        options |= {"mode": case.mode, "device": case.device}
        with Judge(
            case.reference, case.inputs, timing=False, timeout=self._limits.seconds or SECONDS, law=case.law,
            folder=None, **options,
        ) as judge_of_case:  # fmt: skip
            return judge_of_case.judge(case.candidate, prepare=case.prepare).verdict == WRONG

    def _reference_party(self) -> RecordedParty:
        """Return the process of the reference without its record, started if it is not running."""
        if self._party is not None and not self._party.has_ended:
            self._party.suspend()
            return self._party
        self.close()
        self._party = RecordedParty(_loader(self._reference, "reference"), self._limits, self._setting)
        return self._party


def _setting(mode: str, device: str) -> PartySetting:
    if mode not in MODES:
        raise InputError(f"judge has no mode {mode!r}", remedy=f"use one of {', '.join(MODES)}")
    if device not in DEVICES:
        raise InputError(f"judge has no device {device!r}", remedy=f"use one of {', '.join(DEVICES)}")
    if device != "cpu" and not torch.cuda.is_available():
        raise InputError("judge finds no CUDA device", remedy="leave out the device, to judge on the CPU")
    if device != "cpu" and torch.cuda.is_initialized():
        raise InputError(
            "judge needs a process that has not used CUDA",
            why="reference and candidate run in forks of it, and CUDA does not work in a fork after its first use",
            remedy="make modules and inputs on the CPU, or give names of reference and candidate",
        )
    return PartySetting(device, mode)


def require_right(reference: Any, candidate: Any, inputs: Any, **options: Any) -> Verdict:
    """Judge as :func:`judge` does.

    Raises:
        RefusedCandidate: the verdict is not ``right``.
    """
    __tracebackhide__ = True
    verdict = judge(reference, candidate, inputs, **options)
    if not verdict:
        raise RefusedCandidate(verdict)
    return verdict


def _in_module(subject: Any, kind: str) -> Any:
    return by_module(subject, kind) if isinstance(subject, str) else subject


def _name(subject: Any) -> str:
    if isinstance(subject, str):
        return subject
    return getattr(subject, "__qualname__", None) or type(subject).__qualname__


def _preparation(prepare: Prepare) -> Callable[[Any], object] | None:
    """Return the function that prepares a candidate, imported when it is first called if it is given by name."""
    if not isinstance(prepare, str):
        return prepare

    def prepare_by_name(subject: Any) -> object:
        kind = "function that prepares a candidate"
        return import_attribute(by_module(prepare, kind), kind)(subject)

    return prepare_by_name


def _loader(subject: Any, kind: str) -> Callable[[], Any]:
    """Return a function that loads a reference or a candidate in its process."""

    def load() -> Any:
        loaded = import_attribute(subject, kind) if isinstance(subject, str) else subject
        if isinstance(loaded, type) and issubclass(loaded, nn.Module):
            loaded = loaded()
        if not callable(loaded):
            raise TypeError(f"the {kind} cannot be called")
        return loaded

    return load
