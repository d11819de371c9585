"""pytest_fx.processes.child: the cause of a child's end is named, and no process is left."""

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import time

import pytest

from pytest_fx.processes.child import Child, ChildEnded, Limits, unavailable

PLENTY = Limits(seconds=60)


def crash():
    ctypes.string_at(0)


def close_files_and_wait():
    os.closerange(3, 100)
    time.sleep(60)


def ending_of(act, limits=PLENTY):
    with Child(lambda channel: act()) as child, pytest.raises(ChildEnded) as raised:
        child.receive(limits)
    return raised.value.ending


@pytest.mark.parametrize(
    "act, limits, kind",
    [
        (lambda: os._exit(0), PLENTY, "exit status 0"),
        (lambda: os._exit(3), PLENTY, "exit status 3"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), PLENTY, "SIGKILL"),
        (lambda: time.sleep(60), Limits(seconds=0.1), "time"),
        (lambda: list(itertools.repeat(1)), Limits(seconds=60, memory=100), "memory"),
        (close_files_and_wait, PLENTY, "closed files"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_end_that_was_not_requested_is_distinguished_from_others(act, limits, kind):
    assert ending_of(act, limits).kind == kind


def test_the_users_line_is_known_for_an_end_in_native_code():
    ending = ending_of(crash)
    assert (ending.kind, ending.cause) == ("SIGSEGV", "ended its process by the signal SIGSEGV")
    assert ending.where.endswith("in crash:  ctypes.string_at(0)")
    assert __file__ in ending.where


def test_messages_sent_before_the_end_arrive_first():
    def act(channel):
        channel.send(b"x" * 10_000_000)
        os._exit(1)

    with Child(act) as child:
        assert len(child.receive(PLENTY)) == 10_000_000
        with pytest.raises(ChildEnded):
            child.receive(PLENTY)


def test_a_copy_that_was_forked_in_the_child_does_not_speak_for_it():
    def act(channel):
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
        channel.send(b"child" if pid else b"copy")

    with Child(act) as child:
        assert child.receive(PLENTY) == b"child"
        with pytest.raises(ChildEnded):
            child.receive(PLENTY)


def test_a_process_that_keeps_the_channel_open_is_not_waited_for():
    def act():
        if os.fork() == 0:
            os.setsid()
            time.sleep(30)
            os._exit(0)
        os._exit(4)

    start = time.monotonic()
    assert ending_of(act).kind == "exit status 4"
    assert time.monotonic() - start < 20


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition):
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_processes_that_the_child_started_end_with_it(tmp_path):
    def act(channel):
        channel.send(str(subprocess.Popen(["sleep", "60"]).pid).encode())
        time.sleep(60)

    with Child(act) as child:
        started = int(child.receive(PLENTY))
        assert is_alive(started)
    wait_until(lambda: not is_alive(started))
    assert not is_alive(child.pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_child_does_not_outlive_its_parent(number):
    code = (  # the shell of a run in the background ignores SIGINT, and so would the process
        "import signal, time\nfrom pytest_fx.processes.child import Child, Limits\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with Child(lambda channel: time.sleep(60)) as child:\n"
        "    print(child.pid, flush=True)\n    child.receive(Limits())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.send_signal(number)
        wait_until(lambda: not is_alive(child))


def test_without_notice_of_ended_processes_there_are_no_children():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert "SIGCHLD" in str(unavailable())
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert unavailable() is None
