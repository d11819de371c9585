"""Programs that tests of many rooms build, and functions that inspect programs and pages."""

from __future__ import annotations

import html
import inspect
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

import fx
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.structure import map_tensors
from pytest_fx.harness.subject import Subject

# Programs.


class WithoutLeaves(fx.Tracer):
    """Captures through all modules, so that the whole program becomes functions (section 5.1)."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return False


class AllLeaves(fx.Tracer):
    """Calls every child as a whole, empty containers and subclasses too."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def in_functions(model: nn.Module) -> fx.GraphModule:
    """The program of a model without leaf modules."""
    return fx.GraphModule(model, WithoutLeaves().trace(model))


class Calling(nn.Module):
    """Calls a function with itself and the input; holds modules, parameters and, of other tensors, buffers."""

    def __init__(self, call: Callable[[Any, Any], Any], **held: Any) -> None:
        super().__init__()
        self.call: Callable[[Any, Any], Any] = call
        for name, value in held.items():
            if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, x: Any) -> Any:
        return self.call(self, x)


class Counting(nn.Module):
    """Multiplies by how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):  # type: ignore[no-untyped-def]
        self.calls.add_(x.sum() * 0 + 1)
        return x * self.calls


class Scaled(nn.Module):
    """Multiplies the output of a module by a number."""

    def __init__(self, module: nn.Module, times: float) -> None:
        super().__init__()
        self.module, self.times = module, times

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.module(*args, **kwargs)
        return map_tensors(lambda tensor: tensor * self.times if tensor.is_floating_point() else tensor, output)


class Point(NamedTuple):
    """A named tuple as an argument."""

    x: Any
    y: Any


class Unhashable:
    """A function that cannot be a key."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, x: Any) -> Any:
        return x


def settle(model: nn.Module) -> nn.Module:
    """Evaluation mode, with statistics and weights as training leaves them."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.running_mean is not None and module.running_var is not None:
                nn.init.normal_(module.running_mean)
                nn.init.uniform_(module.running_var, 0.5, 2.0)
            if module.affine:
                nn.init.uniform_(module.weight, -1.5, 1.5)
                nn.init.normal_(module.bias)
    return model.eval()


def subject_of(module: nn.Module, *inputs: Any, **named: Any) -> Subject:
    """A module with the same arguments in every set of inputs."""
    return Subject("own", module, lambda input_set: Arguments(inputs, named))


PLAIN_VALUES: dict[str, Any] = {
    "none": None,
    "int": -3,
    "huge_int": 1 << 20000,
    "float": 0.1,
    "small_float": 5e-324,
    "minus_zero": -0.0,
    "inf": math.inf,
    "minus_inf": -math.inf,
    "nan": math.nan,
    "complex": 1 + 2j,
    "odd_complex": complex(-0.0, -math.inf),
    "text": 'it\'s "here"\n\\{x}\u2028é\0',
    "ellipsis": ...,
    "dtype": torch.bfloat16,
    "device": torch.device("cuda", 1),
    "device_without_index": torch.device("cpu"),
    "memory_format": torch.channels_last,
    "layout": torch.sparse_coo,
    "size": torch.Size([2, 3]),
    "empty_size": torch.Size([]),
    "slice": slice(None, -1, 2),
    "slice_of_slices": slice(slice(1), (2, slice(3)), [4]),
    "range": range(5, 0, -2),
    "list": [1, [2.5, "a"], ()],
}
"""Arguments of every kind that Python and torch bring along."""


# What is read off programs.


def names(program: Any) -> str:
    """The names of all nodes of a program or a graph."""
    return " ".join(node.name for node in getattr(program, "graph", program).nodes)


def operations(program: Any) -> list[str]:
    """The names of the nodes that call something."""
    return [node.name for node in program.graph.nodes if node.op.startswith("call")]


def body(program: Any) -> list[str]:
    """Return the generated statements, without those that free variables."""
    return [line.strip().partition(";")[0] for line in program.code.strip().splitlines()[1:]]


def decibels(value: torch.Tensor, expected: torch.Tensor) -> float:
    """The ratio of signal to noise."""
    return float(10 * torch.log10(expected.square().sum() / (value - expected).square().sum()))


def assert_same_state(ours: nn.Module, theirs: nn.Module) -> None:
    """Two modules have equal parameters and buffers under the same names, in the same modes."""
    for kind in ("named_parameters", "named_buffers"):
        left, right = ([*getattr(module, kind)(remove_duplicate=False)] for module in (ours, theirs))
        assert [name for name, _ in left] == [name for name, _ in right]
        for (name, mine), (_, other) in zip(left, right, strict=True):
            assert torch.equal(mine, other), name
            assert (mine.dtype, mine.requires_grad, type(mine)) == (other.dtype, other.requires_grad, type(other)), name
    assert list(ours.state_dict()) == list(theirs.state_dict())
    modes = [{name: module.training for name, module in each.named_modules()} for each in (ours, theirs)]
    assert modes[0] == modes[1]


# What is read off pages.

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""The path of an installed browser, if any."""
NARROWEST = 500
"""The least width of a window in pixels; narrower pages are shown in a frame."""


