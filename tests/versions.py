"""Runs the tests under each installed interpreter, or with each version of torch, and prints a table.

    make pythons                                      # each interpreter, in .venv-3.X
    make torches PYTHON=python3.12                    # torch from 2.10 to the newest, in .venv-torch-2.X
    make pythons ARGS="--only 3.13 --cuda tests/fx"   # one of them, builds for CUDA too, and one folder of tests
    make pythons ARGS="--as-installed -n 1"           # with what these environments hold, in one process

pip's settings decide where versions come from. A build for CUDA takes gigabytes: one is downloaded only with
``--cuda``. A version that is not available otherwise is a row with the reason. Needs the standard library only.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from interpreters import ROOT, found, running

_FOR_CUDA = re.compile(r"\s*(Collecting|Processing) (\S*/)?(nvidia|cuda)[-_]", re.IGNORECASE)
"""The line of pip about a build of torch for CUDA that it is about to install."""
_LONGEST_REASON = 160


class CannotInstall(Exception):
    """Something is not to be had, and why."""


@dataclass(frozen=True, slots=True)
class Row:
    """The result of the tests with one interpreter and one version of torch."""

    python: str
    """Version of the interpreter."""
    torch: str
    """Version of torch, with its build if it was installed."""
    counts: dict[str, int] | None = None
    """Tests by outcome; None where they did not run."""
    seconds: float = 0.0
    """The seconds that they took."""
    note: str = ""
    """The reason why they did not run, or the path of their output."""
    status: int = 0
    """The exit status of pytest."""

    @property
    def is_red(self) -> bool:
        """Return whether tests failed, or pytest itself did."""
        return self.status != 0

    def cells(self) -> tuple[str, ...]:
        """The row as text, for each column."""
        if self.counts is None:
            return self.python, self.torch, "-", "-", "-", "-", self.note
        failed = self.counts.get("failed", 0) + self.counts.get("error", 0) + self.counts.get("errors", 0)
        passed, skipped = self.counts.get("passed", 0), self.counts.get("skipped", 0)
        return self.python, self.torch, str(passed), str(failed), str(skipped), f"{self.seconds:.0f}", self.note


def table(rows: Iterable[Row]) -> str:
    """Return the rows under a header, in columns."""
    return columns([("python", "torch", "passed", "failed", "skipped", "seconds", ""), *(row.cells() for row in rows)])


def columns(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as text, each column as wide as its widest cell."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def outcomes(output: str) -> dict[str, int]:
    """Return how many tests passed, failed and so on, by the last line in which pytest says it."""
    lines = [line for line in output.splitlines() if re.search(r"\d+ (passed|failed|errors?|skipped)\b.* in ", line)]
    return (
        {what: int(count) for count, what in re.findall(r"(\d+) (\w+)", lines[-1].partition(" in ")[0])}
        if lines
        else {}
    )


def one_a_minor(versions: Iterable[str], oldest: str) -> list[str]:
    """Return the newest release of each minor version from ``oldest`` on, built for the CPU where there is such a one.

    >>> one_a_minor(["2.9.1", "2.10.0", "2.13.0+cpu", "2.13.0", "2.13.1", "2.14.0", "2.14.1", "2.15.0rc1"], "2.10")
    ['2.10.0', '2.13.0+cpu', '2.14.1']
    """
    best: dict[tuple[int, ...], tuple[bool, tuple[int, ...], bool, str]] = {}
    for version in versions:
        plain, _, build = version.partition("+")
        if not re.fullmatch(r"\d+(\.\d+)+", plain) or _numbers(plain)[:2] < _numbers(oldest)[:2]:
            continue
        candidate = (build == "cpu", _numbers(plain), not build, version)
        minor = _numbers(plain)[:2]
        best[minor] = max(best.get(minor, candidate), candidate)
    return [best[minor][-1] for minor in sorted(best)]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def constraints(text: str, torch: str | None) -> str:
    """Return ``constraints.txt`` with another version of torch, or as it is.

    Other versions choose their setuptools: torch 2.11 and 2.12 refuse those of today.
    """
    if torch is None:
        return text
    return re.sub(r"^setuptools==.*\n", "", re.sub(r"^torch==.*$", f"torch=={torch}", text, flags=re.M), flags=re.M)


def reason(output: Sequence[str]) -> str:
    """Return why pip installed nothing: the versions that exclude each other, or its last error."""
    _, cause, conflict = "\n".join(output).partition("The conflict is caused by:\n")
    problems = [line for line in output if line.startswith("ERROR")] or list(output) or ["pip failed"]
    lines = conflict.partition("\n\n")[0].splitlines() if cause else [problems[-1].removeprefix("ERROR: ")]
    return ", ".join(line.strip() for line in lines)[:_LONGEST_REASON]


class Environment:
    """A virtual environment with the project in it, made and filled when it is needed."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder = folder
        self.python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        if not self.python.exists():
            subprocess.run([python, "-m", "venv", folder], check=True)

    def _pip(self, *arguments: str, unless: re.Pattern[str] | None = None) -> str:
        """Return the output of pip; if it refuses, raise an error with pip's own last words.

        Args:
            unless: a pattern; pip is stopped at the first line of its output that matches.
        """
        command = [self.python, "-u", "-m", "pip", "--disable-pip-version-check", *arguments]
        lines: list[str] = []
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=ROOT
        ) as run:
            assert run.stdout is not None
            for line in run.stdout:
                lines.append(line.rstrip())
                if unless is not None and unless.match(line):
                    run.terminate()
                    raise CannotInstall(
                        "not installable as a CPU build: there is one for CUDA only, which --cuda allows"
                    )
        if run.returncode != 0:
            raise CannotInstall(reason(lines))
        return "\n".join(lines)

    def torch_versions(self) -> list[str]:
        """Versions of torch that there are for this interpreter."""
        (line,) = re.findall(r"^Available versions: (.*)$", self._pip("index", "versions", "torch"), re.MULTILINE)
        return line.split(", ")

    def install(self, torch: str | None, cuda: bool) -> None:
        """Install torch, the project, and what its tests need.

        Args:
            torch: its version; None for the one in ``constraints.txt``.
            cuda: whether a build for CUDA will do.

        Raises:
            CannotInstall: there is no such version, or only a build that is not wanted.
        """
        file = self.folder / "constraints.txt"
        file.write_text(constraints((ROOT / "constraints.txt").read_text(), torch))
        pinned = ("--constraint", str(file))
        # all that is required is known before anything is downloaded: "fast-deps" reads it from within the files
        watched = None if cuda else _FOR_CUDA
        # one that can build the project: environments are made with an old one, with which pip would be content
        (backend,) = re.findall(
            r'^requires = \["(setuptools.*)"\]$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
        )
        self._pip("install", "--use-feature", "fast-deps", *pinned, backend, "torch", unless=watched)
        editable = ("install", "--quiet", *pinned, "--no-build-isolation", "--editable")
        try:
            self._pip(*editable, ".[test,tables,openvino]")
        except CannotInstall:  # the tests of an engine that is not there are skipped
            self._pip(*editable, ".[test,tables]")

    def version(self, what: str) -> str:
        """Return the value of the expression ``what`` in the environment, once torch is imported."""
        command = [self.python, "-W", "ignore", "-c", f"import platform, torch; print({what})"]
        run = subprocess.run(command, check=False, capture_output=True, text=True)
        if run.returncode != 0:
            raise CannotInstall(f"torch cannot be imported: {run.stderr.strip().splitlines()[-1]}"[:_LONGEST_REASON])
        return run.stdout.strip()

    def test(self, arguments: Sequence[str]) -> Row:
        """Run the tests; all that they print is in ``tests.log`` of the environment."""
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        command = [self.python, "-m", "pytest", "--numprocesses", "auto", "--dist", "worksteal", *arguments]
        versions = self.version("platform.python_version()"), self.version("torch.__version__")
        log, start = self.folder / "tests.log", time.monotonic()
        with log.open("w") as file:
            status = subprocess.run(
                command, check=False, stdout=file, stderr=file, cwd=ROOT, env=environment
            ).returncode
        note = f"see {log.relative_to(ROOT)}" if status else ""
        return Row(*versions, outcomes(log.read_text()), time.monotonic() - start, note, status)


