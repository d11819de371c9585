"""Containers that a program makes of its values: each is known to capture, code, matching, pickling, copies, files."""

from __future__ import annotations

import copy
import pickle
import tempfile
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import fx
from fx import container_kinds
from fx.container_kinds import ContainerKind, container_kind, key_of, leaves_of, register_container
from fx.serialization import allow
from fx.serialization.allow_list import Refused
from fx.serialization.values import ValueReader


class Pair(NamedTuple):
    first: Tensor
    second: Any


@dataclass
class Record:
    first: Tensor
    second: Any = 2.0


class Output(OrderedDict[str, Any]):
    """An output class as in a library of models."""


class Items(list[Any]):
    pass


class View(Mapping[str, Any]):
    def __init__(self, held: dict[str, Any]) -> None:
        self.held = held

    def __getitem__(self, key: str) -> Any:
        return self.held[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)

    def __repr__(self) -> str:
        return f"View({self.held})"


class Ring:
    """A container of a user's, which programs make by its class."""

    def __init__(self, items: list[Any], is_closed: bool) -> None:
        self.items, self.is_closed = items, is_closed

    def __repr__(self) -> str:
        return f"Ring({self.items}, {self.is_closed})"


@dataclass(frozen=True)
class Span:
    """An immutable container, which arguments of nodes may hold."""

    first: Any
    last: Any


register_container(
    ContainerKind(
        (Ring,),
        parts=lambda ring: ring.items,
        rebuild=lambda ring, parts: Ring(parts, ring.is_closed),
        call=lambda ring: ((ring.items,), {"is_closed": ring.is_closed}),
    )
)
register_container(
    ContainerKind(
        (Span,),
        parts=lambda span: (span.first, span.last),
        names=lambda span: ("first", "last"),
        rebuild=lambda span, parts: Span(*parts),
        frozen=Span,
        tag="span",
    )
)

CONTAINERS: dict[str, Callable[[Tensor], Any]] = {
    "tuple": lambda x: (x, 2.0),
    "tuple of one": lambda x: (x,),
    "list": lambda x: [x, [x, 2.0]],
    "dict": lambda x: {"first": x, "second": 2.0},
    "slice": lambda x: slice(x, None, 2),
    "NamedTuple": lambda x: Pair(x, (x, 2.0)),
    "OrderedDict": lambda x: OrderedDict(first=x, second=2.0),
    "subclass of OrderedDict": lambda x: Output(first=x),
    "subclass of list": lambda x: Items([x, 2.0]),
    "Mapping": lambda x: View({"first": x}),
    "defaultdict": lambda x: defaultdict(None, first=x),
    "defaultdict of lists": lambda x: defaultdict(list, first=[x]),
    "deque": lambda x: deque([x, 2.0], maxlen=3),
    "dataclass": lambda x: Record(x),
    "registered": lambda x: Ring([x, 2.0], True),
    "registered as held": lambda x: Span(x, (x, 2.0)),
    "nested": lambda x: {"first": (Pair(x, [x]), Record(x)), "second": Span(Ring([x], False), deque([x]))},
}
"""Programs that make each kind of the table."""
CONSTANTS = {"size": torch.Size((2, 3)), "values": torch.tensor([1.0, 2.0]).max(0)}
"""Containers of the table that hold no traced values."""


def seen(held: Any) -> Any:
    """Return a key that tells containers apart, except for classes of inner containers that print alike."""
    return type(held), repr(held)


@fx.wrap
def first_tensor(held: Any) -> Tensor:
    """Return the first tensor in a container: an operation whose argument the container is."""
    kind = container_kind(held)
    parts = () if kind is None else kind.parts(held)
    return (
        held if isinstance(held, Tensor) else next(tensor for tensor in map(first_tensor, parts) if tensor is not None)
    )


X = torch.tensor([1.0, 4.0, 9.0])


