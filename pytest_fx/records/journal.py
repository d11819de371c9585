"""The measurements of a run, on disk as they are taken: nothing is lost when the run is interrupted or killed."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pytest_fx.records.records import append_record, read_records, write_atomically
from pytest_fx.records.running import FOLDER

RUNS = "runs"
"""The folder in it with the journals of the last runs, one file of JSON lines each."""
LAST_RUN = "last_run.json"
"""The file in it with all measurements of the last run, written at its end."""
KEPT_RUNS = 10
"""The number of journals that are kept; when a run begins, older ones are removed unless their runs may go on."""
_OVER = 24 * 3600.0
"""Seconds without a record after which a run counts as over."""


class Journal:
    """The journal of one run, begun with its first record."""

    def __init__(self, root: Path) -> None:
        """``root`` is pytest's root folder."""
        self.folder = root / FOLDER
        now = datetime.now(timezone.utc)
        self.path = self.folder / RUNS / f"{now:%Y-%m-%dT%H-%M-%S.%f}-{os.getpid()}.jsonl"
        self.problem: OSError | None = None
        """The error that keeps records from being written, if there is one. The tests go on."""

    def append(self, record: Mapping[str, Any]) -> None:
        """Write ``record`` to disk, with the time."""
        if self.problem is not None:
            return
        try:
            if not self.path.exists():
                self._begin()
            append_record(self.path, {"time": datetime.now(timezone.utc).isoformat(timespec="seconds"), **record})
        except OSError as error:
            self.problem = error

    def finish(self, verdicts: Sequence[Mapping[str, str]] = ()) -> None:
        """Replace the record of the last run by that of this run, with the ``verdicts`` on programs."""
        if self.problem is not None:
            return
        lines = ",\n".join(json.dumps(record) for record in read_records(self.path))
        judged = ",\n".join(map(json.dumps, verdicts))
        text = f'{{"journal": "{RUNS}/{self.path.name}", "verdicts": [\n{judged}\n], "records": [\n{lines}\n]}}\n'
        with contextlib.suppress(OSError):  # the journal has it all
            write_atomically(self.folder / LAST_RUN, text)

    def _begin(self) -> None:
        ignore_in_git(self.folder)
        runs = self.path.parent
        runs.mkdir(parents=True, exist_ok=True)
        for old in sorted(runs.glob("*.jsonl"))[: -KEPT_RUNS + 1]:
            with contextlib.suppress(OSError):  # another run removes it
                if time.time() - old.stat().st_mtime > _OVER:  # otherwise its run may go on
                    old.unlink()


def ignore_in_git(folder: Path) -> None:
    """Make ``folder``, if it does not exist, with a file that hides it from git."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / ".gitignore").exists():
        write_atomically(folder / ".gitignore", "# Written by pytest-fx.\n*\n")
