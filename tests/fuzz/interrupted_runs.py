"""The files of runs that are killed, or meet a full disk, a read-only folder or a second run.

``python tests/fuzz/interrupted_runs.py`` makes 50 attempts of each kind. It checks that

- each measurement that a run has reported is on disk afterwards, or the run has reported that it is not;
- every file can be parsed;
- the next run continues at the interruption, and leaves the same files as an uninterrupted run.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import itertools
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from pytest_fx.records.records import read_records
from pytest_fx.records.running import RUNNING

_CONFTEST = """
import os, time
import pytest
from pytest_fx.tables.table import register_table
from pytest_fx.tables.table import Chart, Column, Row, Series, Table

class Reported:
    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            os.write({pipe}, (report.nodeid + "\\n").encode())

def pytest_configure(config):
    config.pluginmanager.register(Reported())  # which is called for tests outside of this folder, too

def measured():
    time.sleep(0.01)
    return {{"seconds": 1.0, "filling": "x" * 400}}

register_table(
    Table(
        "quick", "Quick", "6", "Rows that measure nothing.", (),
        lambda scale: [Row(f"row {{number}}", measured) for number in range({rows})],
        (Column("seconds", "{{seconds:g}}"),),
        Chart("Quick", "seconds", (Series("seconds", "seconds", "ours"),)),
        lambda values: {{"seconds": values["seconds"]}},
    )
)
"""
_TESTS = """
import pytest

@pytest.mark.parametrize("number", range({rows}))
def test_row(fx_traced, fx_equal, number):
    fx_equal(fx_traced, label=f"row {{number}}")
