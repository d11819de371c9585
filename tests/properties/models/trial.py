"""The trial of one model, in a process of its own: the way to capture it, or the reason why none works."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import fx
from fx.interop.capturing import refusal_of
from models.libraries import Inputs, LibraryModel

_RTOL = 1e-3
"""The largest error of the program's answers against eager's, relative to the largest element."""

ALONE = ("symbolic", "guided")
"""The ways that are also tried alone, whether ``auto`` needs them or not."""
GUARDED = "guard"
"""The words for a call that a guard refuses."""

Record = dict[str, Any]


def capture(model: LibraryModel, seconds: float) -> Record:
    """Try the ways to capture, in a new process that is ended after so many seconds."""
    context = multiprocessing.get_context("fork")  # which has all libraries imported already
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(model, theirs), daemon=True)
    start = time.perf_counter()
    process.start()
    theirs.close()
    record: Record = {"way": None, "why": [f"not done after {seconds:g} s"]}
    if ours.poll(seconds):
        try:
            record = ours.recv()
        except EOFError:
            process.join()
            record = {"way": None, "why": [f"its process ended with {process.exitcode}"]}
    process.kill()
    process.join()
    return {"seconds": round(time.perf_counter() - start, 1), **record}


def _send(model: LibraryModel, pipe: Connection) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        record = _captured(model)
    except Exception as error:
        record = {"way": None, "why": [f"{type(error).__name__}: {_first_line(error)}"]}
    pipe.send(record)
    os._exit(0)


def _captured(model: LibraryModel) -> Record:
    module, inputs = model.build()
    comparison = _Comparison(module.eval(), inputs)
    alone = {way: _captured_by(way, comparison) for way in ALONE}
    return {**_captured_by("auto", comparison), **alone}


def _captured_by(how: str, comparison: _Comparison) -> Record:
    """Return the result of one way to capture a model, or the reason why it refuses."""
    args, kwargs = _call(comparison.inputs(2))
    seconds = 0.0
    program: fx.GraphModule | None = None
    try:
        for _ in range(2 if how in ALONE else 1):  # the first one imports and compiles much
            start = time.perf_counter()
            program = fx.capture(comparison.module, args, kwargs, how=how)
            seconds = time.perf_counter() - start
    except fx.CaptureError as error:
        return {"way": None, "why": [str(refusal) for refusal in error.refusals]}
    except Exception as error:  # symbolic tracing alone raises the same error
        return {"way": None, "why": [str(refusal_of(how, error))]}
    assert program is not None
    record = program.meta["capture"]
    return {
        "way": record.way,
        "batch": record.batch,
        "note": record.note,
        "why": [str(refusal) for refusal in record.refusals],
        "nodes": len(program.graph.nodes),
        "seconds": round(seconds, 3),
        **comparison.of(program),
    }


def _call(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return ((), given) if isinstance(given, dict) else (given, {})


class _Comparison:
    """Programs of one model compared with it: without constants of its own, one of the same code does the same."""

    def __init__(self, module: nn.Module, inputs: Inputs) -> None:
        self.module = module
        self.inputs = inputs
        self._expected: dict[int, list[torch.Tensor] | str] = {}
        self._known: dict[str, Record] = {}

    def of(self, program: fx.GraphModule) -> Record:
        """Return the results of the program with two samples and with three."""
        earlier = None if program.graph.constants else self._known.get(program.code)
        if earlier is None:
            earlier = {f"batch {samples}": self._compared(program, samples) for samples in (2, 3)}
            self._known[program.code] = earlier
        return earlier

    def _compared(self, program: nn.Module, samples: int) -> str:
        if samples not in self._expected:
            self._expected[samples] = _answer(self.module, self.inputs(samples), "the model itself")
        expected, actual = self._expected[samples], _answer(program, self.inputs(samples), "the program")
        if isinstance(expected, str) or isinstance(actual, str):
            return expected if isinstance(expected, str) else str(actual)
        if [leaf.shape for leaf in expected] != [leaf.shape for leaf in actual]:
            return "other shapes"
        return "same" if all(map(_same, expected, actual)) else "other numbers"


def _answer(called: nn.Module, given: Any, whose: str) -> list[torch.Tensor] | str:
    """Return the tensors that a call returns, or the error that it raises."""
    args, kwargs = _call(given)
    torch.manual_seed(0)
    try:
        with torch.no_grad():
            answer = called(*args, **kwargs)
    except fx.GuardError as error:
        return f"{GUARDED}: {_first_line(error)}"
    except Exception as error:
        return f"{whose} raises {type(error).__name__}: {_first_line(error)}"
    return [leaf for leaf in pytree.tree_leaves(answer) if isinstance(leaf, torch.Tensor)]


def _same(wanted: torch.Tensor, actual: torch.Tensor) -> bool:
    if not wanted.is_floating_point():
        return torch.equal(wanted, actual)
    scale = float(wanted.abs().nan_to_num(posinf=0.0).max()) if wanted.numel() else 0.0
    return torch.allclose(actual, wanted, rtol=_RTOL, atol=_RTOL * scale, equal_nan=True)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


def suite(model: LibraryModel, seconds: float) -> Record:
    """Run the built-in suite on a model with all passes, without timings, for so many seconds at most."""
    options = ("--fx-model", f"models.factories:{model.attribute}", "--fx-no-timing", "-q", "-rf", "--tb=line")
    command = [sys.executable, "-m", "pytest", "--noconftest", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return {"suite": f"not done after {seconds:g} s"}
    lines = run.stdout.strip().splitlines()
    failed = [line.removeprefix("FAILED fx::")[:200] for line in lines if line.startswith("FAILED")]
    return {"suite": lines[-1].partition(" in ")[0] if lines else f"rc {run.returncode}", "failed": failed}
