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

_LAST_WORDS = 3.0
"""Seconds in which the process ends after it was asked to."""
_MOST_PRINTED = 2000
"""Characters of what a process printed that a message shows."""
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
        self.name, self._place, self._arguments = name, place, arguments
        self._process: subprocess.Popen[bytes] | None = None
        self.items: list[str] = []
        """The ids of the parameters of the tests that the process has."""
        self._start()

    def _start(self) -> None:
        """Start the process, or start it again."""
        self._rooted = tempfile.TemporaryDirectory(prefix="pytest-fx-against-")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        settings = {
            "path": self._place.path,
            "replaced": self._place.replaced,
            "last": self._place.last,
            "serving": str(_FOLDER / "serving.py"),
            "arguments": [*self._arguments, f"--rootdir={self._rooted.name}"],
        }
        self._process = subprocess.Popen(
            [self._place.interpreter, str(_FOLDER / "launch.py"), json.dumps(settings)],
            cwd=self._place.folder,
            env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for this process, which ends the other
        )
        with self._ended_by_errors(self._process) as process:
            answer = self._answer_of(process)
            if answer is None:
                raise RevisionError(
                    f"{self.name} cannot be run with these options",
                    value=_indented(self._last_words(process)),
                    why="models, passes and options of the run must exist there, in a process of "
                    f"{self._place.interpreter}",
                    remedy=f"name a revision that has them ({OPTION} REF), or an environment with pytest-fx and torch",
                )
            self.items = answer["items"]

    def __enter__(self) -> ServedRun:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def judge(self, item: str) -> ServedVerdict:
        """Return the result of the test of a pass on a model, by the id of its parameters."""
        return _verdict(self._begin(item=item))

    @contextlib.contextmanager
    def timed(self, item: str, threads: int) -> Generator[ServedProgram]:
        """Yield the program of the pass for the block, which can be timed with PyTorch's ``threads``.

        Raises :class:`RevisionError` if the process makes no program.
        """
        program = ServedProgram(self, self._code_of(self._begin(item=item, threads=threads)))
        try:
            yield program
        finally:
            if self._process is not None and not program.has_failed:
                self._query(self._process, do="end")

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
        assert self._process is not None
        return self._query(self._process, calls=count, contents=contents)

    def _begin(self, **request: Any) -> dict[str, Any]:
        """Return the answer to a request for a test. A process that ended in an earlier test is started again."""
        if self._process is None:
            self._start()
        assert self._process is not None
        return self._query(self._process, **request)

    def _query(self, process: subprocess.Popen[bytes], **request: Any) -> dict[str, Any]:
        assert process.stdin is not None
        with self._ended_by_errors(process):
            with contextlib.suppress(BrokenPipeError):  # the answer tells how it ended
                write_message(process.stdin, request)
            answer = self._answer_of(process)
            if answer is None:
                status = process.wait()
                raise RevisionError(
                    f"the process of {self.name} ended in this test, with status {status}",
                    value=_indented(self._last_words(process)),
                    remedy="run pytest at that revision, with --fx-isolate, to see where it ends",
                )
            return answer

    @contextlib.contextmanager
    def _ended_by_errors(self, process: subprocess.Popen[bytes]) -> Generator[subprocess.Popen[bytes]]:
        """End the process if the block raises, such as ``KeyboardInterrupt``: its answer would be of an old request."""
        try:
            yield process
        except BaseException:
            self.close()
            raise

    def _answer_of(self, process: subprocess.Popen[bytes]) -> dict[str, Any] | None:
        """Return the next answer; None if the process has ended."""
        assert process.stdout is not None
        return read_message(process.stdout)

    def _last_words(self, process: subprocess.Popen[bytes]) -> str:
        """Return the error that a process has printed before it ended, or the end of all that it printed."""
        status = process.wait()
        self._log.seek(0)
        log = self._log.read().decode(errors="replace").strip()
        errors = _ERROR.split(log)
        return errors[1] if len(errors) > 1 else log[-_MOST_PRINTED:] or f"nothing was printed; the status is {status}"

    def close(self) -> None:
        """End the process, and the processes that it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        try:
            process.wait(_LAST_WORDS)
        except subprocess.TimeoutExpired:
            if sys.platform != "win32":
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()
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
