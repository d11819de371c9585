"""Functions that tests run in several processes, which are one process group over gloo on the loopback."""

from __future__ import annotations

import datetime
import importlib.util
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

STARTING = 60.0
"""Seconds that interpreters may take until they run a function."""
COLLECTIVE = 60.0
"""Seconds in which a collective has to end."""


def unavailable() -> str | None:
    """Return why there can be no group on this system, or None."""
    if not dist.is_available() or not dist.is_gloo_available():
        return "this build of torch has no gloo"
    return None


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a rank."""

    status: int | None
    """Its exit status; None if it ran into the time limit and was killed."""
    result: Any
    """The result of the function; the traceback of its error; None if the process died."""
    output: str
    """The text that it wrote to the standard streams."""


def run_ranks(function: Callable[..., Any], count: int, folder: Path, *args: Any, seconds: float = 150.0) -> list[Any]:
    """Return the results of ``function(rank, count, *args)`` in each of ``count`` processes, or fail with their output.

    They are fresh interpreters, since a forked one may have locks of threads that are not there. ``function`` is one of
    a file's own; arguments and results are what ``torch.save`` takes.
    """
    ended = end_ranks(function, count, folder, *args, seconds=seconds)
    bad = [
        f"rank {rank}, status {run.status}: {run.result}\n{run.output}" for rank, run in enumerate(ended) if run.status
    ]
    stuck = [
        f"rank {rank} did not end in {seconds} s\n{run.output}" for rank, run in enumerate(ended) if run.status is None
    ]
    assert not bad and not stuck, "\n".join([*bad, *stuck])
    return [run.result for run in ended]


def end_ranks(
    function: Callable[..., Any],
    count: int,
    folder: Path,
    *args: Any,
    seconds: float = 150.0,
    collective: float = COLLECTIVE,
) -> list[Ended]:
    """Run ``function`` in each of ``count`` processes, and return how they ended, all within ``seconds``."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(args, folder / "arguments")
    file = function.__code__.co_filename
    settings = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, __file__, file, function.__name__, str(folder), str(count), str(collective)]
    processes: list[subprocess.Popen[bytes]] = []
    limit = time.monotonic() + seconds
    statuses: list[int | None] = []
    try:
        for rank in range(count):
            with (folder / f"output-{rank}").open("wb") as output:
                processes.append(
                    subprocess.Popen(
                        [*command, str(rank)], stdout=output, stderr=output, env={**os.environ, **settings}
                    )
                )
        for process in processes:
            try:
                statuses.append(process.wait(max(0.0, limit - time.monotonic())))
            except subprocess.TimeoutExpired:
                statuses.append(None)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [
        Ended(status, _result_at(folder / f"result-{rank}"), (folder / f"output-{rank}").read_text())
        for rank, status in enumerate(statuses)
    ]


def _result_at(path: Path) -> Any:
    return torch.load(path, weights_only=False) if path.exists() else None


def _main(file: str, name: str, folder: str, count: str, collective: str, rank: str) -> int:
    torch.set_num_threads(1)
    answer_file = Path(folder, f"result-{rank}")
    try:
        spec = importlib.util.spec_from_file_location(Path(file).stem, file)
        assert spec is not None and spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        store = dist.FileStore(str(Path(folder, "store")), int(count))
        store.set_timeout(datetime.timedelta(seconds=STARTING))
        limit = datetime.timedelta(seconds=float(collective))
        dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(count), timeout=limit)
        args: Sequence[Any] = torch.load(Path(folder, "arguments"), weights_only=False)
        result, status = getattr(module, name)(int(rank), int(count), *args), 0
    except Exception:
        result, status = traceback.format_exc(), 1
    torch.save(result, f"{answer_file}.part")
    os.replace(f"{answer_file}.part", answer_file)
    sys.stdout.flush()
    os._exit(status)  # without waiting for ranks that are gone


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
