"""``EngineCache``: a folder of engines that were built before, found by what they were built from."""

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
"""Seconds after which an unfinished file is taken for one whose writer is gone."""


@dataclass(frozen=True, slots=True)
class EngineCache:
    """A folder of engines, which any number of processes can use at a time.

    An engine is found again if the network, its weights, the options and the versions of the packages are the same.
    Files appear whole; a damaged one is dropped and built again. Where the folder is larger than ``max_bytes``, the
    engines that were not used for the longest time go.
    """

    folder: Path
    """Where the engines are; it is made when the first one is kept."""
    max_bytes: int = 8 << 30
    """How large the folder may be."""

    def __post_init__(self) -> None:
        expect(self.folder, (str, os.PathLike), "an EngineCache has the path of a folder", error=LoweringError)
        object.__setattr__(self, "folder", Path(self.folder))
        if type(self.max_bytes) is not int or self.max_bytes < 0:
            raise LoweringError("max_bytes is a number of bytes", value=shown(self.max_bytes))

    def find(self, key: str) -> TensorRTEngine | None:
        """The engine that was built from what ``key`` stands for, or ``None``."""
        path = self._path(key)
        try:
            engine = TensorRTEngine.load(path)
        except FileNotFoundError:
            return None
        except LoweringError:
            path.unlink(missing_ok=True)
            return None
        now = time.time()
        with contextlib.suppress(FileNotFoundError):  # another process made room
            os.utime(path, (now, now))  # used just now
        return engine

    def keep(self, key: str, engine: TensorRTEngine) -> None:
        """Write an engine, and drop others if the folder becomes too large; one that does not fit is not kept."""
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
        """Drop the least recently used engines until the folder has at most ``allowed`` bytes, and abandoned files."""
        found: list[tuple[float, int, Path]] = []
        for path in self.folder.glob("*") if self.folder.is_dir() else ():
            try:
                stat = path.stat()
            except FileNotFoundError:  # another process made room
                continue
            if path.suffix == _SUFFIX and path != but:
                found.append((stat.st_mtime, stat.st_size, path))
            elif path.suffix == ".part" and time.time() - stat.st_mtime > _ABANDONED:
                path.unlink(missing_ok=True)
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= allowed:
                break
            path.unlink(missing_ok=True)
            total -= size
