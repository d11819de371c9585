"""A forked and watched child process for code that may hang, end its process or take all memory."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import re
import select
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pytest_fx.lazy import load
from pytest_fx.tracebacks import users_place

if TYPE_CHECKING:
    from pytest_fx.errors import ProcessEnded

_BETWEEN_LOOKS = 0.02
"""Seconds between two checks of the child's time, memory and life."""
_LAST_WORDS = 1.0
"""Seconds for a child to end after it was asked to, or after it closed its channel."""
_LENGTH = 8
"""Bytes of a message's length."""
_LONGEST = 2**32
"""The largest size of a message; a longer one was not written by the channel."""
_SHARE = 0.8
"""The share of the available memory that a child may take if there is no limit."""
_DIES_WITH_PARENT = 1
"""The option of ``prctl`` with which the system ends a process when its parent ends."""
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def unavailable() -> str | None:
    """Return why such a child is impossible on this system, or None."""
    if sys.platform != "linux":
        return f"it forks processes, and watches them, as Linux does; this is {sys.platform}"
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        return "how a process ended is not known where the signal SIGCHLD is ignored, as it is here"
    return None


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a child for one piece of work."""

    seconds: float | None = None
    """Wall-clock time; None for no limit."""
    memory: int | None = None
    """MiB beyond those of the parent when it was forked; None for most of the machine's available memory."""


@dataclass(frozen=True, slots=True)
class Ending:
    """An unrequested end of a child."""

    kind: str
    """A short name, the same for all ends of one kind: ``"SIGSEGV"``, ``"exit status 0"``, ``"time"``."""
    cause: str
    """The event, as the rest of a sentence about the child's work: ``"ended its process by SIGSEGV"``."""
    where: str | None
    """The last place in the user's Python code; None if it is unknown."""
    remedy: str
    """A remedy to try."""

    def error(self, who: str, value: str | None = None) -> ProcessEnded:
        """Return the error that reports this end of ``who``, which worked on ``value``."""
        return load("pytest_fx.errors").ProcessEnded(
            f"{who} {self.cause}",
            where=self.where,
            value=value,
            why="it ran in a child process, which is gone; what was measured before is kept, and all else goes on",
            remedy=self.remedy,
        )


def raised(name: str) -> Ending:
    """Return the ending by an exception, such as ``KeyboardInterrupt``, that is not an ``Exception``."""
    remedy = "raise an exception that is a subclass of Exception, or PassError to refuse a program"
    return Ending(f"raises {name}", f"raised {name}", None, remedy)


class ChildEnded(Exception):
    """Raised instead of returning a message, if the child ended before it sent one."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.cause)
        self.ending = ending


class Channel:
    """The child's end of its connection to the parent, which carries messages of bytes."""

    def __init__(self, own: socket.socket) -> None:
        self._socket = own
        self._process = os.getpid()

    def send(self, message: bytes) -> None:
        """Send ``message``. In a copy of the child, which a pass forked, end the process instead."""
        self._require_own()
        try:
            self._socket.sendall(len(message).to_bytes(_LENGTH, "big") + message)
        except OSError:
            while True:
                signal.pause()  # the socket was closed; the parent sees this and ends the child

    def receive(self) -> bytes:
        """Return the next message from the parent, and wait for it; the process ends if there are no more."""
        return self._read(int.from_bytes(self._read(_LENGTH), "big"))

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            self._require_own()
            count = self._socket.recv_into(rest)
            if not count:
                os._exit(0)
            rest = rest[count:]
        return bytes(data)

    def _require_own(self) -> None:
        if os.getpid() != self._process:
            os._exit(1)


