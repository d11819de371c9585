"""Programs that fetch from servers which die, hang, are slow or answer something else, before and after the pass."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
import traceback
from pathlib import Path

import pytest
import torch
from torch.distributed import rpc

import fx
from fx.passes import OverlapCommunication
from pytest_fx.processes.child import Child, Limits
from pytest_fx.tables import parameter_server
from pytest_fx.tables.parameter_server import parameter_servers

pytestmark = pytest.mark.skipif(parameter_server.unavailable() is not None, reason=str(parameter_server.unavailable()))

SECONDS = 0.5
"""The time that programs wait for an answer."""
FINE, OTHER = "fine", "other"
IDS = torch.tensor([[1, 2], [3, 4]])


def as_client(work):
    """Run ``work`` in a new process, the client of servers that it starts itself, and return its result."""

    def report(channel):
        torch.set_num_threads(1)
        try:
            answer = {"found": work()}
        except BaseException:
            answer = {"failed": traceback.format_exc()}
        channel.send(json.dumps(answer).encode())

    with Child(report) as child:
        answer = json.loads(child.receive(Limits(seconds=60)))
    assert "failed" not in answer, answer["failed"]
    return answer["found"]


def doubled(ids):
    return ids.sum(1, keepdim=True) * torch.tensor([2.0, 3.0])


class Network(torch.nn.Module):
    def forward(self, dense, ids):
        dense = torch.relu(dense)
        dense = dense + parameter_server.fetch(FINE, "rows", ids, 2, 10.0)
        return dense + parameter_server.fetch(OTHER, "rows", ids, 2, SECONDS)


def query(number=0):
    return torch.full((2, 2), float(number)), IDS + number


def answer(number=0):
    dense, ids = query(number)
    return (dense + 2 * doubled(ids)).tolist()


def attempt(program, number=0):
    """Return the result of a call, or its error with its notes, and the seconds that it took."""
    started = time.monotonic()
    try:
        answer = program(*query(number)).tolist()
    except Exception as error:
        answer = "\n".join([type(error).__name__, str(error), *error.__notes__])
    return answer, time.monotonic() - started


def overlapped():
    program = OverlapCommunication()(fx.symbolic_trace(Network()))
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets.index(parameter_server.wait_for_vectors) > targets.index(torch.relu)
    return program


def try_against(table, meanwhile=lambda server: None, after=lambda server: None, numbers=(0, 1, 2)):
    """Query servers in a row, one of which holds ``table``, with a disturbance of it around the second query."""

    def work():
        with parameter_servers({FINE: {"rows": doubled}, OTHER: {"rows": table}}) as servers:
            program, results = overlapped(), []
            for number in numbers:
                if number == 1:
                    meanwhile(servers[OTHER].pid)
                results.append(attempt(program, number))
                if number == 1:
                    after(servers[OTHER].pid)
            return results

    return as_client(work)


def assert_says(message, *parts):
    """The error names the table, and the user's line; it says the rest as well."""
    line = 'forward:  return dense + parameter_server.fetch(OTHER, "rows", ids, 2, SECONDS)'
    for part in ("FetchError", "table 'rows' of server 'other' returned no vectors", "wait_for_vectors", line, *parts):
        assert part in message, message


def test_programs_fetch_the_same_before_and_after_the_pass():
    def work():
        with parameter_servers({FINE: {"rows": doubled}, OTHER: {"rows": doubled}}):
            programs = Network(), fx.symbolic_trace(Network()), overlapped()
            return [program(*query()).tolist() for program in programs]

    assert as_client(work) == [answer()] * 3


class Plain(torch.nn.Module):
    """Calls the server by torch's own functions, as in a program written without the pass in mind."""

    def forward(self, dense, ids):
        dense = torch.relu(torch.relu(dense))
        return dense + rpc.rpc_sync(FINE, parameter_server.look_up, args=("rows", ids), timeout=10.0)


def test_a_program_that_calls_rpc_sync_is_captured_and_fetches_the_same():
    def work():
        with parameter_servers({FINE: {"rows": doubled}}):
            captured = fx.symbolic_trace(Plain())
            after = OverlapCommunication(memory=100.0)(fx.symbolic_trace(Plain()))
            assert [node.name for node in after.graph.nodes][2:5] == ["relu", "rpc_async", "relu_1"]
            return [program(*query()).tolist() for program in (Plain(), captured, after)]

    dense, ids = query()
    assert as_client(work) == [(dense + doubled(ids)).tolist()] * 3


def test_a_server_that_dies_mid_call_is_an_error_at_the_wait_with_the_users_line():
    def dies(ids):
        if ids[0, 0] == 2:  # in the second query
            os._exit(3)
        return doubled(ids)

    (first, _), (second, seconds), (third, _) = try_against(dies)
    assert first == answer(0)
    assert_says(second, "why    RuntimeError: ")
    assert seconds < 10
    assert_says(third, "why    RuntimeError: ")


def test_a_server_that_hangs_is_an_error_in_bounded_time_and_serves_later_queries():
    def stop(server):
        os.kill(server, signal.SIGSTOP)
        limit = time.monotonic() + 30
        while "T (stopped)" not in Path(f"/proc/{server}/status").read_text():  # it may go on for a moment
            assert time.monotonic() < limit
            time.sleep(0.001)

    def go_on(server):
        os.kill(server, signal.SIGCONT)

    (first, _), (second, seconds), (third, _) = try_against(doubled, stop, go_on)
    assert (first, third) == (answer(0), answer(2))
    assert_says(second, "timeout", "answers within 0.5 s")
    assert SECONDS * 0.9 < seconds < 10


def test_a_slow_server_is_waited_for():
    def slow(ids):
        time.sleep(0.2)
        return doubled(ids)

    assert [message for message, _ in try_against(slow, numbers=(0, 2))] == [answer(0), answer(2)]


def raises(ids):
    raise KeyError("row 7")


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda ids: doubled(ids)[:1], "((1, 2), torch.float32)"),
        (lambda ids: doubled(ids).double(), "((2, 2), torch.float64)"),
        (lambda ids: None, "NoneType"),
        (raises, "KeyError: "),
    ],
    ids=["few vectors", "another type", "no tensor", "an error"],
)
def test_a_bad_answer_is_an_error_at_the_wait_and_other_queries_keep_theirs(wrong, message):
    (first, _), (second, _), (third, _) = try_against(lambda ids: (wrong if ids[0, 0] == 2 else doubled)(ids))
    assert (first, third) == (answer(0), answer(2))
    assert_says(second, message)


def test_an_unknown_server_is_an_error_at_the_wait():
    def work():
        with parameter_servers({FINE: {"rows": doubled}}):
            return attempt(overlapped())

    message, _ = as_client(work)
    assert_says(message, "why    RuntimeError: ")


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(8))
def test_whenever_a_server_is_killed_each_query_has_its_result_or_an_error_in_bounded_time(seed):
    delay = random.Random(seed).uniform(0.0, 0.1)

    def work():
        with parameter_servers({FINE: {"rows": doubled}, OTHER: {"rows": doubled}}) as servers:
            program = overlapped()
            killer = threading.Timer(delay, os.kill, (servers[OTHER].pid, signal.SIGKILL))
            killer.start()
            results = []
            while not results or isinstance(results[-1][0], list):
                results.append(attempt(program, len(results)))
            killer.join()
            return [*results, attempt(program, len(results))]

    *fine, (failed, seconds), (later, _) = as_client(work)
    assert [message for message, _ in fine] == [answer(number) for number in range(len(fine))]
    assert seconds < 10
    for message in (failed, later):
        assert_says(message, "why    RuntimeError: ")
