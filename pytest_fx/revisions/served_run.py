"""A process of one revision, as this process sees it: it judges passes, and times their programs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pytest_fx.errors import RevisionError
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.snapshot import is_strided
from pytest_fx.revisions.base_code import OPTION, LoadedCode, Place
from pytest_fx.revisions.serving import read_message, write_message
from pytest_fx.timing.samples import Call, Sample, SampledProgram

_LAST_WORDS = 10.0
"""Seconds in which the process ends after it was asked to."""
_FOLDER = Path(__file__).parent
_ERROR = re.compile(r"^(?:ERROR: |E   )", re.MULTILINE)
"""The start of a line in which pytest reports an error."""


@dataclass(frozen=True, slots=True)
class ServedVerdict:
    """The result of the test of a pass in the other process."""

    outcome: str
    """``"passed"``, ``"failed"`` or ``"skipped"``."""
    text: str
    """The failure, or the reason to skip; empty if it passed."""
    records: Sequence[dict[str, Any]]
    """Records of the test, as :func:`pytest_fx.report.recording.record_row` makes them."""
    loaded: LoadedCode | None
    """The code that the process has loaded; None if the test was not called."""


class ServedRun:
    """A process that runs pytest at one revision, and answers requests.

    >>> with ServedRun("this code", here(Path.cwd()), ["--fx-model", "mlp"]) as run:  # doctest: +SKIP
    ...     run.judge("mlp-fuse-conv-bn").outcome
    'passed'
    """

    def __init__(self, name: str, place: Place, arguments: Sequence[str]) -> None:
        """Start the process, in ``place``, with these arguments of pytest; ``name`` is for messages.

        Raises :class:`RevisionError` with the message of the process if it cannot collect its tests.
        """
        self.name, self._place = name, place
        self._rooted = tempfile.TemporaryDirectory(prefix="pytest-fx-against-")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        settings = {
            "path": place.path,
            "replaced": place.replaced,
            "last": place.last,
            "serving": str(_FOLDER / "serving.py"),
            "arguments": [*arguments, f"--rootdir={self._rooted.name}"],
        }
        self._process = subprocess.Popen(
            [place.interpreter, str(_FOLDER / "launch.py"), json.dumps(settings)],
            cwd=place.folder,
            env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for this process, which ends the other
        )
        self._started = False
        try:
            self.items: list[str] = self._answer()["items"]
            self._started = True
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ServedRun:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def judge(self, item: str) -> ServedVerdict:
        """Return the result of the test of a pass on a model, by the id of its parameters."""
        return _verdict(self._query(item=item))

    @contextlib.contextmanager
    def timed(self, item: str, threads: int) -> Generator[ServedProgram]:
        """Yield the program of the pass for the block, which can be timed with PyTorch's ``threads``.

        Raises :class:`RevisionError` if the process makes no program.
        """
        program = ServedProgram(self, self._code_of(self._query(item=item, threads=threads)))
        try:
            yield program
        finally:
            if not program.has_failed:
                self._query(do="end")

    def _code_of(self, answer: dict[str, Any]) -> LoadedCode:
        if "reports" in answer:
            verdict = _verdict(answer)
            raise RevisionError(
                f"{self.name} makes no program that could be timed",
                value=_indented(verdict.text),
                remedy="judge the pass alone (--fx-no-timing), or name a revision where it makes one",
            )
        return LoadedCode(**answer["loaded"])

    def sample(self, contents: list[torch.Tensor], count: int) -> dict[str, Any]:
        """Return the answer with the sample of ``count`` calls with these contents."""
        return self._query(calls=count, contents=contents)

    def _query(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer tells how it ended
            write_message(self._process.stdin, request)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer = read_message(self._process.stdout)
        if answer is None:
            raise self._ended()
        return answer

    def _ended(self) -> RevisionError:
        """Return the error for a process that ended, with the error that it printed."""
        status = self._process.wait()
        self._log.seek(0)
        log = self._log.read().decode(errors="replace").strip()
        errors = _ERROR.split(log)
        text = errors[1] if len(errors) > 1 else log[-2000:] or f"it printed nothing, and ended with status {status}"
        what = f"{self.name} cannot be run with these options"
        if self._started:
            what = f"the process of {self.name} ended by itself, with status {status}"
        return RevisionError(
            what,
            value=_indented(text),
            why=f"models, passes and options of the run must exist there, in a process of {self._place.interpreter}",
            remedy=f"name a revision that has them ({OPTION} REF), or an environment with pytest-fx and torch",
        )

    def close(self) -> None:
        """End the process, and the processes that it has started."""
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        try:
            self._process.wait(_LAST_WORDS)
        except subprocess.TimeoutExpired:
            if sys.platform != "win32":
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._rooted.cleanup()


class ServedProgram(SampledProgram):
    """The program of a pass in the process of a revision."""

    def __init__(self, run: ServedRun, loaded: LoadedCode) -> None:
        self._run = run
        self.has_failed = False
        """Whether the program has raised, so that the process serves it no more."""
        self.loaded = loaded
        """The code that the process has loaded."""

    def sample(self, calls: Sequence[Call]) -> tuple[Sample, Any]:
        """Return the time of the calls by the clock of the process, and the tensors of the last output by their paths.

        Raises :class:`RevisionError` if the program raises.
        """
        tensors = [[each.detach() for each in Arguments(*call).tensors if is_strided(each)] for call in calls]
        contents = [torch.stack(same) for same in zip(*tensors, strict=True)]
        answer = self._run.sample(contents, len(calls))
        if "sample" not in answer:
            self.has_failed = True
            raise RevisionError(
                f"the program of {self._run.name} raises when it is timed",
                value=_indented(_verdict(answer).text),
                remedy="judge the pass alone (--fx-no-timing)",
            )
        return Sample(*answer["sample"]), answer["output"]


def _verdict(answer: dict[str, Any]) -> ServedVerdict:
    """Return the result of a test from its reports: those of set-up, call and teardown."""
    reports = answer["reports"]
    worst = next((each for each in reports if each["outcome"] != "passed"), reports[-1])
    records = [json.loads(record) for each in reports if each["when"] == "call" for record in each["records"]]
    loaded = LoadedCode(**answer["loaded"]) if answer["loaded"] else None
    return ServedVerdict(worst["outcome"], worst["text"] or "", records, loaded)


def _indented(text: str) -> str:
    """Return text of several lines for a message, below its first line."""
    return text.strip().replace("\n", "\n         ")