def attempt(folder: str, python: Path, label: tuple[str, str], torch: str | None, options: argparse.Namespace) -> Row:
    """Install and test one combination."""
    print(f"Python {label[0]}, torch {label[1]} in {folder} ...", flush=True)
    try:
        if options.as_installed and not (ROOT / folder).exists():
            raise CannotInstall("there is no such environment")
        environment = Environment(ROOT / folder, python)
        if not options.as_installed:
            environment.install(torch, options.cuda)
        return environment.test(options.arguments)
    except (CannotInstall, subprocess.CalledProcessError) as error:
        return Row(*label, note=str(error))


def pinned_torch() -> str:
    """Return the version of torch that ``constraints.txt`` names."""
    (torch,) = re.findall(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return torch


def minors_of_torch(environment: Environment) -> dict[str, str]:
    """Return the newest release of each minor version of torch that the project is for, by that minor version."""
    (oldest,) = re.findall(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    offered = one_a_minor(environment.torch_versions(), oldest)
    return {".".join(version.split(".")[:2]): version for version in offered}


def parser_for(description: str | None, as_installed: str) -> argparse.ArgumentParser:
    """Return a parser of the options that choose environments and allow installations."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="VERSION", help="3.13 or 2.12, as often as wanted")
    cuda = "install builds of torch for CUDA where there are no others"
    parser.add_argument("--cuda", action="store_true", help=cuda)
    parser.add_argument("--as-installed", action="store_true", help=as_installed)
    return parser


def pythons(options: argparse.Namespace) -> list[Row]:
    """Test each interpreter, with the version of torch that ``constraints.txt`` names."""
    torch = pinned_torch()
    chosen = {name: python for name, python in found().items() if not options.only or name in options.only}
    return [attempt(f".venv-{name}", python, (name, torch), None, options) for name, python in chosen.items()]


def torches(options: argparse.Namespace) -> list[Row]:
    """Test each version of torch, under the interpreter that runs."""
    python, name = Path(sys.executable), running()
    minors = minors_of_torch(Environment(ROOT / f".venv-{name}", python))
    chosen = {minor: version for minor, version in minors.items() if not options.only or minor in options.only}
    return [attempt(f".venv-torch-{minor}", python, (name, each), each, options) for minor, each in chosen.items()]


def main() -> int:
    """Run what the command line asks for; 1 if anything is red, or nothing ran."""
    parser = parser_for(__doc__, "install nothing")
    parser.add_argument("what", choices=("pythons", "torches"))
    options, options.arguments = parser.parse_known_args()
    rows = {"pythons": pythons, "torches": torches}[options.what](options)
    print(table(rows))
    return 1 if any(row.is_red for row in rows) or all(row.counts is None for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
