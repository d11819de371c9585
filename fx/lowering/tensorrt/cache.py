"""``EngineCache``: a folder of engines from earlier builds, by a hash of all inputs of the build."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from fx.arguments import expect, shown
from fx.errors import LoweringError
from fx.lowering.tensorrt.engine import TensorRTEngine

_SUFFIX = ".engine"
_ABANDONED = 3600.0
"""The age in seconds at which an unfinished file counts as abandoned by its writer."""


@dataclass(frozen=True, slots=True)
class EngineCache:
    """A folder of engines, which any number of processes can use at the same time.

    An engine is found again if the network, its weights, the options and the versions of the packages are the same.
    Files are written atomically; a damaged one is deleted and built again. If the folder is larger than ``max_bytes``,
    the least recently used engines are deleted.
    """

    folder: Path
    """The folder of the engines, which is created when the first one is stored."""
    max_bytes: int = 8 << 30
    """The largest total size of the engines, in bytes."""

    def __post_init__(self) -> None:
        expect(self.folder, (str, os.PathLike), "an EngineCache has the path of a folder", error=LoweringError)
        object.__setattr__(self, "folder", Path(self.folder))
        if type(self.max_bytes) is not int or self.max_bytes < 0:
            raise LoweringError("max_bytes is a number of bytes", value=shown(self.max_bytes))

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
        expect(engine, TensorRTEngine, "EngineCache.keep takes a TensorRTEngine", error=LoweringError)
        content = engine.to_bytes()
        if len(content) > self.max_bytes:
            return
        path = self._path(key)
        self._make_room(self.max_bytes - len(content), path)
        engine.save(path)

    def _path(self, key: str) -> Path:
        expect(key, str, "an EngineCache finds engines by text", error=LoweringError)
        return self.folder / f"{key}{_SUFFIX}"

    def _make_room(self, allowed: int, but: Path) -> None:
        """Delete abandoned files, and the least recently used engines until at most ``allowed`` bytes are left."""
        engines: list[tuple[float, int, Path]] = []
        for path in self.folder.glob("*") if self.folder.is_dir() else ():
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
