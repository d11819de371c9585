"""Runs of pytest in a user's folder, judged by their output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from catalogue import WRONG
from catalogue.users import text_of

from . import case

MINE = text_of("mine")
_REGISTERING = """
def pytest_fx_register(config):
    import theirs
    return [theirs.right, theirs.wrong, theirs.right_again]
"""
_TRANSFORMED = """
import pytest, theirs

@pytest.mark.parametrize("fx_pass", [theirs.right, "right,right-again"])
def test_transformed(fx_transformed):
    assert "functional.relu" in fx_transformed.code
"""
_FIRING = """
import fx, torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        x = torch.relu(torch.exp(x))
        return torch.relu(torch.FUNCTION(x))

def model():
    return Net(), torch.ones(2, 4)

def fuse(program):
    fx.replace_pattern(program, lambda x: torch.relu(torch.exp(x)), lambda x: torch.exp(x))
"""
_NOISY = """
import pytest_fx.checks.timing_check
from pytest_fx.timing.paired import PairedTiming

def test_timing(fx_traced, fx_timing, monkeypatch):
    times = (0.5, 2.0, 1.0, 0.7, 1.4)
    scattered = PairedTiming(times, (1.0,) * len(times), threads=1, iterations=1)
    monkeypatch.setattr(pytest_fx.checks.timing_check, "time_pairs", lambda *args, **kwargs: scattered)
    fx_timing(fx_traced, label="capture")
"""
_NAMED = """
import pytest

@pytest.mark.parametrize("name", ["remove-dead-code", "mine:nothing"])
def test_named(fx_equal, fx_timing, name):
    fx_equal(name)
    fx_timing(name)
"""
_MARKED = """
import pytest

@pytest.mark.fx(model="mlp", batch="many")
def test_marked(fx_model):
    pass
"""
_CONTRACTS = """
import pytest

