"""A capture is a transaction: after each kind of capture eager gives the same results, and no traced value remains."""

from __future__ import annotations

import contextvars
import functools
import gc
import math
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import kept_places
import pytest
import torch
from kept_places import PLACES, Place, Plain, frame_of_a_generator
from torch import nn
from torch._subclasses import FakeTensor

import fx
import fx.analysis.cost
from fx.errors import FxError, LoweringError

pytestmark = pytest.mark.filterwarnings("ignore:nothing was lowered")
X = torch.arange(6.0).reshape(2, 3)


class Keeping(nn.Module):
    """Keeps a value of each call, and does not use it."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.inner = place.owner
        self.put, self.get = place.put, place.get

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.put(x * 2)
        return x + 1


class Remembering(Keeping):
    """Computes a value in its first call, and uses it in all."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.get() is None:
            self.put(torch.arange(x.shape[-1], device=x.device) * 2.0)
        return x + self.get()


class Refused(Keeping):
    """Keeps a value, and then does something that no capture accepts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.put(x * 2)
        return x + 1 if x.sum() > 0 else x - float(x.numpy().sum())


def of_function(model: nn.Module) -> fx.GraphModule:
    """A program that calls a function as a whole."""

    def whole(x: Any) -> Any:
        return model.forward(x)

    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.relu, (graph.call_function(whole, (x,)),)))
    return fx.GraphModule(nn.Module(), graph)


def of_module(model: nn.Module) -> fx.GraphModule:
    """A program that calls a module as a whole."""
    root = nn.Module()
    root.whole = model
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("whole", (x,)))
    return fx.GraphModule(root, graph)


WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "symbolic": fx.symbolic_trace,
    "guided": lambda model: fx.symbolic_trace(model, example_inputs=(X,)),
    "explain": lambda model: fx.explain(model, (X,)),
    "export": lambda model: fx.capture(model, (X,), how="export"),
    "auto": lambda model: fx.capture(model, (X,)),
    "fake shapes": lambda model: fx.passes.ShapeProp(of_function(model), fake=True).propagate(X),
    "fake shapes of a leaf": lambda model: fx.passes.ShapeProp(of_module(model), fake=True).propagate(X),
    "lowering": lambda model: fx.lower(of_function(model), "onednn", (X,)),
    "estimated cost": lambda model: fx.analysis.cost.estimate_cost(of_function(model), X),
}


def is_traced(value: Any) -> bool:
    return isinstance(value, (fx.Proxy, FakeTensor, torch.SymInt))


def expect_as_before(place: Place, way: str, kind: Any, is_warm: bool) -> None:
    """Capture a model, which may be refused; check that eager is unchanged and that no traced value is left."""
    model = kind(place)
    if is_warm:
        model(X)
    before = model.get()
    with suppress(FxError, RuntimeError):
        WAYS[way](model)
    value = model.get()
    assert not is_traced(value)
    if isinstance(before, torch.Tensor) and not place.is_cache:
        assert isinstance(value, torch.Tensor) and torch.equal(value, before)
    elif not place.is_cache:
        assert value is None
    values: list[Any] = []
    expected = kind(Place(values.append, lambda: values[-1] if values else None))(X)
    assert torch.equal(model(X), expected)
    assert not is_traced(model.get())


TABLE = [(place, way) for place in PLACES for way in WAYS]
QUICK = [
    pytest.param(place, way, marks=() if (number + number // len(WAYS)) % 3 == 0 else (pytest.mark.thorough,))
    for number, (place, way) in enumerate(TABLE)
]
"""The table of places; by default three ways are tried for each, and a third of the places for each way."""


@pytest.mark.parametrize("place, way", QUICK)
def test_a_place_is_as_it_was_after_a_capture_that_is_refused(place: str, way: str) -> None:
    expect_as_before(PLACES[place](), way, Refused, is_warm=True)


@pytest.mark.thorough
@pytest.mark.parametrize("place, way", TABLE)
def test_a_place_is_empty_after_a_capture_that_has_filled_it(place: str, way: str) -> None:
    expect_as_before(PLACES[place](), way, Remembering, is_warm=False)


@pytest.mark.thorough
@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("place, way", TABLE)
def test_a_place_is_as_it_was_after_a_capture_that_has_written_to_it(place: str, way: str, is_warm: bool) -> None:
    expect_as_before(PLACES[place](), way, Keeping, is_warm)


@functools.lru_cache
def arranged(size: Any, dtype: Any, device: Any, rank: Any) -> tuple[Any, ...]:
    return size, dtype, device, rank, size * 2


class Cached(nn.Module):
    """Looks up a cache by traced values of a tensor, as einops does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1) * arranged(x.shape[1], x.dtype, x.device, x.ndim)[-1]


