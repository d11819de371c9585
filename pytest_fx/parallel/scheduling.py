"""A scheduler of pytest-xdist that keeps all timings for one worker. It is loaded only where tests are distributed."""

from __future__ import annotations

from xdist.scheduler import LoadScheduling  # pyright: ignore[reportMissingTypeStubs]
from xdist.workermanage import WorkerController  # pyright: ignore[reportMissingTypeStubs]

from pytest_fx.parallel.distribution import TIMING_GROUP


class TimingsLast(LoadScheduling):
    """Hands out checks as ``--dist load`` does, and when there are none left, all timings to the first who asks.

    That worker waits by its lock until the checks of the others on its machine are done. If it dies, the timings that
    it did not come to go to one other worker.
    """

    def _send_tests(self, node: WorkerController, num: int) -> None:
        names = self.collection or []
        checks = [index for index in self.pending if not names[index].endswith(f"@{TIMING_GROUP}")]
        chosen = checks[:num] or list(self.pending)
        if chosen:
            taken = set(chosen)
            self.pending[:] = [index for index in self.pending if index not in taken]
            self.node2pending[node].extend(chosen)
            node.send_runtest_some(chosen)
