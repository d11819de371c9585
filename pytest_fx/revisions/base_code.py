"""The other code of ``--fx-against``: a git revision, checked out into a temporary folder, or another environment."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_fx.errors import RevisionError
from pytest_fx.named_objects import home_of

OPTION = "--fx-against"
_INTERPRETERS = ("bin/python", "Scripts/python.exe")
"""The interpreter in the folder of an environment."""
_PREFIX = "pytest-fx-against-"
_MOST_FILES = 3
"""Files that a message lists."""
_OF_A_HOOK = ("GIT_DIR", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_WORK_TREE")
"""Variables that git sets in hooks, which would lead to another working tree."""
_PACKAGE = Path(__file__).resolve().parents[1]
_OWN = {str(_PACKAGE / file) for file in ("revisions/launch.py", "revisions/serving.py", "timing/samples.py")}
"""Files of this plugin that every process of a revision runs."""


@dataclass(frozen=True, slots=True)
class Place:
    """The surroundings of a process of one revision: interpreter, current folder and import path."""

    interpreter: str
    """The interpreter."""
    folder: Path
    """The current folder."""
    top: Path
    """The top folder of the code."""
    path: Sequence[str] = ()
    """Folders that are searched for modules first."""
    replaced: Sequence[str] = ()
    """Folders that are not searched."""
    last: Sequence[str] = ()
    """Folders that are searched last."""


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """The files from which a process has loaded its code, without symbolic links."""

    definitions: Sequence[str]
    """Files that define the pass."""
    files: Sequence[str]
    """Files of all modules."""


@dataclass(frozen=True, slots=True)
class GitRevision:
    """A commit of the repository in which pytest runs."""

    name: str
    """The revision, as the user typed it."""
    commit: str
    """The commit's hash."""
    repository: Path
    """The top folder of the working tree, without symbolic links."""

    def __str__(self) -> str:
        return self.name if self.commit.startswith(self.name) else f"{self.name} ({self.commit[:9]})"

    @contextlib.contextmanager
    def place(self, folder: Path, modules: Iterable[str]) -> Generator[Place]:
        """Check the commit out into a temporary folder for the block, and yield the place of its process.

        The process runs in the folder that corresponds to ``folder``. The import path has the folders of the checkout
        in place of those of the working tree. It also has the homes of ``modules``, since an editable installation
        may have no folder on the path. Raises :class:`RevisionError` if git cannot check the commit out.
        """
        top = Path(tempfile.mkdtemp(prefix=_PREFIX)).resolve()
        checkout = top / "tree"
        hooks = f"core.hooksPath={os.devnull}"
        try:
            _git(self.repository, "-c", hooks, "worktree", "add", "--detach", "--force", str(checkout), self.commit)
            homes = [str(home) for module in modules if (home := home_of(module)) is not None]
            replaced = {
                os.path.realpath(entry): str(other)
                for entry in (*sys.path, *homes)
                if (other := self._counterpart(entry, checkout)) is not None
            }
            there = checkout / os.path.relpath(folder.resolve(), self.repository)
            existing = next(each for each in (there, *there.parents) if each.is_dir())
            path = [*dict.fromkeys(replaced.values()), str(existing)]
            yield Place(sys.executable, existing, checkout, path, list(replaced))
        finally:
            with contextlib.suppress(RevisionError):
                _git(self.repository, "worktree", "remove", "--force", str(checkout))
            shutil.rmtree(top, ignore_errors=True)

    def require_other_code(self, place: Place, loaded: LoadedCode, own: Sequence[str]) -> None:
        """Raise :class:`RevisionError` unless a process in ``place`` has loaded the pass from the checkout."""
        wrong = [file for file in loaded.files if self._counterpart(str(Path(file).parent), place.top) is not None]
        if wrong := [file for file in wrong if file not in _OWN]:
            raise RevisionError(
                f"{self} would run code of the working tree",
                value=", ".join(wrong[:_MOST_FILES]),
                why="something puts the working tree on the import path, such as a setting of an absolute path",
                remedy=f"install {self.name} into an environment of its own, and name that: {OPTION} path/to/python",
            )
        if not any(Path(file).is_relative_to(place.top) for file in loaded.definitions):
            raise RevisionError(
                f"the pass is not part of {self}, and is the same code here and there",
                value=", ".join(loaded.definitions) or None,
                why=f"it is defined outside of the repository {self.repository}",
                remedy="run pytest in the repository of the pass, or name an environment with another version of it: "
                f"{OPTION} path/to/python",
            )

    def _counterpart(self, folder: str, checkout: Path) -> Path | None:
        """Return the folder of the checkout that corresponds to one of the working tree, if it exists."""
        real = Path(os.path.realpath(folder))
        if not real.is_relative_to(self.repository):
            return None
        other = checkout / real.relative_to(self.repository)
        return other if other.is_dir() else None


@dataclass(frozen=True, slots=True)
class Environment:
    """Another environment, with its own versions of packages."""

    name: str
    """The path of the interpreter or the environment, as the user typed it."""
    interpreter: str
    """The path of the interpreter."""

    def __str__(self) -> str:
        return self.name

    @contextlib.contextmanager
    def place(self, folder: Path, modules: Iterable[str]) -> Generator[Place]:
        """Yield the place of its process: an empty folder, so that its packages come before modules in ``folder``."""
        with tempfile.TemporaryDirectory(prefix=_PREFIX) as empty:
            local = [str(folder), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
            yield Place(
                self.interpreter, Path(empty), Path(empty), replaced=list(map(os.path.realpath, local)), last=local
            )

    def require_other_code(self, place: Place, loaded: LoadedCode, own: Sequence[str]) -> None:
        """Raise :class:`RevisionError` if a process in ``place`` has loaded the pass from one of the files ``own``."""
        if same := sorted(set(loaded.definitions) & set(own)):
            raise RevisionError(
                f"{self} has the pass from the same file as this environment",
                value=", ".join(same[:_MOST_FILES]),
                why="the same code would run twice",
                remedy="install another version of its package there, not as an editable installation of this folder",
            )


Base = GitRevision | Environment


def find_base(name: str, folder: Path) -> Base:
    """Return the git revision ``name`` of the repository of ``folder``, or the environment of that path.

    Raises :class:`RevisionError` if it is neither.
    """
    path = folder / name
    interpreter = next((each for each in (path, *(path / each for each in _INTERPRETERS)) if each.is_file()), None)
    try:
        top = _git(folder, "rev-parse", "--show-toplevel")
        commit = _git(folder, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
        return GitRevision(name, commit, Path(top).resolve())
    except RevisionError as error:
        if interpreter is not None:
            return Environment(name, str(interpreter))
        raise RevisionError(
            f"{OPTION}: {name} is neither a git revision nor the path of a Python interpreter",
            where=str(folder),
            why=str(error),
            remedy="git log --oneline lists revisions; path/to/environment or path/to/python names an environment",
        ) from None


def here(folder: Path) -> Place:
    """Return the place of a process that runs the code of this one."""
    return Place(sys.executable, folder, folder, [entry or str(folder) for entry in sys.path])


def _git(folder: Path, *arguments: str) -> str:
    """Return the output of git in a folder; raises :class:`RevisionError` with the last line of its complaint."""
    own = {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, env=own, capture_output=True, text=True, check=False)
    except OSError as error:
        raise RevisionError(f"git cannot be run: {error}") from None
    if done.returncode:
        raise RevisionError(done.stderr.strip().rpartition("\n")[2] or f"git {arguments[0]} fails")
    return done.stdout.strip()