@pytest.mark.parametrize("way", ["guided", "auto", "explain", "symbolic", "export"])
@pytest.mark.parametrize("size", [None, 3, 5])
def test_a_cache_queried_with_traced_values_serves_eager_code_afterwards(way: str, size: int | None) -> None:
    arranged.cache_clear()
    model = Cached()
    if size is not None:
        model(torch.ones(1, size))
    with suppress(fx.TraceError):
        WAYS[way](model)
    assert torch.equal(model(X), X.reshape(-1) * 6)
    assert arranged(3, torch.float32, X.device, 2) == (3, torch.float32, X.device, 2, 6)
    assert not any(map(is_traced, arranged(3, torch.float32, X.device, 2)))


def test_entries_of_a_cache_without_a_bound_that_are_older_than_the_capture_stay() -> None:
    cached = functools.cache(lambda size: object())

    def program(x: Any) -> Any:
        cached(x.shape[1])
        return x + 1

    before = cached(7)
    fx.symbolic_trace(program, example_inputs=(X,))
    assert cached(7) is before
    assert cached.cache_info().currsize == 1


def test_a_generator_that_is_given_a_traced_value_is_refused_by_its_line() -> None:
    place = frame_of_a_generator()
    with pytest.raises(fx.TraceError) as info:
        fx.symbolic_trace(Keeping(place))
    assert str(info.value).replace("frame_of_a_generator.keeping:", "keeping:").splitlines() == [
        "cannot take a traced value out of a generator",
        f"  where  {kept_places.__file__}:{place.line}, in keeping:  sent = yield value",
        "  value  frame_of_a_generator.<locals>.keeping",
        "  why    a generator that is older than the trace holds it from then on, and it cannot be removed",
        "  try    make the generator in the call, or put the line in a function marked fx.wrap",
    ]


def test_a_lowering_that_runs_the_program_for_its_inputs_restores_kept_values() -> None:
    values: list[Any] = []

    def whole(x: Any) -> Any:
        values.append(x)
        return x.numpy().any() and torch.ones(2) @ x  # fails without elements, and with five

    graph = fx.Graph()
    graph.output(graph.call_function(whole, (graph.placeholder("x"),)))
    with pytest.raises((LoweringError, RuntimeError)):
        fx.lower(fx.GraphModule(nn.Module(), graph), "onednn", (torch.ones(5),))
    assert not values


@pytest.mark.parametrize("way", ["export", "fake shapes", "estimated cost"])
def test_a_generator_that_is_given_a_value_without_elements_is_refused(way: str) -> None:
    with pytest.raises(FxError, match="cannot take a traced value out of a generator"):
        WAYS[way](Keeping(frame_of_a_generator()))


def test_a_context_variable_that_the_program_counts_in_is_named_as_a_dependence() -> None:
    count = contextvars.ContextVar("count", default=1)

    def program(x: Any) -> Any:
        count.set(count.get() + 1)
        return x * count.get()

    with pytest.raises(fx.TraceError, match="depends on what an earlier call of it left in 'count'"):
        fx.symbolic_trace(program)
    assert count.get() == 1


def test_no_traced_value_is_left_by_a_capture_that_nothing_is_wrong_with() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.drop = nn.Linear(3, 3), nn.Dropout()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape[0] > 0
            with torch.no_grad():
                y = x.relu()
            return torch.nn.functional.dropout(self.linear(x), 0.5, self.training) + y * torch.ones(3)

    def proxies() -> list[Any]:
        return [object_ for object_ in gc.get_objects() if issubclass(type(object_), fx.Proxy)]

    gc.collect()
    before = [id(proxy) for proxy in proxies()]  # of other tests
    program = fx.symbolic_trace(Many())
    gc.collect()
    remaining = [proxy for proxy in proxies() if id(proxy) not in before]
    assert not remaining, [
        (leftover, str(holder)[:200]) for leftover in remaining for holder in gc.get_referrers(leftover)
    ]
    assert program(X).shape == X.shape


