"""Processes of a benchmark that form one gloo group on the loopback interface."""

from __future__ import annotations

import datetime
import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

LIMIT = 240
"""Time limit for the processes, in seconds."""


def run_ranks(work: Callable[..., None], count: int, *args: Any, threads: int = 1) -> int:
    """Run ``work(rank, count, *args)`` in ``count`` processes, end them, and return the number that failed."""
    if not dist.is_available() or not dist.is_gloo_available():
        print("not measured: this build of torch has no gloo")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder, "meeting").as_uri()
        context = multiprocessing.get_context("spawn")
        processes = [
            context.Process(target=_join, args=(rank, count, meeting, threads, work, args), daemon=True)
            for rank in range(count)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(LIMIT)
        for process in processes:
            process.kill()
            process.join()
    return sum(process.exitcode != 0 for process in processes)


def _join(rank: int, count: int, meeting: str, threads: int, work: Callable[..., None], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(threads)
    limit = datetime.timedelta(seconds=LIMIT / 4)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=count, timeout=limit)
    work(rank, count, *args)
    dist.destroy_process_group()
