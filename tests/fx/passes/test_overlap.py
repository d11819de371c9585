"""Operations that wait run beside operations that do not need their results."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import warnings
from concurrent.futures import Future, InvalidStateError

import pytest
import torch
from building import operations

import fx
from fx.errors import GraphError, PassError
from fx.operators.asynchronous import MOST_THREADS, register_async, start_on_thread, wait_for
from fx.passes import OverlapCommunication, get_pass
from fx.pipelines.rewriting import make_edits


@fx.wrap
def fetch(server, x):
    """Fail for a missing key; record the thread and the modes of the call."""
    if server == "gone":
        raise ConnectionError("the server is gone")
    records.append((threading.current_thread().name, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
    return x + 1


@fx.wrap
def push(x):
    records.append(("push", x.sum().item()))
    return x


records = []
register_async(fetch, channel=lambda args, kwargs: args[0], independent=True)
register_async(push)


@pytest.fixture(autouse=True)
def nothing_seen():
    records.clear()


def overlapped(function, **options):
    return OverlapCommunication(**options)(fx.symbolic_trace(function))


def test_a_fetch_right_before_its_use_starts_before_the_work_that_does_not_need_it():
    def model(x):
        y = torch.sin(x)
        y = torch.cos(y)
        return y + fetch("server", x)

    program = overlapped(model)
    assert operations(program) == ["start_on_thread", "sin", "cos", "wait_for", "add"]
    x = torch.ones(2)
    assert torch.equal(program(x), model(x))
    assert records[0][0].startswith("fx-overlap") and records[1][0] == "MainThread"


def test_a_fetch_is_waited_for_just_before_its_first_use():
    def model(x):
        fetched = fetch("server", x)
        y = torch.sin(x)
        return torch.cos(y) + fetched

    assert operations(overlapped(model)) == ["start_on_thread", "sin", "cos", "wait_for", "add"]


def test_producers_of_the_arguments_of_a_fetch_move_up_with_its_start():
    def model(x, ids):
        y = torch.sin(x)
        y = torch.cos(y)
        for column in range(2):
            y = y + fetch("server", ids[:, column].float())
        return y

    program = overlapped(model, memory=100.0)
    assert operations(program) == [
        "getitem", "float_1", "start_on_thread", "getitem_1", "float_2", "start_on_thread_1",
        "sin", "cos", "wait_for", "add", "wait_for_1", "add_1",
    ]  # fmt: skip
    x, ids = torch.ones(3), torch.arange(6).reshape(3, 2)
    assert torch.equal(program(x, ids), model(x, ids))
    assert not make_edits(OverlapCommunication(memory=100.0), program)


def test_arguments_stay_after_writes_to_them_random_draws_and_mode_changes():
    def model(x, ids):
        y = torch.sin(x)
        ids.add_(1)
        return torch.cos(y) + fetch("server", ids[0] + 1.0) + fetch("server", torch.rand_like(x) * 2)

    program = overlapped(model, memory=100.0)
    order = [name for name in operations(program) if name in ("add_", "getitem", "start_on_thread", "cos")]
    assert order == ["add_", "getitem", "start_on_thread", "cos"]
    assert operations(program).index("rand_like") > operations(program).index("add_")


def test_arguments_move_no_further_than_the_start_that_needs_them():
    def model(x):
        y = torch.sin(x)
        first = fetch("a", torch.tan(y))
        z = torch.exp(y)
        second = fetch("a", torch.cos(x))  # starts after the first call to the same server
        return z + first + second

    assert operations(overlapped(model, memory=100.0))[:6] == [
        "sin", "tan", "start_on_thread", "cos", "start_on_thread_1", "exp",
    ]  # fmt: skip


def test_a_start_does_not_wait_for_the_arguments_of_a_later_one():
    def model(x):
        first = fetch("a", torch.sin(x))
        second = fetch("b", torch.cos(x))
        return torch.tan(x) + first + second

    assert operations(overlapped(model, memory=100.0))[:4] == ["sin", "start_on_thread", "cos", "start_on_thread_1"]


def test_a_fetch_does_not_overlap_a_write_to_its_argument():
    def model(x):
        y = torch.sin(x)
        y.mul_(2)
        fetched = fetch("server", y)
        z = torch.cos(x)
        y.mul_(3)
        return torch.sin(z) + fetched

    program = overlapped(model)
    assert operations(program) == ["sin", "mul_", "start_on_thread", "cos", "wait_for", "mul__1", "sin_1", "add"]
    assert torch.equal(program(torch.ones(2)), model(torch.ones(2)))


def test_calls_that_are_not_declared_independent_keep_their_order_among_effects_but_pass_arithmetic():
    def model(x, y):
        z = torch.cos(y)
        first = push(x)
        z = torch.sin(z)
        second = push(first)
        return torch.cos(z) + second

    program = overlapped(model)
    assert operations(program) == [
        "cos",  # the caller may have given parts of one tensor
        "push",
        "start_on_thread",
        "sin",
        "cos_1",
        "wait_for",
        "add",
    ]
    assert torch.equal(program(torch.ones(2), torch.zeros(2)), model(torch.ones(2), torch.zeros(2)))
    assert records[:2] == records[2:]


def test_calls_through_one_channel_start_in_order_and_those_through_others_may_pass():
    def model(x):
        late = torch.sin(x)
        first = fetch("a", late)
        second = fetch("a", x)
        third = fetch("b", x)
        return torch.cos(late) + first + second + third

    program = overlapped(model)
    started = [node.args[1] for node in program.graph.find_nodes(op="call_function") if "start" in node.name]
    assert started == ["b", "a", "a"]
    assert operations(program).index("start_on_thread_2") < operations(program).index("sin")


def test_a_server_that_only_the_program_knows_represents_every_server():
    def model(x, server):
        late = torch.sin(x)
        first = fetch(server, late)
        return fetch("b", x) + first + late

    assert operations(overlapped(model))[0] == "sin"


def test_no_more_than_so_many_run_at_a_time():
    def model(x):
        y = torch.sin(x)
        for server in "abcdef":
            y = torch.cos(y + fetch(server, x))
        return y

    for most in (1, 2, 4):
        running = 0
        for name in operations(overlapped(model, in_flight=most, memory=100.0)):
            running += name.startswith("start") - name.startswith("wait")
            assert running <= most
        assert running == 0


@pytest.mark.parametrize("work", [0, 1], ids=["alone", "beside work"])
def test_the_next_starts_as_soon_as_the_first_is_there_where_no_more_may_run_at_a_time(work):
    def model(x):
        y = torch.sin(x) if work else x
        return torch.stack([*(fetch(server, x) for server in "abcde"), y])

    order = operations(overlapped(model, in_flight=2, memory=100.0))
    assert [name.split("_")[0] for name in order if name.startswith(("start", "wait"))] == [
        "start", "start", "wait", "start", "wait", "start", "wait", "start", "wait", "wait"
    ]  # fmt: skip


def test_a_start_passes_no_wait_for_its_operands_or_for_related_effects():
    def chained(x):
        return fetch("a", fetch("b", x)) + fetch("c", x)

    def ordered(x):
        return push(x) + push(x + 1)

    program = overlapped(chained, memory=100.0)
    assert [node.name.split("_")[0] for node in program.graph.nodes][1:] == [
        "start", "start", "wait", "fetch", "wait", "add", "output"
    ]  # fmt: skip
    first, second = list(program.graph.nodes)[1:3]
    assert (first.args[1], second.args[1]) == ("b", "c")
    assert "start" not in "".join(operations(overlapped(ordered, memory=100.0)))


def test_large_results_wait_where_they_would_not_fit():
    def model(x):
        small = x[:1]
        for _ in range(4):
            small = torch.sin(small)
        return fetch("server", x).sum() + small.sum()

    program = fx.symbolic_trace(model)
    fx.passes.ShapeProp(program).propagate(torch.ones(1000))
    assert operations(OverlapCommunication(memory=1.001)(program))[:5] == [
        "start_on_thread", "getitem", "sin", "sin_1", "sin_2"
    ]  # fmt: skip
    eager = fx.symbolic_trace(lambda x: x.exp().sum() + fetch("server", x).sum())
    fx.passes.ShapeProp(eager).propagate(torch.ones(1000))
    assert "start_on_thread" not in operations(OverlapCommunication(memory=1.0)(eager))


def test_an_error_surfaces_at_the_wait_and_names_the_users_line():
    def model(x):
        y = torch.sin(x)
        return y + fetch("gone", x)

    program = overlapped(model)
    with pytest.raises(ConnectionError, match="the server is gone") as caught:
        program(torch.ones(2))
    assert f"{__file__}:{model.__code__.co_firstlineno + 2}" in "\n".join(caught.value.__notes__)
    wait = next(node for node in program.graph.nodes if node.name == "wait_for")
    assert wait.source.line == model.__code__.co_firstlineno + 2


def test_a_second_answer_of_a_server_does_not_change_the_first():
    """Answers come from futures, which accept one."""
    ignored = []

    def answer(future, values):
        for value in values:
            try:
                future.set_result(value)
            except InvalidStateError as error:
                ignored.append(error)

    def start(x):
        future = Future()
        thread = threading.Thread(target=answer, args=(future, (x + 1, x + 2)))
        thread.start()
        threads.append(thread)
        return future

    def ask(x):
        return wait_for(start(x))

    threads = []
    register_async(ask, start, wait_for, independent=True)
    graph = fx.Graph()
    x = graph.placeholder("x")
    call = graph.call_function(ask, (graph.call_function(torch.sin, (x,)),))
    again = graph.call_function(ask, (graph.call_function(torch.cos, (x,)),))
    graph.output((call, again))
    program = OverlapCommunication(memory=100.0)(fx.GraphModule(torch.nn.Module(), graph))
    x = torch.ones(2)
    assert all(map(torch.equal, program(x), (x.sin() + 1, x.cos() + 1)))
    for thread in threads:
        thread.join()
    assert len(ignored) == 2


def test_a_call_on_a_thread_has_the_modes_of_the_starting_thread():
    program = overlapped(lambda x: torch.sin(x) + fetch("server", x))
    x = torch.ones(2, requires_grad=True)
    assert program(x).requires_grad
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert not program(x).requires_grad
    assert [modes for _, *modes in records] == [[True, False], [False, True]]


def test_programs_that_run_on_all_threads_and_start_further_calls_do_not_wait_for_each_other():
    inner = overlapped(lambda x: torch.sin(x) + fetch("server", x))
    x = torch.ones(2)
    futures = [start_on_thread(inner, x) for _ in range(2 * MOST_THREADS)]
    assert all(torch.equal(future.result(timeout=30), torch.sin(x) + x + 1) for future in futures)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_has_threads_of_its_own():
    assert wait_for(start_on_thread(torch.sum, torch.ones(2))) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of any fork beside threads
        child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that waits for threads that are not there
        os._exit(int(start_on_thread(max, 1, 2).result() != 2))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_gradients_flow_through_calls_on_a_thread():
    program = overlapped(lambda x: torch.sin(x) * fetch("server", x))
    x = torch.ones(2, requires_grad=True)
    program(x).sum().backward()
    expected = torch.cos(x) * (x + 1) + torch.sin(x)
    assert torch.allclose(x.grad, expected)


def test_it_may_stop_after_any_edit():
    def model(x):
        y = torch.sin(x)
        first = fetch("a", x)
        z = torch.cos(y)
        second = fetch("b", first)
        return z + torch.sin(z) + second

    x = torch.ones(2)
    for fuel in range(4):
        program = fx.symbolic_trace(model)
        edits = make_edits(get_pass("overlap"), program, fuel)
        program.graph.lint()
        assert len(edits) <= fuel and torch.equal(program(x), model(x))


def test_explain_lists_the_work_beside_each_call_and_changes_nothing():
    def model(x):
        y = torch.sin(x)
        return y + fetch("server", x)

    program = fx.symbolic_trace(model)
    (entry,) = OverlapCommunication().explain(program)
    assert (entry.node, entry.operations) == ("fetch", ("sin",))
    assert entry.where.line == model.__code__.co_firstlineno + 2
    assert operations(program) == ["sin", "fetch", "add"]


def test_a_call_with_nothing_to_do_beside_it_is_left():
    program = overlapped(lambda x: fetch("server", x))
    assert operations(program) == ["fetch"]


def test_calls_inside_of_a_submodule_keep_those_outside_in_order():
    class Inner(torch.nn.Module):
        def forward(self, x):
            return push(x)

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = fx.symbolic_trace(Inner())

        def forward(self, x):
            y = self.inner(x)
            return push(torch.sin(x)) + y

    class Whole(fx.Tracer):
        def is_leaf_module(self, module, path):
            return path == "inner"

    outer = Outer()
    program = OverlapCommunication()(fx.GraphModule(outer, Whole().trace(outer)))
    program(torch.ones(1))
    assert [value for _, value in records] == [1.0, torch.sin(torch.ones(())).item()]


@pytest.mark.parametrize("overload", [True, False], ids=["overloads", "packets"])
def test_collectives_start_when_their_input_is_there_and_are_waited_for_when_they_are_used(overload):
    operators = torch.ops._c10d_functional
    names_of = "all_reduce", "wait_tensor"
    all_reduce, wait_tensor = (
        getattr(operators, name).default if overload else getattr(operators, name) for name in names_of
    )
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    sin = graph.call_function(torch.sin, (a,))
    first = graph.call_function(all_reduce, (sin, "sum", "0"))
    first = graph.call_function(wait_tensor, (first,))
    cos = graph.call_function(torch.cos, (b,))
    second = graph.call_function(all_reduce, (cos, "sum", "0"))
    second = graph.call_function(wait_tensor, (second,))
    graph.output((graph.call_function(torch.sin, (first,)), graph.call_function(torch.sin, (second,))))
    program = OverlapCommunication()(fx.GraphModule(torch.nn.Module(), graph))
    assert [name.replace("_default", "") for name in operations(program)] == [
        "sin", "all_reduce", "cos", "all_reduce_1", "wait_tensor", "sin_1", "wait_tensor_1", "sin_2",
    ]  # fmt: skip
    assert not make_edits(OverlapCommunication(), program)


def test_unmoved_calls_keep_their_order_among_starts_and_waits():
    """A rank that waits for one reduction before it starts the next, against the program's order, could hang."""
    all_reduce, wait_tensor = (
        getattr(torch.ops._c10d_functional, name).default for name in ("all_reduce", "wait_tensor")
    )
    graph = fx.Graph()
    x = graph.placeholder("x")
    first, second = (graph.call_function(all_reduce, (x, "sum", "0")) for _ in range(2))
    first, second = (graph.call_function(wait_tensor, (call,)) for call in (first, second))
    used = graph.call_function(torch.sin, (first,))
    graph.output((used, graph.call_function(torch.sin, (second,))))
    program = OverlapCommunication()(fx.GraphModule(torch.nn.Module(), graph))
    assert [name.replace("_default", "") for name in operations(program)] == [
        "all_reduce", "all_reduce_1", "wait_tensor", "sin", "wait_tensor_1", "sin_1",
    ]  # fmt: skip