def saved_and_loaded(program: fx.GraphModule) -> fx.GraphModule:
    with tempfile.TemporaryDirectory() as folder:
        fx.save(program, f"{folder}/program")
        return fx.load(f"{folder}/program")


for _class in (Pair, Record, Output, Items, View, Ring):
    allow(_class)

WAYS: dict[str, Callable[[fx.GraphModule], Callable[..., Any]]] = {
    "code": lambda program: program,
    "interpreted": lambda program: fx.Interpreter(program).run,
    "captured again": fx.symbolic_trace,
    "transformed": lambda program: fx.Transformer(program).transform(),
    "pickled": lambda program: pickle.loads(pickle.dumps(program)),
    "copied": copy.deepcopy,
    "saved": saved_and_loaded,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_that_a_program_returns_is_the_one_of_eager(name: str, way: str) -> None:
    make = CONTAINERS[name]
    program = fx.symbolic_trace(lambda x: make(torch.sqrt(x)))
    program.graph.lint()
    assert seen(WAYS[way](program)(X)) == seen(make(X.sqrt()))


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_pattern_is_found_by_the_container_that_an_operation_is_given(name: str) -> None:
    make = CONTAINERS[name]

    def pattern(x: Tensor) -> Tensor:
        return first_tensor(make(torch.sqrt(x)))

    program = fx.symbolic_trace(pattern)
    assert torch.equal(program(X), X.sqrt())
    assert len(fx.replace_pattern(program, pattern, lambda x: -x)) == 1
    assert torch.equal(program(X), -X)


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_pattern_is_not_found_where_the_container_holds_something_else(name: str) -> None:
    make = CONTAINERS[name]
    program = fx.symbolic_trace(lambda x: first_tensor(make(torch.sqrt(x))))
    assert not fx.replace_pattern(program, lambda x: first_tensor(make(torch.sin(x))), lambda x: -x)


@pytest.mark.parametrize("name", ["tuple", "list", "dict", "slice", "NamedTuple", "registered as held"])
def test_arguments_are_alike_if_their_containers_and_leaves_are(name: str) -> None:
    make: Callable[[Any], Any] = CONTAINERS[name]
    keys = [
        key_of((container,), lambda leaf: leaf) for container in (make(1.0), make(1.0), make(3.0), (1.0, 2.0, None))
    ]
    assert keys[0] == keys[1]
    assert keys[0] not in keys[2:]


def test_each_kind_of_the_table_is_in_a_program_here() -> None:
    tried = [container_kind(make(X)) for make in CONTAINERS.values()] + list(map(container_kind, CONSTANTS.values()))
    of_documents = [kind for kind in container_kinds._kinds if "Boxes" in [kind.__name__ for kind in kind.classes]]
    assert [kind for kind in container_kinds._kinds if kind not in [*tried, *of_documents]] == []


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_is_made_again_of_its_parts(name: str) -> None:
    container = CONTAINERS[name](X)
    kind = container_kind(container)
    assert kind is not None
    assert len(kind.labels(container)) == len(kind.parts(container))
    again = kind.rebuild(container, list(kind.parts(container)))
    assert list(map(id, kind.parts(again))) == list(map(id, kind.parts(container)))


@pytest.mark.parametrize("name", CONSTANTS)
def test_containers_of_constants_are_held_as_they_are(name: str) -> None:
    container = CONSTANTS[name]
    graph = fx.Graph()
    node = graph.call_function(len, (container,))
    assert node.args[0] is container
    graph.output(node)
    assert fx.GraphModule({}, graph)() == 2


def test_return_types_of_torch_are_tuples_in_arguments_and_keep_their_class_in_values() -> None:
    returned = CONSTANTS["values"]
    program = fx.symbolic_trace(lambda x: (x, returned))
    assert type(program.graph.output_node().args[0][1]) is tuple
    kind = container_kind(returned)
    assert kind is not None
    assert type(kind.rebuild(returned, [1, 0])) is type(returned)


def test_arguments_are_leaves_in_order_at_any_depth() -> None:
    assert list(leaves_of(Span([1, {"a": 2}], (slice(3, 4, 5), Record(X)))))[:-1] == [1, 2, 3, 4, 5]


def test_a_node_is_printed_with_the_values_that_its_containers_hold() -> None:
    program = fx.symbolic_trace(lambda x: (Span(x, [x]), {"a": slice(x, None)}, (x,)))
    with program.graph.inserting_before(program.graph.output_node()):
        node = program.graph.call_function(len, program.graph.output_node().args)
    assert "Span(%x, [%x]), {a: slice(%x, None, None)}, (%x,))" in str(node.format_node())


def test_records_that_refer_to_each_other_are_looked_into_once() -> None:
    parent = Record(X)
    parent.second = Record(X, parent)
    program = fx.symbolic_trace(lambda x: x + first_tensor(parent))
    assert [node.op for node in program.graph.nodes] == ["placeholder", "get_attr", "call_function", "output"]
    assert torch.equal(program(X), X + X)


def test_a_file_with_too_few_parts_of_a_container_is_refused() -> None:
    assert ValueReader([]).value({"span": [1, 2]}) == Span(1, 2)
    with pytest.raises(Refused, match="a span is not made of 1 values"):
        ValueReader([]).value({"span": [1]})


def test_one_class_is_of_one_kind() -> None:
    with pytest.raises(fx.FxError, match="there is a kind of container for Ring already"):
        register_container(ContainerKind((Ring,), parts=list, rebuild=lambda held, parts: parts))
    with pytest.raises(fx.FxError, match=r"for the tag 'span' already\s+try\s+choose another tag"):
        register_container(ContainerKind((), parts=list, rebuild=lambda held, parts: parts, tag="span"))


def test_files_call_a_class_of_the_users_where_the_user_allows_it() -> None:
    with pytest.raises(fx.FxError, match=r"may allow it to call a class\s+try\s+fx.serialization.allow\(Pair\)"):
        register_container(ContainerKind((Pair,), parts=list, rebuild=lambda held, parts: parts, in_files=True))


class Doubles(namedtuple("Pair", "first second")):
    """A class with a constructor of its own."""

    __slots__ = ()

    def __new__(cls, first: Any) -> Doubles:
        return super().__new__(cls, first, first * 2)


class Triples(namedtuple("Pair", "first second")):
    """One that takes as many arguments as it has fields, and does not keep them."""

    __slots__ = ()

    def __new__(cls, first: Any, second: Any) -> Triples:
        return super().__new__(cls, first * 3, second)


@dataclass
class Scaled:
    """A dataclass that computes a field from its arguments."""

    values: Any
    factor: InitVar[int] = 2

    def __post_init__(self, factor: int) -> None:
        self.values = self.values * factor


@dataclass
class Derived:
    """One with a field that its constructor does not take."""

    values: Any
    more: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.more = self.values + 1


@pytest.mark.parametrize("make", [Doubles, lambda x: Triples(x, x), lambda x: Scaled(x, 3), Derived])
def test_a_class_that_does_not_make_the_same_of_its_parts_is_refused_by_its_line(make: Callable[[Any], Any]) -> None:
    with pytest.raises(fx.TraceError) as refused:
        fx.symbolic_trace(lambda x: make(x + 1))
    message = str(refused.value)
    assert "cannot be held by a node" in message and "does not make an equal container of its parts" in message
    assert "test_containers_in_programs.py:" in message


@pytest.mark.parametrize("held", [Scaled(1, 3), Derived(1)], ids=lambda held: type(held).__name__)
def test_a_dataclass_is_rebuilt_with_new_parts_without_its_constructor(held: Any) -> None:
    kind = container_kind(held)
    assert kind is not None
    parts = [part * 10 for part in kind.parts(held)]
    assert kind.parts(kind.rebuild(held, parts)) == parts