def test_the_objects_of_the_process_are_searched_only_for_a_capture_that_is_refused() -> None:
    keeper = Plain()

    def inner(*args: Any) -> Any:
        keeper.keep((args, functools.partial(len, args[0])))
        return args[0] if args[0].sum() > 0 else -args[0]

    searches: list[int] = []

    def note(frame: Any, event: str, called: Any) -> None:
        if event == "c_call" and called is gc.get_referrers:
            searches.append(1)

    for program, is_refused in ((lambda x: inner(x.relu()), True), (lambda x: x.relu(), False)):
        sys.setprofile(note)
        with suppress(fx.TraceError):
            fx.symbolic_trace(program)
        sys.setprofile(None)
        assert bool(searches) is is_refused
        searches.clear()
    assert keeper.read() is None


def test_a_capture_that_is_refused_holds_no_tuple_that_another_thread_is_making() -> None:
    is_over = threading.Event()
    errors: list[BaseException] = []

    def make() -> None:
        try:
            while not is_over.is_set():
                tuple(number * 2 for number in range(3))
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=make)
    thread.start()
    try:
        for _ in range(20):
            with pytest.raises(fx.TraceError):
                fx.symbolic_trace(lambda x: x if x.sum() > 0 else -x)
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert not errors


def test_captures_that_are_refused_in_one_thread_leave_those_of_another_alone() -> None:
    by_flag: dict[bool, Any] = {}

    class Deciding(nn.Module):
        def __init__(self, decides: bool) -> None:
            super().__init__()
            self.linear, self.decides = nn.Linear(3, 3), decides

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            by_flag[self.decides] = self.last = x
            return x if self.decides and x.sum() > 0 else self.linear(x)

    errors: list[BaseException] = []

    def capture(decides: bool) -> None:
        model = Deciding(decides)
        try:
            for _ in range(10):
                with pytest.raises(fx.TraceError) if decides else nullcontext():
                    assert fx.symbolic_trace(model)(X).equal(model(X))
                assert not is_traced(model(X))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=capture, args=(decides,)) for decides in (True, False, True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert not any(map(is_traced, by_flag.values()))


IMPORTED_IN_FORWARD = """
from functools import partial
from math import log2

TABLE, LIST, NESTED = {"log2": [log2]}, [log2], ({"a": (log2,)},)
SET, KEYS, PARTIAL = {log2}, {log2: 1}, partial(log2, 8)

class Keeps:
    function = log2
    static = staticmethod(log2)

    def __init__(self, function):
        self.held = function

HELD = Keeps(log2)
OWN = partial(log2, 8)
OWN.__setstate__ = None

class Asked:
    def __getattribute__(self, name):
        raise RuntimeError(f"asked for {name}")

ASKED = Asked()

def decorated(function):
    return lambda x: function(x)

CLOSURE = decorated(log2)

def calls(x, function=log2, *, other=log2):
    return x * function(8)
"""


@pytest.mark.parametrize("options", [{}, {"example_inputs": (X,)}], ids=["symbolic", "guided"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_module_imported_by_a_capture_has_the_functions_of_python(
    options: dict[str, Any], fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_in_forward.py").write_text(IMPORTED_IN_FORWARD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "imported_in_forward", raising=False)

    def program(x: torch.Tensor) -> torch.Tensor:
        from imported_in_forward import calls

        if fails:
            raise KeyError("an error of its own")
        return calls(x)

    with pytest.raises(KeyError) if fails else nullcontext():
        assert fx.symbolic_trace(program, **options)(X).equal(X * 3)
    module: Any = sys.modules["imported_in_forward"]
    values = [module.log2, *module.TABLE["log2"], *module.LIST, *module.NESTED[0]["a"], *module.SET, *module.KEYS]
    values += [module.PARTIAL.func, module.OWN.func, module.Keeps.function, module.Keeps.static, module.HELD.held]
    values += [*module.calls.__defaults__, *module.calls.__kwdefaults__.values()]
    values += [cell.cell_contents for cell in module.CLOSURE.__closure__]
    assert {*map(id, values)} == {id(math.log2)}
