"""Builds the wheel and tries it outside of the checkout, with each installed interpreter and each torch.

    make wheels                                # an environment each, as make pythons and make torches make them
    make wheels ARGS="--as-installed"          # those that there are already
    make wheels ARGS="--only 3.13 --cuda"      # one of them, builds of torch for CUDA too

The wheel is built from the source distribution. It is installed into a new environment, which borrows all other
packages from one of those, and has no path to the checkout. ``pytest`` then checks a user's model in a separate folder.
The table has a row for each; the command fails if one is wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from interpreters import ROOT, found, running
from versions import CannotInstall, Environment, columns, minors_of_torch, parser_for, pinned_torch, reason

MODELS = """
import torch


def perceptron():
    layers = torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(8, 2)
    return torch.nn.Sequential(*layers).eval(), (torch.randn(4, 8),)


def without_dropout(program):
    for node in program.graph.find_nodes(op="call_module", target="2"):
        node.replace_all_uses_with(node.args[0])
        program.graph.erase_node(node)
    program.recompile()
    return program
"""
"""The files of a user: a model, and a pass."""

_IMPORT = """
import pathlib, platform, sys
import torch, fx, pytest_fx, model_zoo
home = pathlib.Path(sys.prefix).resolve()
for package in (fx, pytest_fx, model_zoo):
    file = pathlib.Path(package.__file__).resolve()
    assert home in file.parents, f"{package.__name__} comes from {file}"
    assert (file.parent / "py.typed").exists(), f"{package.__name__} has no py.typed"
print(platform.python_version(), torch.__version__, fx.__version__)
"""
_LONGEST = 300
"""Seconds that one step may take."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of the wheel with one interpreter and one version of torch."""

    python: str
    """Version of the interpreter."""
    torch: str
    """Version of torch, with its build if it is there."""
    imported: str = "-"
    """Version of the package that was imported from the environment."""
    tests: str = "-"
    """The summary of pytest for the user's model."""
    verdict: str = "not tried"
    """``right``, ``wrong`` or ``not tried``."""
    note: str = ""
    """The reason why not."""

    def cells(self) -> tuple[str, ...]:
        """The row as text, for each column."""
        return self.python, self.torch, self.imported, self.tests, self.verdict, self.note


def table(trials: list[Trial]) -> str:
    """Return the rows under a header, in columns."""
    return columns([("python", "torch", "import", "pytest", "verdict", ""), *(trial.cells() for trial in trials)])


def build(folder: Path) -> Path:
    """Make the source distribution, and of that the wheel."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    if run.returncode != 0:
        raise SystemExit(f"the wheel cannot be built:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    (wheel,) = folder.glob("*.whl")
    return wheel


def faults(wheel: Path) -> list[str]:
    """Return the parts that a package index or a type checker would miss in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        text = {name.rpartition("/")[2]: archive.read(name).decode() for name in names if ".dist-info/" in name}
    metadata = text["METADATA"]
    expected = {
        "Classifier: Framework :: Pytest": metadata,
        "Classifier: Typing :: Typed": metadata,
        "Description-Content-Type: text/markdown": metadata,
        "License-Expression: BSD-3-Clause": metadata,
        "Requires-Python: >=3.10": metadata,
        "fx = pytest_fx.plugin": text["entry_points.txt"],
    }
    missing = [line for line, where in expected.items() if line not in where]
    files = [f"{package}/py.typed" for package in ("fx", "model_zoo", "pytest_fx")]
    missing += [name for name in files if name not in names]
    packages = {name.partition("/")[0] for name in names} - {"fx", "model_zoo", "pytest_fx"}
    return missing + [f"{name} is in it" for name in packages if not name.endswith(".dist-info")]


