"""The work of a process that serves one revision: it judges passes, and takes samples of their programs.

The file is loaded by its path, and the plugin of the revision is imported, which may be older than this file. So it
uses few names of the plugin: the command line, the fixtures, one test, and some functions.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
import torch

TEST = "test_pass_keeps_its_contract"
"""The test of the built-in suite that judges a pass on a model."""
_SAMPLES = Path(__file__).resolve().parents[1] / "timing" / "samples.py"
_LENGTH = 8


def read_message(stream: IO[bytes]) -> dict[str, Any] | None:
    """Return the next message; None if there are no more. A message is data alone, no code."""
    size = int.from_bytes(stream.read(_LENGTH), "big")
    data = stream.read(size)
    if not size or len(data) < size:
        return None
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def write_message(stream: IO[bytes], message: dict[str, Any]) -> None:
    """Write a message: a dict of numbers, text, containers and tensors."""
    buffer = io.BytesIO()
    torch.save(message, buffer)
    stream.write(buffer.tell().to_bytes(_LENGTH, "big") + buffer.getvalue())
    stream.flush()


def serve(requests: IO[bytes], answers: IO[bytes], arguments: Sequence[str]) -> None:
    """Run pytest with these arguments, and let it answer requests instead of running its tests in order."""
    pytest.main([*arguments], plugins=[ServedSession(requests, answers)])


def defining_modules(pass_: Any) -> Iterator[str]:
    """Yield the modules that define a pass, or the passes of a pipeline."""
    for inner in getattr(pass_, "passes", None) or [getattr(pass_, "pass_", getattr(pass_, "func", None))]:
        if inner is None:
            yield (pass_ if hasattr(pass_, "__qualname__") else type(pass_)).__module__
        else:
            yield from defining_modules(inner)


def file_of(module: str) -> str | None:
    """Return the file of a loaded module, without symbolic links; None if it has none."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return None if file is None else os.path.realpath(file)


class ServedSession:
    """A plugin of pytest that answers requests of the other process: to judge a pass, or to time its program."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._requests, self._answers = requests, answers
        self._threads: int | None = None  # PyTorch's threads while a program is timed
        self._reports: list[pytest.TestReport] = []
        self._request: pytest.FixtureRequest | None = None
        self._loaded: dict[str, list[str]] = {}

    @pytest.fixture(autouse=True)
    def _fixtures_of_the_test(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Answer requests until there are no more; a failed collection is left to pytest, which reports it."""
        if session.testsfailed:
            return None
        tests: list[Any] = [item for item in session.items if getattr(item, "originalname", None) == TEST]
        items = {item.callspec.id: item for item in tests}
        self._answer(items=list(items))
        while (request := read_message(self._requests)) is not None:
            item = items[request["item"]]
            self._threads, self._reports, self._loaded = request.get("threads"), [], {}
            item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
            self._answer(reports=[_described(report) for report in self._reports], loaded=self._loaded)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the report for the answer."""
        self._reports.append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Serve the program of the pass instead of judging it, if that is the request."""
        assert self._request is not None
        get = self._request.getfixturevalue
        own = defining_modules(get("fx_pass"))
        self._loaded = {
            "definitions": [file for module in own if (file := file_of(module)) is not None],
            "files": [file for module in list(sys.modules) if (file := file_of(module)) is not None],
        }
        if self._threads is None:
            return None
        program, model = get("fx_transformed"), get("fx_model")
        self._answer(loaded=self._loaded)
        with importlib.import_module("pytest_fx.timing.paired").steady_conditions(self._threads):
            self._take_samples(program, model)
        return True

    def _take_samples(self, program: Any, model: Any) -> None:
        """Take samples of the program until another request comes. Each call has its own arguments, which stay."""
        leaves = importlib.import_module("pytest_fx.harness.structure").leaves
        called = importlib.import_module("pytest_fx.timing.paired").entered(program)
        samples: Any = _module_of(_SAMPLES)
        sample = samples.sample_on_gpu if model.device.type == "cuda" else samples.sample_on_cpu
        ring: list[Any] = []
        while (request := read_message(self._requests)) is not None and (count := request.get("calls")) is not None:
            ring += [model.arguments().copies() for _ in range(count - len(ring))]
            _fill(ring[:count], request["contents"])
            torch.manual_seed(0)
            times, output = sample(called, [(arguments.args, arguments.kwargs) for arguments in ring[:count]])
            self._answer(
                sample=[times.seconds, times.wall, times.processor, times.calls, times.host],
                output={path: leaf.detach().clone() for path, leaf in leaves(output) if isinstance(leaf, torch.Tensor)},
            )

    def _answer(self, **answer: Any) -> None:
        write_message(self._answers, answer)


def _fill(ring: Sequence[Any], contents: Sequence[torch.Tensor]) -> None:
    """Copy contents, one tensor for each of the model's with the calls in its first dimension, into the arguments."""
    is_strided = importlib.import_module("pytest_fx.harness.snapshot").is_strided
    for number, arguments in enumerate(ring):
        own = [tensor.detach() for tensor in arguments.tensors if is_strided(tensor)]
        shapes, others = [list(each.shape) for each in own], [list(each.shape[1:]) for each in contents]
        if shapes != others:
            raise ValueError(
                f"the model's inputs are of shapes {shapes} at this revision, and of {others} at the other"
            )
        for tensor, content in zip(own, contents, strict=True):
            tensor.copy_(content[number])


def _described(report: pytest.TestReport) -> dict[str, Any]:
    records = [json.dumps(value, default=str) for name, value in report.user_properties if name == "fx"]
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return {"when": report.when, "outcome": report.outcome, "text": reason, "records": records}


def _module_of(file: Path) -> Any:
    """Return the module of a file, which belongs to no package here."""
    name = f"fx_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
