"""Sessions of nox: the tests under other interpreters and versions of torch, and the wheel outside of the checkout.

    make pythons                                        # each interpreter that is installed, on the path or in pyenv
    make torches PYTHON=python3.12                      # each minor version of torch, from the oldest to the newest
    make wheels                                         # the wheel, with each of them
    make pythons ARGS="-p 3.13 -- tests/fx"             # one interpreter, and one folder of tests
    make torches ARGS="-s 'torches(2.14)' -- --cuda"    # one version of torch, also as a build for CUDA
    make pythons ARGS="-R -- -n 1"                      # with the existing environments, in one process

Versions come from the index in pip's settings. A build of torch for CUDA takes gigabytes, so it is downloaded only with
``--cuda``. Without it, a session that needs such a build is skipped, with the reason. Environments stay in ``.nox``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import nox

PYTHONS = "3.10 3.11 3.12 3.13 3.13t 3.14 3.14t 3.15".split()
ROOT = Path(__file__).parent
PROJECT = (ROOT / "pyproject.toml").read_text()
PACKAGES = {"fx", "model_zoo", "pytest_fx"}
CHECKOUT_UNSEEN = {"PYTHONPATH": None, "VIRTUAL_ENV": None}

nox.options.reuse_venv = "yes"
# A version that is installed in pyenv is found only if it is active.
OF_PYENV = (Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions").glob("3.1*")
os.environ.setdefault("PYENV_VERSION", ":".join(sorted(folder.name for folder in OF_PYENV)))


def torch_versions() -> list[Any]:
    """Return a parameter for each minor version of torch in the index, from the oldest that the project supports."""
    command = [sys.executable, "-m", "pip", "index", "versions", "torch"]
    listed = subprocess.run(command, check=False, capture_output=True, text=True).stdout.partition("Available")[2]
    (oldest,) = re.findall(r'"torch>=(\d+)\.(\d+)"', PROJECT)
    minors = {(int(major), int(minor)) for major, minor in [oldest, *re.findall(r"\b(\d+)\.(\d+)\.\d+", listed)]}
    names = [f"{major}.{minor}" for major, minor in sorted(minors) if (major, minor) >= tuple(map(int, oldest))]
    return [nox.param(name, id=name) for name in names]


def install(session: nox.Session, *wanted: str, torch: str | None = None) -> None:
    """Install torch and ``wanted``, in the versions of ``constraints.txt``, or with another ``torch``."""
    pins = (ROOT / "constraints.txt").read_text()
    if torch is not None:  # torch 2.11 and 2.12 refuse the current setuptools
        pins = re.sub(r"^(setuptools|torch)==.*\n", "", pins, flags=re.MULTILINE)
    folder = Path(session.create_tmp())
    (folder / "constraints.txt").write_text(pins)
    pinned = ("--constraint", str(folder / "constraints.txt"))
    (backend,) = re.findall(r'^requires = \["(.*)"\]$', PROJECT, re.MULTILINE)
    first = (backend, f"torch=={torch}.*" if torch else "torch")
    pip = ("python", "-m", "pip", "install", "-qq", *pinned)
    try:
        # "fast-deps" reads what a wheel requires before it is downloaded
        plan = ("--dry-run", "--use-feature", "fast-deps", "--report", f"{folder}/plan.json")
        if "--cuda" not in session.posargs and session.run_install(*pip, *plan, *first):
            names = [each["metadata"]["name"] for each in json.loads((folder / "plan.json").read_text())["install"]]
            if any(name.startswith(("nvidia-", "cuda-")) for name in names):
                session.skip("torch is not installable as a CPU build: there is one for CUDA only, which --cuda allows")
        session.run_install(*pip, *first)
    except nox.command.CommandFailed:
        session.skip(f"pip does not install {first[1]}; its output is above")
    session.install("-qq", *pinned, "--no-build-isolation", *wanted)


def run_tests(session: nox.Session, torch: str | None = None) -> None:
    """Run the tests in an environment with the checkout installed."""
    try:
        install(session, "--editable", ".[test,tables,openvino,onnx,pt2e]", torch=torch)
    except nox.command.CommandFailed:  # the tests of a missing engine are skipped
        install(session, "--editable", ".[test,tables]", torch=torch)
    arguments = [each for each in session.posargs if each != "--cuda"]
    command = ("python", "-m", "pytest", "--numprocesses", "auto", "--dist", "worksteal", *arguments)
    session.run(*command, env={**CHECKOUT_UNSEEN, "OMP_NUM_THREADS": "1"})


IMPORT = """
import pathlib, sys
import fx, pytest_fx, model_zoo
home = pathlib.Path(sys.prefix).resolve()
for package in (fx, pytest_fx, model_zoo):
    file = pathlib.Path(package.__file__).resolve()
    assert home in file.parents, f"{package.__name__} comes from {file}"
"""
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


@cache
def build_wheel() -> Path:
    """Build the source distribution, and from it the wheel; exit if the wheel lacks files or metadata for an index."""
    folder = tempfile.mkdtemp()
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, str(ROOT)], check=True)
    (wheel,) = Path(folder).glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        text = "".join(archive.read(name).decode() for name in names if name.endswith(("METADATA", "entry_points.txt")))
    metadata = ["Framework :: Pytest", "Typing :: Typed", "text/markdown", "BSD-3-Clause", "fx = pytest_fx.plugin"]
    lacks = [line for line in metadata if line not in text]
    lacks += sorted({f"{package}/py.typed" for package in PACKAGES} - names)
    strays = {name.partition("/")[0] for name in names if ".dist-info/" not in name} - PACKAGES
    if lacks or strays:
        raise SystemExit(f"the wheel lacks {lacks}, and holds {sorted(strays)} beside the packages")
    return wheel


def try_wheel(session: nox.Session, torch: str | None = None) -> None:
    """Check a user's model and pass with the installed wheel, in a folder without access to the checkout."""
    wheel = str(build_wheel())
    install(session, wheel, torch=torch)
    session.run("python", "-m", "pip", "install", "-qq", "--force-reinstall", "--no-deps", wheel)  # also with -R
    with tempfile.TemporaryDirectory() as home, session.chdir(home):
        Path("models.py").write_text(MODELS)
        session.run("python", "-m", "pip", "check")
        session.run("python", "-W", "error", "-c", IMPORT, env=CHECKOUT_UNSEEN)
        options = ("--fx-model", "models:perceptron", "--fx-pass", "models:without_dropout", "--fx-no-timing")
        printed = session.run("python", "-m", "pytest", *options, silent=True, env=CHECKOUT_UNSEEN)
    if not re.search(r"\d+ passed", str(printed)) or "without-dropout" not in str(printed):
        session.error(f"the pass of the user was not judged:\n{printed}")
    session.log(str(printed).strip().splitlines()[-1])


@nox.session(python=PYTHONS)
def pythons(session: nox.Session) -> None:
    """Run the tests under each interpreter, with the pinned torch."""
    run_tests(session)


@nox.session
@nox.parametrize("torch", torch_versions())
def torches(session: nox.Session, torch: str) -> None:
    """Run the tests with each minor version of torch."""
    run_tests(session, torch)


@nox.session(python=PYTHONS)
def wheels(session: nox.Session) -> None:
    """Try the wheel under each interpreter, with the pinned torch."""
    try_wheel(session)


@nox.session
@nox.parametrize("torch", torch_versions())
def wheels_by_torch(session: nox.Session, torch: str) -> None:
    """Try the wheel with each minor version of torch."""
    try_wheel(session, torch)
