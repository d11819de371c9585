"""``EngineCache``: a folder of engines from earlier builds, by a hash of all inputs of the build."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fx.argument_types import Bounds, checked
from fx.errors import LoweringError
from fx.lowering.tensorrt.engine import TensorRTEngine

_SUFFIX = ".engine"
_ABANDONED = 3600.0
"""The age in seconds at which an unfinished file counts as abandoned by its writer."""


@checked(LoweringError)
@dataclass(frozen=True, slots=True)
class EngineCache:
    """A folder of engines, which any number of processes can use at the same time.

    An engine is found again if the network, its weights, the options and the versions of the packages are the same.
    Files are written atomically; a damaged one is deleted and built again. If the folder is larger than ``max_bytes``,
    the least recently used engines are deleted.
    """

    folder: str | os.PathLike[str]
    """The folder of the engines, which is created when the first one is stored."""
    max_bytes: Annotated[int, Bounds(0)] = 8 << 30
    """The largest total size of the engines, in bytes."""

    def find(self, key: str) -> TensorRTEngine | None:
        """Return the engine stored under ``key``, or ``None``."""
        path = self._path(key)
        try:
            engine = TensorRTEngine.load(path)
        except FileNotFoundError:
            return None
        except LoweringError:
            path.unlink(missing_ok=True)
            return None
        now = time.time()
        with contextlib.suppress(FileNotFoundError):  # another process deleted it
            os.utime(path, (now, now))  # mark it as recently used
        return engine

    def keep(self, key: str, engine: TensorRTEngine) -> None:
        """Store an engine, unless it exceeds the limit by itself; delete others if the folder becomes too large."""
        content = engine.to_bytes()
        if len(content) > self.max_bytes:
            return
        path = self._path(key)
        self._make_room(self.max_bytes - len(content), path)
        engine.save(path)

    def _path(self, key: str) -> Path:
        return Path(self.folder) / f"{key}{_SUFFIX}"

    def _make_room(self, allowed: int, but: Path) -> None:
        """Delete abandoned files, and the least recently used engines until at most ``allowed`` bytes are left."""
        engines: list[tuple[float, int, Path]] = []
        for path in Path(self.folder).glob("*"):
            try:
                stat = path.stat()
            except FileNotFoundError:  # another process deleted it
                continue
            if path.suffix == _SUFFIX and path != but:
                engines.append((stat.st_mtime, stat.st_size, path))
            elif path.suffix == ".part" and time.time() - stat.st_mtime > _ABANDONED:
                path.unlink(missing_ok=True)
        total = sum(size for _, size, _ in engines)
        for _, size, path in sorted(engines):
            if total <= allowed:
                break
            path.unlink(missing_ok=True)
            total -= size