"""
ROWS = 30
MEASUREMENTS = ("--fx-model", "mlp", "--fx-size", "small", "test_rows.py")
TABLES = ("--fx-tables", "quick")
NOBODY = 65534
"""Whom a read-only folder stops, as it does not stop root."""


@dataclass
class Ended:
    """A run that is over."""

    status: int
    """As of ``waitpid``."""
    reported: list[str]
    """The tests that it reported as passed."""
    output: str


@dataclass
class Run:
    """A run of pytest in a child of this process, which has imported all that takes time."""

    folder: Path
    arguments: tuple[str, ...]
    before: Callable[[], None] = lambda: None
    """Prepare the child."""

    def __post_init__(self) -> None:
        self._reports, write = os.pipe()
        output, write_output = os.pipe()  # a file could not grow any more than others
        self.process = os.fork()
        if self.process == 0:
            status = 70
            try:
                os.close(self._reports)
                os.dup2(write_output, 1)
                os.dup2(1, 2)
                self._write_files(write)
                os.chdir(self.folder)
                self.before()
                plugins = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:xdist")
                status = int(pytest.main([*plugins, *self.arguments, "-q", "--rootdir", str(self.folder)]))
                sys.stdout.flush()
            except BaseException:
                os.write(1, traceback.format_exc().encode())
            finally:
                os._exit(status)
        os.close(write)
        os.close(write_output)
        self._read = ThreadPoolExecutor(2)
        self._reported = self._read.submit(_text, self._reports)
        self._output = self._read.submit(_text, output)

    def _write_files(self, pipe: int) -> None:
        for name, text in (("conftest.py", _CONFTEST), ("test_rows.py", _TESTS)):
            mine = self.folder / f"{name}.{os.getpid()}"
            mine.write_text(text.format(pipe=pipe, rows=ROWS))
            mine.replace(self.folder / name)

    def wait(self) -> Ended:
        with self._read:
            reported, output = self._reported.result().splitlines(), self._output.result()
        _, status = os.waitpid(self.process, 0)
        return Ended(status, reported, output)


def _text(pipe: int) -> str:
    with open(pipe) as file:
        return file.read()


def measured(folder: Path) -> set[str]:
    """The rows that are on disk."""
    journals = [record for path in folder.glob(".pytest_fx/runs/*.jsonl") for record in read_records(path)]
    records = read_records(folder / "results" / "raw" / "quick.jsonl")
    return {record["row"]["program"] for record in journals if "row" in record} | {record["row"] for record in records}


def row_of(test: str) -> str:
    """The row that a test measures."""
    numbers = "".join(character if character.isdigit() else " " for character in test.partition("::")[2]).split()
    return f"row {numbers[0]}"


def unreadable(folder: Path, torn: bool) -> Iterator[str]:
    """The files that do not parse."""
    for path in folder.rglob("*"):
        try:
            if path.suffix == ".json":
                text = path.read_text()
                if text or path.parent.name != RUNNING:  # between tests the file names no running test
                    json.loads(text)
            elif path.suffix == ".jsonl":
                lines = path.read_text().splitlines()
                assert torn or all(isinstance(json.loads(line), dict) for line in lines)
            elif path.suffix == ".svg":
                xml.etree.ElementTree.parse(path)
            elif path.suffix == ".csv":
                widths = {len(line) for line in csv.reader(path.read_text().splitlines())}
                assert len(widths) == 1
            elif path.suffix == ".md":
                assert path.read_text().endswith("\n")
        except Exception as error:  # any error is reported
            yield f"{path.relative_to(folder)} does not parse: {type(error).__name__}: {error}"


class Attempts:
    """Attempts of all kinds; the same for the same seed, as far as machines go."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.interrupted = 0
        """The number of runs that were cut short, or could not keep all measurements."""
        self._took: dict[tuple[str, ...], float] = {}

    def took(self, arguments: tuple[str, ...]) -> float:
        """Seconds that a run takes."""
        if arguments not in self._took:
            with tempfile.TemporaryDirectory() as place:
                start = time.perf_counter()
                ended = Run(Path(place), arguments).wait()
                self._took[arguments] = time.perf_counter() - start
                assert ended.status == 0, ended.output
                assert len(ended.reported) == ROWS, ended.output
                assert measured(Path(place)) == {f"row {number}" for number in range(ROWS)}, ended.output
        return self._took[arguments]

    def killed(self, folder: Path, arguments: tuple[str, ...], how: signal.Signals) -> list[str]:
        run = Run(folder, arguments)
        time.sleep(self.draw.random() * self.took(arguments))
        os.kill(run.process, how)
        return self._lost(folder, run.wait())

    def full(self, folder: Path, arguments: tuple[str, ...]) -> list[str]:
        """Limit the size of files, so that a write fails in the middle of a line, as on a full disk."""
        most = self.draw.randrange(24_000)
        run = Run(folder, arguments, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))
        return self._lost(folder, run.wait(), torn=True)

    def read_only(self, folder: Path, arguments: tuple[str, ...]) -> list[str]:
        """Nothing can be written, from the start or from some time on."""
        folder.chmod(0o777)

        def drop() -> None:
            if os.getuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)

        if at_once := self.draw.random() < 0.3:
            folder.chmod(0o555)
        run = Run(folder, arguments, drop)
        if not at_once:
            time.sleep(self.draw.random() * self.took(arguments))
            for path in (*folder.rglob("*"), folder):
                path.chmod(0o555 if path.is_dir() else 0o444)
        ended = run.wait()
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
        return self._lost(folder, ended)

    def beside(self, folder: Path, arguments: tuple[str, ...]) -> list[str]:
        """Another run measures the same in the same folder."""
        first = Run(folder, arguments)
        time.sleep(self.draw.random() * self.took(arguments))
        second = Run(folder, arguments)
        ended = first.wait(), second.wait()
        wrong = [run.output for run in ended if run.status != 0]
        journals = [len(read_records(path)) for path in folder.glob(".pytest_fx/runs/*.jsonl")]
        if arguments is MEASUREMENTS and journals != [ROWS, ROWS]:
            wrong.append(f"the journals have {journals} records")
        return wrong + [what for run in ended for what in self._lost(folder, run)]

    def _lost(self, folder: Path, ended: Ended, torn: bool = False) -> list[str]:
        wrong = list(unreadable(folder, torn))
        self.interrupted += ended.status != 0 or "not on disk" in ended.output
        lost = {row_of(test) for test in ended.reported} - measured(folder)
        if lost and "not on disk" not in ended.output:
            wrong.append(f"lost: {sorted(lost)}\n{ended.output[-3000:]}")
        if "Traceback" in ended.output or "INTERNALERROR" in ended.output or "OSError" in ended.output:
            wrong.append(f"a foreign exception:\n{ended.output[-3000:]}")
        return wrong

    def make(self, kind: str, arguments: tuple[str, ...]) -> list[str]:
        """Make one attempt, and return the faults after it."""
        self.took(arguments)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            if kind in ("SIGTERM", "SIGKILL"):
                wrong = self.killed(folder, arguments, signal.Signals[kind])
            else:
                wrong = getattr(self, kind.replace("-", "_"))(folder, arguments)
            there = measured(folder)
            ended = Run(folder, arguments).wait()
            if ended.status != 0 or measured(folder) != {f"row {number}" for number in range(ROWS)}:
                wrong.append(f"the next run ended with {ended.status}:\n{ended.output[-3000:]}")
            if arguments is TABLES and there.intersection(map(row_of, ended.reported)):
                wrong.append("the next run measured again what was measured")
            wrong += unreadable(folder, torn=kind == "full")
        return wrong


KINDS = ("SIGTERM", "SIGKILL", "full", "read-only", "beside")


def main() -> int:
    """Make the attempts, and print how many there were, and the survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=50, help="of each kind, for measurements and for tables")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for module in ("pytest_fx.report.recording", "pytest_fx.suites.table_suite"):  # imported by every run
        importlib.import_module(module)
    attempts = Attempts(options.seed)
    survivors = 0
    for kind, (name, arguments) in itertools.product(
        options.kinds.split(","), (("measurements", MEASUREMENTS), ("tables", TABLES))
    ):
        reported = attempts.interrupted = 0
        for number in range(options.attempts):
            if wrong := attempts.make(kind, arguments):
                reported += 1
                print(f"{kind}, {name}, attempt {number}:", *wrong, sep="\n", flush=True)
        print(
            f"{kind} of {name}: {options.attempts} attempts, {attempts.interrupted} interrupted, {reported} survivors",
            flush=True,
        )
        survivors += reported
    return min(survivors, 1)


if __name__ == "__main__":
    sys.exit(main())
