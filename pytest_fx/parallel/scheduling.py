"""A scheduler of pytest-xdist that keeps all timings for one worker. It is loaded only if tests are distributed."""

from __future__ import annotations

from xdist.scheduler import LoadScheduling  # pyright: ignore[reportMissingTypeStubs]
from xdist.workermanage import WorkerController  # pyright: ignore[reportMissingTypeStubs]

from pytest_fx.parallel.distribution import TIMING_GROUP

_LEAST_IN_QUEUE = 2
"""Tests in the queue of a worker below which it runs none, unless it is shut down."""


class TimingsLast(LoadScheduling):
    """Distributes checks as ``--dist load`` does, and after the last one all timings to the first free worker.

    That worker waits for its lock until the other workers on its machine finish their checks. If it dies, its remaining
    timings go to one other worker.
    """

    def _send_tests(self, node: WorkerController, num: int) -> None:
        names = self.collection or []
        checks = [index for index in self.pending if not names[index].endswith(f"@{TIMING_GROUP}")]
        chosen = checks[:num] or list(self.pending)
        if len(self.node2pending[node]) + len(chosen) < _LEAST_IN_QUEUE:  # a worker keeps its last test until then
            chosen = checks[:num] + [index for index in self.pending if index not in checks]
        if chosen:
            sent = set(chosen)
            self.pending[:] = [index for index in self.pending if index not in sent]
            self.node2pending[node].extend(chosen)
            node.send_runtest_some(chosen)