def attempt(environment: Path, wheel: Path, known: Trial) -> Trial:
    """Try a wheel with the packages of an environment."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        borrowed = environment / "bin" / "python"
        if sys.platform == "win32":
            borrowed = environment / "Scripts" / "python.exe"
        try:
            python = _make(borrowed, home / "environment", wheel)
            versions = _said([python, "-W", "error", "-c", _IMPORT], home).split()
            tried = replace(known, python=versions[0], torch=versions[1], imported=versions[2])
        except CannotInstall as error:
            return replace(known, verdict="wrong", note=str(error))
        (home / "models.py").write_text(MODELS)
        command = [python, "-m", "pytest", "--fx-model", "models:perceptron", "--fx-pass", "models:without_dropout"]
        try:
            output = _said([*command, "--fx-no-timing", "-p", "no:cacheprovider"], home)
        except CannotInstall as error:
            return replace(tried, verdict="wrong", note=str(error))
    passed = re.findall(r"\d+ passed[^=\n]* in [\d.]+s", output)
    right = bool(passed) and "without-dropout" in output
    return replace(tried, tests=passed[-1] if passed else "-", verdict="right" if right else "wrong")


def _make(borrowed: Path, folder: Path, wheel: Path) -> Path:
    """Make an environment with the wheel, and with packages of another one behind it, but not what its files do."""
    _said([borrowed, "-m", "venv", "--without-pip", folder], folder.parent)
    python = folder / borrowed.parent.name / borrowed.name
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages, own = (_said([interpreter, "-c", ask], folder.parent).strip() for interpreter in (borrowed, python))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    _said([*pip, "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel], folder.parent)
    (Path(own) / "borrowed.pth").write_text(packages + "\n")
    _said([*pip, "--python", python, "check"], folder.parent)
    return python


def _said(command: list[str | Path], folder: Path) -> str:
    """Return the output of a command, run in a folder without a path to the checkout."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    try:
        run = subprocess.run(
            command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=_LONGEST
        )
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"{' '.join(map(str, command[1:4]))} took more than {_LONGEST} s") from None
    if run.returncode != 0:
        lines = [line for line in (run.stdout + run.stderr).splitlines() if line.strip()]
        raise CannotInstall(reason(lines))
    return run.stdout


def environments(options: argparse.Namespace) -> Iterator[tuple[Path, Path, str | None, Trial]]:
    """Yield folders of environments, the interpreters to make them with, and the versions that they hold."""
    pinned = pinned_torch()
    for name, python in found().items():
        folder = ROOT / (".venv" if name == running() else f".venv-{name}")
        if not options.only or name in options.only:
            yield folder, python, None, Trial(name, pinned)
    python = Path(sys.executable)
    if options.as_installed:
        minors = {folder.name.removeprefix(".venv-torch-"): "" for folder in ROOT.glob(".venv-torch-*")}
    else:
        minors = minors_of_torch(Environment(ROOT / ".venv", python))
    for minor, version in minors.items():
        if version != pinned and (not options.only or minor in options.only):
            yield ROOT / f".venv-torch-{minor}", python, version, Trial(running(), version or minor)


def trials(options: argparse.Namespace, wheel: Path) -> Iterator[Trial]:
    """Try the wheel with each environment, made where it is not there."""
    for folder, python, torch, environment in environments(options):
        print(f"Python {environment.python}, torch {environment.torch} in {folder.name} ...", flush=True)
        try:
            if options.as_installed and not folder.exists():
                raise CannotInstall("there is no such environment")
            if not options.as_installed and folder.name != ".venv":
                Environment(folder, python).install(torch, options.cuda)
        except (CannotInstall, subprocess.CalledProcessError) as error:
            yield replace(environment, note=str(error))
        else:
            yield attempt(folder, wheel, environment)


def main() -> int:
    """Build, look at what is in the wheel, try it; 1 if anything is wrong, or nothing could be tried."""
    options = parser_for(__doc__, "install nothing but the wheel").parse_args()
    with tempfile.TemporaryDirectory() as place:
        wheel = build(Path(place))
        print(f"{wheel.name}, {wheel.stat().st_size >> 10} KiB")
        missing = faults(wheel)
        for fault in missing:
            print(f"missing: {fault}")
        tried = list(trials(options, wheel))
    print(table(tried))
    verdicts = [trial.verdict for trial in tried]
    return 1 if missing or "wrong" in verdicts or "right" not in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