class Child:
    """A forked copy of this process that works and answers, in a session of its own.

    It ends when this process does, however that ends. Fork it before PyTorch has computed with several threads: the
    threads of OpenMP are not copied, and a copy that waits for them waits for ever.

    >>> with Child(lambda channel: channel.send(b"answer")) as child:
    ...     child.receive(Limits(seconds=60))
    b'answer'
    >>> with Child(lambda channel: os._exit(3)) as child:
    ...     child.receive(Limits(seconds=60))
    Traceback (most recent call last):
    pytest_fx.processes.child.ChildEnded: ended its process with status 3 (os._exit)
    """

    def __init__(self, work: Callable[[Channel], None]) -> None:
        """``work`` is called in the child, which ends when it returns."""
        sys.stdout.flush()  # otherwise both processes write the contents of the buffers
        sys.stderr.flush()
        self._faults = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self._socket, theirs = socket.socketpair()
        self._received = bytearray()
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of other threads; those of OpenMP are reported above
            self.pid = os.fork()
        if self.pid == 0:
            self._socket.close()
            _work(work, theirs, parent, self._faults.fileno())
        theirs.close()
        self._memory_before = _held(self.pid) or 0
        self._memory_there = _memory_there()
        self._looked = 0.0  # when the child's memory was checked, by time.monotonic()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def send(self, message: bytes) -> None:
        """Send ``message``, which waits if the child is busy. If the child is gone, the next answer reports it."""
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(len(message).to_bytes(_LENGTH, "big") + message)

    def receive(self, limits: Limits, until: float | None = None) -> bytes:
        """Return the next message of the child.

        Args:
            limits: the child's limits.
            until: the end of its time, by ``time.monotonic()``; None for ``limits.seconds`` from now.

        Raises:
            ChildEnded: it ended, or was ended because it exceeded a limit.
        """
        if until is None:
            until = float("inf") if limits.seconds is None else time.monotonic() + limits.seconds
        while (message := self._message()) is None:
            if self._poll.poll(_BETWEEN_LOOKS * 1000):
                self._take()
            elif self._is_gone() and not self._poll.poll(0):  # its last messages are read first
                raise ChildEnded(self._ending())
            if (now := time.monotonic()) > until:
                raise ChildEnded(self._out_of_time(limits))
            if now - self._looked >= _BETWEEN_LOOKS:  # quick answers come in thousands
                self._looked = now
                self._require_memory(limits)
        return message

    def close(self) -> None:
        """End the child, and the processes that it has started in its session."""
        if self._socket.fileno() >= 0:
            self._kill()
            self._socket.close()
            self._faults.close()

    def disconnect(self) -> None:
        """Close the connection, in a fork of the parent that must not reach the child."""
        self._socket.close()

    def _message(self) -> bytes | None:
        if len(self._received) < _LENGTH:
            return None
        end = _LENGTH + int.from_bytes(self._received[:_LENGTH], "big")
        if end > _LONGEST:
            raise ChildEnded(self._cut_off())
        if len(self._received) < end:
            return None
        with memoryview(self._received) as received:
            message = bytes(received[_LENGTH:end])
        del self._received[:end]
        return message

    def _take(self) -> None:
        try:
            data = self._socket.recv(2**20)
        except ConnectionError:
            data = b""
        if not data:
            raise ChildEnded(self._ending() if self._waited() else self._cut_off())
        self._received += data

    def interrupt(self) -> None:
        """Raise ``KeyboardInterrupt`` in the child."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)

    def _is_gone(self) -> bool:
        """Return whether the process has ended; it is not reaped, so its number stays its own."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _waited(self) -> bool:
        """Return whether the process ends within a moment."""
        until = time.monotonic() + _LAST_WORDS
        while not (gone := self._is_gone()) and time.monotonic() < until:
            time.sleep(_BETWEEN_LOOKS)
        return gone

    def _kill(self) -> int:
        """End the process and its session, and return its wait status."""
        for kill in (os.killpg, os.kill):  # the first fails before it has a session of its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)
        return os.waitpid(self.pid, 0)[1]

    def _require_memory(self, limits: Limits) -> None:
        used = _held(self.pid)
        most = self._memory_there * _SHARE if limits.memory is None else limits.memory * 2**20
        if used is not None and used - self._memory_before > most:
            self._abort()
            remedy = "give it more with --fx-memory-limit (memory= of check_pass), or do not keep what it makes"
            cause = f"needed more than {most / 2**20:.0f} MiB"
            raise ChildEnded(Ending("memory", cause, self._where(), remedy))

    def _out_of_time(self, limits: Limits) -> Ending:
        self._abort()
        remedy = "give it longer with --fx-timeout (timeout= of check_pass), or find what it waits for"
        return Ending("time", f"ran longer than {limits.seconds:g} s", self._where(), remedy)

    def _abort(self) -> None:
        """Let the process write its stack, which works in native code, too, and end it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGABRT)
        self._waited()

    def _cut_off(self) -> Ending:
        self._abort()
        remedy = "close no files but those that the pass opened itself"
        return Ending("closed files", "closed the files by which its process answers", self._where(), remedy)

    def _ending(self) -> Ending:
        status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert status is not None, "it has ended"
        if status.si_code == os.CLD_EXITED:
            remedy = "raise an exception where the pass gives up, or PassError where it refuses a program"
            number = status.si_status
            return Ending(f"exit status {number}", f"ended its process with status {number} (os._exit)", None, remedy)
        name = signal.Signals(status.si_status).name
        if name == "SIGKILL":
            remedy = "look whether the system ran out of memory, and set --fx-memory-limit (memory= of check_pass)"
        else:
            remedy = "look at the native code that is called there, and at what it is given"
        return Ending(name, f"ended its process by the signal {name}", self._where(), remedy)

    def _where(self) -> str | None:
        self._faults.seek(0)
        text = self._faults.read().decode(errors="replace")
        current = text.partition("Current thread")[2].partition("\n\n")[0]
        frames = [(file, int(line), name) for file, line, name in _FRAME.findall(current or text)]
        return users_place(frames)


def _work(work: Callable[[Channel], None], own: socket.socket, parent: int, faults: int) -> NoReturn:
    """Do the work of the child."""
    try:
        os.setsid()  # Ctrl-C is for the parent, which ends the child and all its processes
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() == parent:
            _leave_no_core()
            faulthandler.enable(faults)
            work(Channel(own))
            sys.stdout.flush()
            sys.stderr.flush()
    except BaseException:
        with contextlib.suppress(OSError):
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        os._exit(1)
    finally:
        os._exit(0)


def _leave_no_core() -> None:
    if sys.platform != "win32":
        import resource  # noqa: PLC0415 - there is none on Windows

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _held(process: int) -> int | None:
    """Return the bytes of memory that a process has written to, which are its own; None if it is gone.

    Mapped files, such as libraries, do not count: torch maps much more memory than it ever uses.
    """
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return None
    sizes = re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", status, re.MULTILINE)
    return sum(map(int, sizes)) * 2**10


def _memory_there() -> int:
    """Return the bytes of free memory, on the machine and in the control group that limits this process."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"), re.MULTILINE)
    available = int(match[1]) * 2**10 if match else 2**63
    with contextlib.suppress(OSError, ValueError):  # no such group, or it has no limit
        group = Path("/sys/fs/cgroup")
        most, used = ((group / name).read_text(encoding="utf-8") for name in ("memory.max", "memory.current"))
        available = min(available, int(most) - int(used))
    return available
