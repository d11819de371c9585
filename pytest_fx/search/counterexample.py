"""A program on which a pass breaks a law, as text for the user and as a test file that reproduces it alone."""

from __future__ import annotations

import math
import os
import re
import textwrap
from pathlib import Path
from typing import Any

import torch
from torch._tensor_str import printoptions

from fx.errors import FxError
from fx.passes import list_passes, pass_name
from fx.pipelines.pass_options import write_options
from fx.pipelines.pipeline import PassPipeline
from fx.pipelines.registered_passes import write_pass
from pytest_fx.forms import FormedPass
from pytest_fx.harness.equality import Leaf, Mismatch, pair_leaves
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.run import Run
from pytest_fx.harness.structure import leaves
from pytest_fx.laws import LawViolation
from pytest_fx.loading import importable_name, load_pass, modules_in, path_of
from pytest_fx.named_objects import home_of

FOLDER = Path(".pytest_fx")
"""The folder of test files, below the working directory."""
ALIKE = re.compile(
    r"\A(?:(?:import|from) .*\n|\n)+|"
    r"^def build\(\):\n    torch\.default_generator\.manual_seed\(\d+\)\n    return Program\(\)\.\w+\(\)\n+",
    re.MULTILINE,
)
"""The imports at the start of a program, and the function that builds it."""
DIGITS = (4, 6, 8, 10, 13, 17)
"""Numbers of digits behind the point; outputs are shown with the first number at which they differ."""
MOST_LINES = 12
"""The most lines of each output that are shown."""

_TEMPLATE = '''\
"""The pass {name} breaks the law {law!r} on this program.

Run it with pytest; it passes once the pass is right.
"""

{imports}
{source}

def test_{slug}():
    check_program({arguments})
'''


def describe(example: PassRun, violation: LawViolation, folder: Path, *, isolate: bool = False) -> str:
    """Return the program, its inputs, the code before and after the pass, the outputs, and the path of a test file.

    If no file can be written, a line says why, and the violation is still reported. With ``isolate`` the file applies
    the pass in a child process.
    """
    mode = "training" if example.mode == "train" else "evaluation"
    try:
        path = write_test(example, violation, folder, isolate=isolate)
        test, source = f"a test of it alone: {path}", ALIKE.sub("", example.subject.source)
    except (FxError, OSError) as error:
        test, source = f"no test file was made of it: {error}", example.subject.source
    parts = [f"the smallest program found, in {mode} mode:\n{_indented(source)}"]
    if example.before is not None:
        parts.append(f"code before the pass:\n{_indented(example.before.code)}")
    if example.after is not None:
        parts.append(f"code after the pass:\n{_indented(example.after.code)}")
        outputs = _outputs(example.eager(violation.inputs), example.actual(violation.inputs))
        on = f", on {violation.inputs}" if isinstance(violation.inputs, str) else ""
        parts += [
            f"{who}{on}:\n{_indented(text)}"
            for who, text in zip(("eager returns", "the transformed program returns"), outputs, strict=True)
            if text
        ]
    return "\n".join([*parts, test])


def write_test(example: PassRun, violation: LawViolation, folder: Path, *, isolate: bool = False) -> Path:
    """Write a test that checks the broken law on the program, and return its path.

    The file of an earlier run for the same pass and law is replaced. Raises :class:`~fx.errors.FxError` if the pass
    cannot be named in a file.
    """
    name, root = spelled_pass(example.pass_)
    contract = str(example.contract)
    arguments = f"{name!r}, build, inputs, laws=({violation.law!r},), mode={example.mode!r}, contract={contract!r}"
    arguments += f", form={example.pass_.form.name!r}" if isinstance(example.pass_, FormedPass) else ""
    arguments += ", isolate=True" if isolate else ""
    slug = re.sub(r"\W+", "_", f"{example.name}_keeps_{violation.law}").strip("_").lower()
    folder.mkdir(parents=True, exist_ok=True)
    imports = "from pytest_fx import check_program\n"
    if root is not None:
        path = Path(os.path.relpath(root, folder)).as_posix()
        imports = (
            f"import pathlib\nimport sys\n\n{imports}\n"
            f"sys.path.insert(0, str((pathlib.Path(__file__).parent / {path!r}).resolve()))  # where the pass is\n"
        )
    path = folder / f"test_{slug}.py"
    path.write_text(
        _TEMPLATE.format(
            name=example.name, law=violation.law, imports=imports, source=example.subject.source.strip() + "\n",
            slug=slug, arguments=arguments,
        ),
        encoding="utf-8",
    )  # fmt: skip
    return path


def spelled_pass(pass_: Any) -> tuple[str, Path | None]:
    """Return the name by which ``load_pass`` finds a pass, and the folder to import it from if one is needed.

    Raises :class:`~fx.errors.FxError` if there is none.
    """
    name = importable_name(pass_) or _written(pass_)
    if name is None:
        raise FxError(
            "the pass has no name under which it can be imported",
            value=repr(pass_)[:80],
            remedy="define it at the top of a module, or register it: fx.passes.register_pass",
        )
    if not (modules := modules_in(name)):
        return name, None
    return name, home_of(modules[0])


def _written(pass_: Any) -> str | None:
    """Return a pass with options, or a pipeline, as text; None if the text does not give the same pass."""
    if isinstance(pass_, PassPipeline):
        text = str(pass_)
    elif pass_name(pass_) in list_passes():
        text = write_pass(pass_)
    else:
        text = path_of(pass_) + write_options(pass_)
    try:
        loaded: Any = load_pass(text)
    except FxError:
        return None
    same = loaded.passes == pass_.passes if isinstance(pass_, PassPipeline) else loaded == pass_
    return text if same else None


def visibility(example: PassRun, violation: LawViolation) -> float:
    """Return the largest error of an output relative to its largest element; infinite if it cannot be compared."""
    if example.after is None:
        return math.inf
    eager, actual = example.eager(violation.inputs), example.actual(violation.inputs)
    if eager.error is not None or actual.error is not None:
        return math.inf
    pairs = pair_leaves(eager.output, actual.output)
    if isinstance(pairs, Mismatch):
        return math.inf
    return max(map(_part_of_scale, pairs), default=0.0)


def _part_of_scale(leaf: Leaf) -> float:
    error = float(leaf.errors.max()) if leaf.errors.numel() else 0.0
    return error / leaf.scale if leaf.scale else math.inf * error if error else 0.0


def _outputs(eager: Run, actual: Run) -> tuple[str, str]:
    """Return both outputs as text, with enough digits to show a difference."""
    texts = "", ""
    for digits in DIGITS:
        with printoptions(precision=digits):
            texts = _output(eager), _output(actual)
        if texts[0] != texts[1]:
            return texts
    with printoptions(precision=DIGITS[0]):  # they are equal
        return _output(eager), _output(actual)


def _output(run: Run) -> str:
    if run.error is not None:
        return f"{type(run.error).__name__}: {str(run.error).partition(chr(10))[0]}"
    lines: list[str] = []
    for path, leaf in leaves(run.output):
        text = repr(leaf.detach()) if isinstance(leaf, torch.Tensor) else repr(leaf)
        dtype = f"  # {str(leaf.dtype).removeprefix('torch.')}" if isinstance(leaf, torch.Tensor) else ""
        lines += f"output{path} = {text}{dtype}".splitlines()
    return "\n".join(lines[:MOST_LINES] + ["…"] * (len(lines) > MOST_LINES))


def _indented(text: str) -> str:
    return textwrap.indent(text.strip("\n"), "    ")