def test_an_overlapped_program_can_be_pickled():
    program = overlapped(lambda x: torch.sin(x) + fetch("server", x))
    again = pickle.loads(pickle.dumps(program))
    assert torch.equal(again(torch.ones(2)), program(torch.ones(2)))


@pytest.mark.parametrize("options", ["overlap{in_flight=0}", "overlap{memory=0.5}"])
def test_limits_that_leave_no_room_are_refused(options):
    with pytest.raises(PassError, match="overlap needs an in_flight and a memory of at least 1"):
        get_pass(options)


def test_registering_takes_functions_and_both_halves_or_none():
    with pytest.raises(GraphError, match="'blocking' of register_async is a function, not a str"):
        register_async("fetch")
    with pytest.raises(GraphError, match="both start and wait"):
        register_async(fetch, start=fetch)


def test_a_channel_that_fails_names_the_call():
    def careless(x, *, server="here"):
        return x

    register_async(careless, channel=lambda args, kwargs: kwargs["server"])
    graph = fx.Graph()
    graph.output(graph.call_function(careless, (graph.placeholder("x"),)))
    with pytest.raises(KeyError) as caught:
        OverlapCommunication()(fx.GraphModule(torch.nn.Module(), graph))
    assert "the channel of `%careless`" in caught.value.__notes__[0]