def off(fx_model):
    import torch
    class Off(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = fx_model.fresh()
        def forward(self, *args):
            return self.module(*args) * 1.01
    return Off()

@pytest.mark.parametrize("contract", ["exact", "close", "approximate(60)"])
def test_text(fx_model, fx_equal, contract):
    with pytest.raises(AssertionError, match="law 'contract'"):
        fx_equal(off(fx_model), contract=contract)

def test_no_contract(fx_model, fx_equal):
    with pytest.raises(LookupError, match="no contract"):
        fx_equal(off(fx_model), contract="exat")
"""


def _line(text: str) -> str:
    """Return the place of a line of a user's file."""
    return f"mine.py:{MINE[: MINE.index(text)].count(chr(10)) + 1}"


_ROOT = str(Path(__file__).resolve().parents[3])
_QUICK = ("--fx-no-timing", "-k", "test_pass_keeps_its_contract")


class Folder:
    """A user's folder, and the output of pytest in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        (self.path / name).write_text(text, "utf-8")

    def pytest(self, *arguments: str) -> str:
        """Return the output of pytest, with single spaces."""
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        environment = {**os.environ, "PYTHONPATH": _ROOT, "PYTHONDONTWRITEBYTECODE": "1"}
        ran = subprocess.run(
            command, cwd=self.path, capture_output=True, text=True, env=environment, check=False, timeout=600
        )
        return " ".join((ran.stdout + ran.stderr).split())


@contextmanager
def folder(**files: str) -> Any:
    """A folder with files of Python."""
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(Path(path))
        for name, text in files.items():
            folder.write(f"{name}.py", text)
        yield folder


def says(text: str, *parts: str, never: tuple[str, ...] = ()) -> str:
    """Return ``said`` if the text has each required part and no forbidden one; else the fault."""
    wrong = [f"not said: {part}" for part in parts if part not in text]
    wrong += [f"said: {part}" for part in never if part in text]
    return wrong[0] if wrong else "said"


def _enter(item: str, what: str, arguments: tuple[str, ...], *parts: str, never: tuple[str, ...] = ()) -> None:
    @case(item, what, "said")
    def _() -> str:
        tests = {"test_named": _NAMED, "test_marked": _MARKED, "test_contracts": _CONTRACTS}
        with folder(mine=MINE, other=MINE, **tests) as user:
            return says(user.pytest(*arguments), *parts, never=never)


def _enter_wrong(item: str, name: str, *more: str, what: str = "", never: tuple[str, ...] = ()) -> None:
    row = WRONG[name]
    arguments = ("--fx-model", row.model, "--fx-pass", name, *more, *_QUICK)
    _enter(item, row.kind + what, arguments, *row.says, "1 failed", never=never)


PAIR = ("--fx-model", "mine:pair")

_enter_wrong("the process", "mine:quiet", "--fx-pass", "mine:nothing", what="; the next pass is innocent")
_enter(
    "batches",
    "--fx-batch 1,8 on a user's pair resizes its inputs",
    (*PAIR, "--fx-batch", "1,8", "--fx-pass", "mine:nothing", *_QUICK),
    "mine:pair, batch 1",
    "mine:pair, batch 8",
)
_enter(
    "batches",
    "--fx-batch 8 where inputs share no batch is refused",
    ("--fx-model", "mine:odd", "--fx-batch", "8", *_QUICK),
    "cannot have 8 sample(s)",
    "share no first size",
)
_enter(
    "batches",
    "--fx-size small of a user's pair is refused",
    (*PAIR, "--fx-size", "small", *_QUICK),
    "small",
    never=("1 passed",),
)
_enter(
    "equal names",
    "two passes of one name are told apart",
    (*PAIR, "--fx-pass", "mine:nothing", "--fx-pass", "other:nothing", *_QUICK),
    "2 passes found nothing to change: mine:nothing, other:nothing",
)
_enter(
    "no change",
    "a pass that changes nothing is named as one that does not",
    (*PAIR, "--fx-pass", "mine:nothing", *_QUICK),
    "1 pass found nothing to change: nothing",
)
_OURS = ("pytest_fx/laws/", "pytest_fx/harness/")
_enter_wrong("gradients", "mine:Cut", never=_OURS)
_enter_wrong("gradients", "mine:written_over", never=_OURS)
_enter(
    "frames",
    "a model that branches on values: the user's line, and no frame of the tracer",
    ("--fx-model", "mine:branching", "--fx-no-timing", "-rs", "-k", "test_capture_equals_eager"),
    f"{_line('return x if')}: CaptureError",
    never=("fx/capture/tracer.py:", "fx/proxy.py:"),
)
_enter(
    "factories",
    "a factory that raises is reported with the user's line",
    ("--fx-model", "mine:broken", "--fx-no-timing"),
    "no weights today",
    _line("raise ValueError"),
)
_enter_wrong("a pass that raises", "mine:raising", never=("changes nothing",))
_enter(
    "wrong programs",
    "they are not timed, and a line says what is wrong",
    (*PAIR, "--fx-pass", "mine:Cut", "--fx-rounds", "2"),
    "wrong: cut of mine:pair (gradients)",
    never=("faster", "no difference shown"),
)
_enter_wrong("torch.fx's own clean-up", "mine:to_gelu")
_enter(
    "contracts as text",
    "exact, close and approximate(…) are contracts wherever they are given, and others an error",
    (*PAIR, "test_contracts.py"),
    "4 passed",
)
_enter("names", "a misspelt module gets the nearest", ("--fx-model", "minne:pair"), "did you mean")
_enter("names", "a misspelt pass gets the nearest", (*PAIR, "--fx-pass", "fuse-conv-nb"), "did you mean 'fuse-conv-bn'")
_enter(
    "names",
    "fx_equal and fx_timing take what --fx-pass takes",
    (*PAIR, "test_named.py", "--fx-rounds", "2"),
    "2 passed",
)
_enter(
    "names",
    "a value of the marker is checked as the command line's is",
    ("test_marked.py",),
    "batch in a marker fx must be an integer from 1 on, not 'many'",
)


def _enter_theirs(what: str, arguments: tuple[str, ...], *parts: str) -> None:
    @case("ways in", what, "said")
    def _() -> str:
        with folder(theirs=text_of("theirs"), conftest=_REGISTERING, test_transformed=_TRANSFORMED) as user:
            return says(user.pytest("--fx-model", "theirs:model", *arguments), *parts)


_enter_theirs(
    "right passes for torch.fx in a list",
    ("--fx-pass", "theirs:right,theirs:right_again", *_QUICK),
    "theirs:model right,right-again right",
    "1 passed",
)
_LISTED = WRONG["theirs:right,theirs:wrong"]
_enter_theirs(_LISTED.kind, ("--fx-pass", _LISTED.name, *_QUICK), *_LISTED.says)
_enter_theirs(
    "right passes for torch.fx that a hook registers",
    ("--fx-pass", "right,right-again", *_QUICK),
    "theirs:model right,right-again right",
    "1 passed",
)
_enter_theirs("a wrong pass for torch.fx that a hook registers", ("--fx-pass", "right,wrong", *_QUICK), *_LISTED.says)
_enter_theirs("passes for torch.fx given to fx_transformed", ("test_transformed.py",), "2 passed")


@case("factories", "a factory that raises is reported once, however many tests want it", "said")
def _() -> str:
    with folder(mine=MINE) as user:
        times = user.pytest("--fx-model", "mine:broken", "--fx-no-timing", "-q").count("E ValueError: no weights today")
        return "said" if times == 1 else f"said {times} times"


@case("names", "the id of a test that failed is pasted back", "said")
def _() -> str:
    with folder(mine=MINE) as user:
        options = (*PAIR, "--fx-pass", "mine:Cut", "--fx-no-timing")
        (printed,) = re.findall(r"FAILED (\S+?\[.*?\])(?= |$)", user.pytest(*options, *_QUICK))
        return says(user.pytest(*options, printed), "1 failed", f"FAILED {printed}")


@case("skips", "every reason is a sentence", "said")
def _() -> str:
    with folder(mine=MINE) as user:
        run = user.pytest("--fx-model", "learning_to_paint_critic_small", "--fx-no-timing", "-rs", "-q")
        reasons = re.findall(r"SKIPPED \[\d+\] \S+ (.*?)(?= SKIPPED \[|$| \d+ passed)", run)
        bad = [reason for reason in reasons if len(reason.split()) < 4 or re.search(r"Error\(|<.*object at", reason)]
        return f"no sentence: {bad[0]}" if bad else "said" if reasons else "nothing is skipped"


def _match_count(*options: str) -> str:
    with folder(mine=_FIRING.replace("FUNCTION", "exp")) as user:
        arguments = ("--fx-model", "mine:model", "--fx-pass", "mine:fuse", *_QUICK)
        user.pytest(*arguments)
        (user.path / ".pytest_fx" / "last_run.json").rename(user.path / "main.json")
        user.write("mine.py", _FIRING.replace("FUNCTION", "sin"))
        return user.pytest(*arguments, "--fx-baseline", "main.json", *options)


@case("a pass that matches no more", "--fx-baseline names it, with the match that nearly was", "said")
def _() -> str:
    return says(
        _match_count(), "fuse changes less in mine:model than in the baseline", "fed by exp, here by sin", "1 passed"
    )


@case("a pass that matches no more", "--fx-strict fails it", "said")
def _() -> str:
    return says(_match_count("--fx-strict"), "LostRewrite: fuse changes less", "1 failed")


def _noisy(*options: str) -> str:
    baseline = {
        "model": "mlp", "pass": "capture", "batch": 1, "dtype": "float32", "device": "cpu", "threads": 1,
        "speedup": 1.0, "speedup_interval": [0.99, 1.01],
    }  # fmt: skip
    with folder(test_noisy=_NOISY) as user:
        user.write("main.json", json.dumps({"records": [{"timing": {"info": baseline}, "machine": {}}]}))
        timed = ("--fx-baseline", "main.json", "--fx-fail-slower", "5%")
        return user.pytest("--fx-model", "mlp", "--fx-batch", "1", "test_noisy.py", *timed, *options)


@case("noise", "--fx-fail-slower where pairs scatter: no ratio", "said")
def _() -> str:
    return says(_noisy(), "too noisy to tell", "1 passed", never=("1.00x",))


@case("noise", "--fx-fail-slower where pairs scatter, --fx-strict", "said")
def _() -> str:
    return says(_noisy("--fx-strict"), "NoisyTiming: it is too noisy to tell", "1 failed")


def _enter_compared(what: str, model: str, pass_: str, *parts: str, options: tuple[str, ...] = ()) -> None:
    @case("what is compared", what, "said")
    def _() -> str:
        with folder(mine=text_of("compared")) as user:
            arguments = ("--fx-model", f"mine:{model}", "--fx-pass", pass_, *_QUICK, *options)
            return says(user.pytest(*arguments), *parts)


for _model, _reason in (
    ("detector", "all outputs are empty"),
    ("boxes_and_size", "all outputs are empty"),
    ("lost_in_nan", "no output is a finite number"),
):
    _enter_compared(f"tanh for relu in {_model}", _model, "mine:tanh_for_relu", f"not judged: {_reason}", "1 skipped")
_enter_compared(
    "--fx-detect where all outputs are empty", "detector", "mine:tanh_for_relu",
    "CoarseVerdict: tanh-for-relu is not judged", "1 failed", options=("--fx-detect", "1e-4"),
)  # fmt: skip
_enter_compared("tanh for relu where something is compared", "usual", "mine:tanh_for_relu", "1 failed")
_enter_compared("an input that eager refuses, without its check", "checked", "remove-checks", "right", "1 passed")
_enter_compared("an input that the pass refuses", "checked", "mine:refusing", "right", "1 passed")
_enter_compared("a program that refuses all inputs", "usual", "mine:refusing_all", "not judged", "1 skipped")
_enter_compared(
    "a difference that rounding decides", "rounded", "mine:by_its_inverse", "right, with a waiver", "1 passed"
)
_enter_compared(
    "a difference that rounding decides, --fx-strict", "rounded", "mine:by_its_inverse", "only with a waiver",
    "1 failed", options=("--fx-strict",),
)  # fmt: skip
_enter_compared("a cast of the model's that is dropped", "halved", "mine:keep_float32", "law 'contract'", "1 failed")
