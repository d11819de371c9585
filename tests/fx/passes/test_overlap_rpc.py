"""Calls of ``torch.distributed.rpc`` are captured with the functions that they name, and run beside other work."""

from __future__ import annotations

import pickle

import pytest
import torch
from building import operations
from torch.distributed import rpc
from torch.distributed.rpc import rpc_sync

import fx
from fx.errors import SaveError, TraceError
from fx.passes import OverlapCommunication

if not rpc.is_available():
    pytest.skip("this build of torch has no torch.distributed.rpc", allow_module_level=True)


def look_up(ids, width):
    return ids.float() * width


def model(x, ids):
    y = torch.sin(x)
    y = torch.cos(y)
    return y + rpc_sync("server", look_up, args=(ids, 2), timeout=3.0)


class Answers:
    """A stand-in for the agent: computes when it is waited for, and logs the requests."""

    def __init__(self):
        self.asked = []

    def invoke(self, to, func, kind, args=None, kwargs=None, rpc_timeout=None):
        self.asked.append((to, func.__name__, rpc_timeout))
        return Answer(lambda: func(*(args or ()), **(kwargs or {})))


class Answer:
    def __init__(self, compute):
        self.wait = compute


@pytest.fixture
def answers(monkeypatch):
    answers = Answers()
    monkeypatch.setattr(rpc.api, "_is_current_rpc_agent_set", lambda: True)
    monkeypatch.setattr(rpc.api, "_invoke_rpc", answers.invoke)
    return answers


def test_rpc_sync_is_captured_under_any_name_with_the_function_that_it_calls(answers):
    program = fx.symbolic_trace(model)
    assert not answers.asked
    (call,) = (node for node in program.graph.nodes if node.target is rpc_sync)
    assert call.args == ("server", look_up) and call.kwargs["timeout"] == 3.0
    x, ids = torch.ones(2), torch.arange(2)
    assert torch.equal(program(x, ids), model(x, ids))
    assert answers.asked == [("server", "look_up", 3.0)] * 2
    assert fx.symbolic_trace(program).code == program.code
    assert fx.Transformer(program).transform().code == program.code
    assert pickle.loads(pickle.dumps(program)).code == program.code


def test_it_is_started_and_waited_for(answers):
    program = OverlapCommunication(memory=100.0)(fx.symbolic_trace(model))
    assert operations(program)[-2:] == ["wait_for", "add"]
    assert operations(program).index("rpc_async") < operations(program).index("cos")
    x, ids = torch.ones(2), torch.arange(2)
    assert torch.equal(program(x, ids), model(x, ids))


def test_a_future_and_a_remote_reference_are_starts_and_their_methods_waits():
    def futures(x):
        y = torch.sin(x)
        first = rpc.rpc_async("a", look_up, args=(1, 2)).wait()
        y = torch.cos(y)
        other = rpc.remote("b", look_up, args=(1, 2)).to_here()
        return torch.tan(y) + first + other

    program = OverlapCommunication(memory=100.0)(fx.symbolic_trace(futures))
    assert operations(program) == ["rpc_async", "sin", "wait", "remote", "cos", "tan", "to_here", "add", "add_1"]


def test_calls_without_traced_values_are_captured_too_and_not_made():
    program = fx.symbolic_trace(lambda x: x + rpc.rpc_sync("server", torch.add, args=(1, 2)))
    assert operations(program) == ["rpc_sync", "add"]


def test_a_local_function_is_no_argument_that_a_program_can_have():
    def local(x):
        return x

    with pytest.raises(TraceError, match="argument of type: <class 'function'> cannot be held by a node"):
        fx.symbolic_trace(lambda x: rpc.rpc_sync("server", local, args=(x,)))


def test_a_program_with_such_calls_is_not_saved_to_a_data_only_file(tmp_path):
    with pytest.raises(SaveError, match="rpc_sync' is nothing that a saved program may use"):
        fx.save(fx.symbolic_trace(model), tmp_path / "program")