def last_run(folder: Path) -> dict[str, Any]:
    """Return the record of the last run in a folder, with its ``"records"`` and ``"verdicts"``."""
    return json.loads((folder / ".pytest_fx" / "last_run.json").read_text("utf-8"))


def data_of(page: str | Path) -> dict[str, Any]:
    """The data of a page, or of that in a file."""
    text = page if isinstance(page, str) else page.read_text("utf-8")
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert match
    return json.loads(match[1])


def in_browser(page: str, script: str, folder: Path, width: int = 1000, flags: tuple[str, ...] = ()) -> Any:
    """Return the result of a script that runs in the loaded page; ``errors`` has the errors before it."""
    watch = """<script>const errors = [];
    addEventListener("error", (event) => errors.push(event.message || "no file"), true);
    addEventListener("securitypolicyviolation", (event) => errors.push(event.violatedDirective));</script>"""
    wrapped = f"""<script>
    addEventListener("load", () => setTimeout(async () => {{
      let found;
      try {{ found = await (async () => {{ {script} }})(); }} catch (error) {{ found = "failed: " + error.stack; }}
      const element = parent.document.createElement("pre");
      element.id = "found";
      element.textContent = JSON.stringify(found);
      parent.document.body.append(element);
    }}, 50));
    </script>"""
    path = folder / "driven.html"
    driven = page.replace("<style>", f"{watch}<style>", 1).replace("</body>", f"{wrapped}</body>")
    if width < NARROWEST:
        frame = f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{html.escape(driven)}"></iframe>'
        driven = f"<!doctype html><body>{frame}</body>"
    path.write_text(driven, "utf-8")
    assert BROWSER
    settings = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--window-size={width},900",
        "--virtual-time-budget=8000",
    ]
    run = subprocess.run(
        [BROWSER, *settings, *flags, f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    match = re.search(r'<pre id="found">(.*?)</pre>', run.stdout, re.DOTALL)
    assert match, run.stderr[-2000:]
    return json.loads(html.unescape(match[1]))


# Runs.


@contextmanager
def runs_of(root: Any) -> Generator[list[str]]:
    """Note the name of the root's function for each outermost call of it."""
    code = inspect.unwrap(type(root).forward if isinstance(root, nn.Module) else root).__code__
    place = (code.co_filename, code.co_firstlineno, code.co_name)  # a copy of the code may have other parameters
    running: list[FrameType] = []
    runs: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and running == [frame]:
            running.clear()
        elif event == "call" and not running:
            called = frame.f_code
            if (called.co_filename, called.co_firstlineno, called.co_name) == place:
                running.append(frame)
                runs.append(called.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield runs
    finally:
        sys.setprofile(before)
