"""Questions that Python answers without asking the value: identity of parts of inputs, copies, hooks."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import fx
from fx.errors import GuardError

X = torch.tensor([1.0, 2.0])


@dataclass
class Batch:
    x: Any
    mask: Any = None


class Pair(NamedTuple):
    x: Any
    mask: Any = None


def helper(x: Any, mask: Any) -> Any:
    return x if mask is None else x + 1


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value


def of_helper(b: Any) -> Any:
    return helper(b["x"], b.get("mask"))


def of_alias(b: Any) -> Any:
    mask = b["mask"]
    other = mask
    return helper(b["x"], other)


def of_box(b: Any) -> Any:
    box = Box(b.get("mask"))
    return b["x"] if box.value is None else b["x"] + 1


def of_list(parts: Any) -> Any:
    return helper(parts[0], parts[1])


def of_fields(b: Any) -> Any:
    return b.x if b.mask is None else b.x + 1


def of_fields_by_helper(b: Any) -> Any:
    return helper(b.x, b.mask)


ENTRIES: list[tuple[Any, Any, Any]] = [
    (of_helper, {"x": X, "mask": X}, {"x": X}),
    (of_helper, {"x": X, "mask": X}, {"x": X, "mask": None}),
    (of_alias, {"x": X, "mask": X}, {"x": X, "mask": None}),
    (of_box, {"x": X, "mask": X}, {"x": X, "mask": None}),
    (of_list, [X, X], [X, None]),
    (of_fields, Batch(X, X), Batch(X)),
    (of_fields, Pair(X, X), Pair(X)),
    (of_fields_by_helper, Batch(X, X), Batch(X)),
    (of_fields_by_helper, Pair(X, X), Pair(X)),
]


@pytest.mark.parametrize("guided", [None, "given", "left out"])
@pytest.mark.parametrize("program, given, left_out", ENTRIES)
def test_an_entry_of_an_input_is_given_or_refused(program: Any, given: Any, left_out: Any, guided: str | None) -> None:
    example = {None: None, "given": (given,), "left out": (left_out,)}[guided]
    try:
        traced = fx.symbolic_trace(program, example_inputs=example)
    except fx.TraceError:
        return
    results = []
    for argument in (given, left_out):
        try:
            results.append(traced(argument).equal(program(argument)))
        except (GuardError, KeyError):
            results.append(None)
    assert False not in results
    assert True in results or isinstance(given, Batch)


def test_entries_that_are_only_computed_with_are_not_checked() -> None:
    traced = fx.symbolic_trace(lambda b: torch.nn.functional.linear(b["x"], b["w"]) + b["c"][0])
    assert "check" not in traced.code


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x + 1 if x.is_floating_point() is True else x,
        lambda x: x + 1 if (x.shape[0] > 1) is True else x,
        lambda x: x + 1 if x.requires_grad is False else x,
    ],
)
def test_an_answer_that_is_compared_with_true_by_identity_is_refused(program: Any) -> None:
    for examples in (None, (X,)):
        with pytest.raises(fx.TraceError, match="by identity"):
            fx.symbolic_trace(program, example_inputs=examples)


def test_inputs_that_are_compared_with_each_other_are_different_objects() -> None:
    def program(q: Any, k: Any) -> Any:
        other = k
        return q if q is other else q + k

    traced = fx.symbolic_trace(program)
    assert traced(X, X.clone()).equal(program(X, X.clone()))
    with pytest.raises(GuardError, match="q and k are different objects"):
        traced(X, X)
    with pytest.raises(fx.TraceError, match="two inputs that are the same object"):
        fx.symbolic_trace(program, example_inputs=(X, X))


def test_a_deep_copy_of_a_traced_value_is_a_copy() -> None:
    def program(x: Tensor) -> Any:
        y = copy.deepcopy(x)
        y[0] = 9
        return x, y

    x = X.clone()
    before, after = fx.symbolic_trace(program)(x)
    assert before.tolist() == [1, 2] and after.tolist() == [9, 2] and x.tolist() == [1, 2]


@pytest.mark.parametrize("part", ["cpu", "cp", "cuda"])
def test_a_part_of_a_traced_text_is_found_as_in_a_text(part: str) -> None:
    def program(x: Tensor) -> Tensor:
        return x + 1 if part in x.device.type else x

    assert fx.symbolic_trace(program, example_inputs=(X,))(X).equal(program(X))


def test_a_flag_is_no_number() -> None:
    traced = fx.symbolic_trace(lambda x, flag=True: x if flag else -x)
    assert traced(X, True).equal(X)
    for other in (1, X, False):
        with pytest.raises(GuardError, match="flag was True"):
            traced(X, other)


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.kept: dict[str, Tensor] = {}


class Stored(Hooked):
    def __init__(self) -> None:
        super().__init__()
        self.linear.register_forward_hook(lambda module, args, output: self.kept.__setitem__("last", output))

    def forward(self, x: Tensor) -> Tensor:
        self.linear(x)
        return self.kept["last"] * 2


IN_MODULE: dict[str, Tensor] = {}


def keep(module: nn.Module, args: Any, output: Tensor) -> None:
    IN_MODULE["last"] = output


class StoredInModule(Hooked):
    def __init__(self) -> None:
        super().__init__()
        self.linear.register_forward_hook(keep)

    def forward(self, x: Tensor) -> Tensor:
        self.linear(x)
        return IN_MODULE["last"] * 2


@pytest.mark.parametrize("kind", [Stored, StoredInModule])
def test_what_a_hook_stores_is_that_of_each_call(kind: type[nn.Module]) -> None:
    model = kind()
    model(X)  # the value of an earlier call
    traced = fx.symbolic_trace(model)
    assert traced(3 * X).equal(model(3 * X))


class Registered(Hooked):
    def __init__(self, removes: bool) -> None:
        super().__init__()
        self.removes = removes

    def forward(self, x: Tensor) -> Tensor:
        handle = self.linear.register_forward_hook(lambda module, args, output: output * 2)
        y = self.linear(x)
        if self.removes:
            handle.remove()
        return y


@pytest.mark.parametrize("removes", [True, False])
def test_a_hook_that_is_registered_in_the_call_is_refused_and_undone(removes: bool) -> None:
    model = Registered(removes)
    with pytest.raises(fx.TraceError, match="whose hooks were changed"):
        fx.symbolic_trace(model)
    assert not model.linear._forward_hooks


class Sliced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[2:](self.layers[:2](x))


def test_a_part_of_a_sequential_is_its_layers() -> None:
    model = Sliced()
    traced = fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.find_nodes(op="call_module")] == ["layers.0", "layers.1", "layers.2"]
    assert traced(X).equal(model(X)) and traced.state_dict().keys() == model.state_dict().keys()


@fx.wrap
def kept_whole(x: Any, mask: Any) -> Any:
    return x if mask is None else x + 1


def test_what_a_wrapped_function_asks_is_no_question_of_the_capture() -> None:
    traced = fx.symbolic_trace(lambda x, mask=None: kept_whole(x, mask))
    assert "check" not in traced.code
    assert traced(X).equal(X) and traced(X, X).equal(X + 1)


class Marked(Tensor):
    """A subclass as users define them."""


def of_subclass(x: Any) -> Any:
    return x * 2 if isinstance(x, (int, Marked)) else x * 3


def of_parameter(x: Any) -> Any:
    return x * 2 if isinstance(x, nn.Parameter | Marked) else x * 3


def of_buffer(x: Any) -> Any:
    return x * 2 if isinstance(x, nn.Buffer) else x * 3


@pytest.mark.parametrize("how", ["symbolic", "guided"])
@pytest.mark.parametrize(
    "program, other",
    [(of_subclass, X.as_subclass(Marked)), (of_parameter, nn.Parameter(X)), (of_buffer, nn.Buffer(X.clone()))],
)
def test_a_tensor_of_the_class_that_was_asked_for_is_not_taken_for_another_one(
    program: Any, other: Tensor, how: str
) -> None:
    captured = fx.capture(program, (X,), how=how)
    assert captured(X).equal(program(X))
    with pytest.raises(GuardError, match="was not a "):
        captured(other)


def of_identities(x: Any, y: Any) -> Any:
    return x + y if id(x) == id(y) else x - y


def test_inputs_whose_identities_are_taken_have_to_be_different_objects() -> None:
    captured = fx.symbolic_trace(of_identities)
    assert captured(X, X + 1).equal(of_identities(X, X + 1))
    with pytest.raises(GuardError, match="x and y are different objects"):
        captured(X, X)


class Parts(nn.Module):
    def forward(self, *xs: Any, scale: int = 1, **options: Any) -> Any:
        return xs[0] * len(xs[0].chunk(3)) * scale + len(xs) + options.get("shift", 0)


def test_example_inputs_are_those_of_the_call_also_by_place_and_by_name() -> None:
    x = torch.ones(4)
    program = fx.capture(Parts(), (x, x), {"scale": 3, "shift": 5}, how="guided")
    assert program(x, x, scale=3, shift=5).equal(Parts()(x, x, scale=3, shift=5))


def test_a_symbolic_capture_that_refuses_its_own_example_gives_way_to_a_guided_one() -> None:
    program, x = lambda x: x * len(x.chunk(3)), torch.ones(4)
    assert fx.symbolic_trace(program)(torch.ones(6)).equal(program(torch.ones(6)))
    captured = fx.capture(program, (x,))
    assert captured.meta["capture"].way == "guided" and captured(x).equal(program(x))
