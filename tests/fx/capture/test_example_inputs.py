"""Capture with example inputs: they answer the program's questions, and the answers are guarded."""

from __future__ import annotations

import copy
import gc
import importlib
import pickle
import re
import sys
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from building import WithoutLeaves
from torch import nn

import fx
from fx.capture.example_values import ExampleValues
from fx.errors import GuardError, TraceError


def said(program: fx.GraphModule) -> list[str]:
    """The guards of a program without their places."""
    return [str(guard).removeprefix("the program was captured where ").partition(":")[0] for guard in program.guards]


def halves(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] > 1:
        x = x[: x.shape[0] // 2]
    for step in range(x.shape[1]):
        x = x + step
    return x


def test_each_answer_is_a_guard_in_words_with_its_line_and_no_other_size_is_fixed() -> None:
    program = fx.symbolic_trace(halves, example_inputs=(torch.ones(4, 3),))
    assert said(program) == ["x.shape[0] > 1 was True", "getitem_2.shape[1] was 3"]
    assert re.search(r"test_example_inputs\.py:\d+, in halves:  if x\.shape\[0\] > 1:$", str(program.guards[0]))
    for rows in (2, 7):
        x = torch.rand(rows, 3, 2)
        assert torch.equal(program(x), halves(x))


def test_an_input_that_breaks_a_guard_is_refused_with_its_line_and_value() -> None:
    program = fx.symbolic_trace(halves, example_inputs=(torch.ones(4, 3),))
    with pytest.raises(GuardError) as info:
        program(torch.ones(1, 3))
    assert re.fullmatch(
        r"the program was captured where x\.shape\[0\] > 1 was True: \S+test_example_inputs\.py:\d+, in halves:  "
        r"if x\.shape\[0\] > 1:\n"
        r"  value  it is False now\n"
        r"  why    the program was specialized to it, once, while it was captured\n"
        r"  try    capture the program again as it is now, or make the module that decides it a leaf",
        str(info.value),
    )
    with pytest.raises(GuardError, match=r"getitem_2\.shape\[1\] was 3: "):
        program(torch.ones(4, 2))


def of_dtype(x: torch.Tensor) -> torch.Tensor:
    if x.dtype is torch.float16 or x.device.type == "cuda":
        return x.float()
    if x.requires_grad or not x.is_contiguous():
        return x * 2
    return x + {torch.float32: 1, torch.float64: 2}[x.dtype]


def test_dtypes_devices_strides_and_requires_grad_have_answers() -> None:
    x = torch.ones(2, 3)
    program = fx.symbolic_trace(of_dtype, example_inputs=(x,))
    assert torch.equal(program(x), of_dtype(x))
    assert said(program) == [
        "x.dtype was torch.float32",
        "x.device.type == 'cuda' was False",
        "x.requires_grad was False",
        "x.is_contiguous() was True",
        "x.dtype == torch.float32 was True",
    ]
    for other in (x.double(), x.half(), x.t(), x.clone().requires_grad_()):
        with pytest.raises(GuardError):
            program(other)
    strided = fx.symbolic_trace(of_dtype, example_inputs=(x.t(),))
    assert torch.equal(strided(x.t()), of_dtype(x.t()))


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.layers = nn.ModuleList([nn.Tanh() for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x))
        for layer in self.layers[: len(x.shape) - 2]:
            x = layer(x)
        height, width = x.shape[-2:]
        if height % 4 or width % 4:
            x = nn.functional.pad(x, (0, -width % 4, 0, -height % 4))
        return x


def test_outputs_of_leaves_are_known_without_running_them() -> None:
    model = Padded()
    before = copy.deepcopy(model.state_dict())
    program = fx.symbolic_trace(model, example_inputs=(torch.ones(2, 3, 9, 9),))
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert said(program) == [
        "len(norm.shape) - 2 was 2",
        "the program was captured for 2 elements",
        "not layers_1.shape[-2",
    ]
    x = torch.rand(3, 3, 11, 9)
    assert torch.equal(program.eval()(x), model.eval()(x))
    with pytest.raises(GuardError, match="was False"):
        program(torch.rand(3, 3, 10, 9))


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def of_containers(batch: dict[str, Any], pair: Pair, *rest: torch.Tensor, flag: bool = True, **options: Any) -> Any:
    total = pair.left - pair.right
    for value in rest:
        total = total + value
    for name, value in batch.items():
        if value is not None and isinstance(value, torch.Tensor):
            total = total + value * len(name)
    return total if flag else options["scale"] * total


def test_containers_are_seen_by_the_program_and_their_keys_and_lengths_are_guarded() -> None:
    x = torch.ones(2)
    inputs = ({"ids": x, "mask": None}, Pair(x, x), x, x)
    program = fx.symbolic_trace(of_containers, example_inputs=inputs)
    y = torch.rand(5)
    example = ({"ids": y, "mask": None}, Pair(y, y + 1), y, y)
    assert torch.equal(program(*example), of_containers(*example))
    for broken in (
        ({"ids": y}, *example[1:]),
        ({"mask": None, "ids": y}, *example[1:]),
        ({"ids": y, "mask": y}, *example[1:]),
        example[:3],
        (example[0], (y, y), y, y),
    ):
        with pytest.raises(GuardError):
            program(*broken)
    with pytest.raises(GuardError, match="flag was True: "):
        program(*example, flag=False)


def test_inputs_may_be_given_by_name_and_defaults_are_taken_as_they_are() -> None:
    def scaled(x: torch.Tensor, by: int = 2, mode: str = "plain", mask: torch.Tensor | None = None) -> torch.Tensor:
        if mask is not None:
            x = x * mask
        return x * by if mode == "plain" else x

    program = fx.symbolic_trace(scaled, example_inputs={"x": torch.ones(2)})
    assert said(program) == ["mode was 'plain'", "mask was None"]
    assert torch.equal(program(torch.ones(2), 5), torch.full((2,), 5.0))  # an unused number is free
    with pytest.raises(GuardError, match="mask was None: "):
        program(torch.ones(2), mask=torch.ones(2))
    masked = fx.symbolic_trace(scaled, example_inputs={"x": torch.ones(2), "mask": torch.ones(2)})
    assert torch.equal(masked(torch.ones(2), mask=torch.zeros(2)), torch.zeros(2))
    with pytest.raises(GuardError, match="mask is given "):
        masked(torch.ones(2))


def test_concrete_args_go_before_example_inputs() -> None:
    def chosen(x: torch.Tensor, parts: dict[str, Any], flag: bool) -> torch.Tensor:
        y = parts["a"]
        return x + y if flag and y.dim() == 1 else x

    concrete = {"flag": True, "parts": {"a": fx.PH}}
    by_name = {"x": torch.ones(2), "parts": {"a": torch.ones(2)}, "flag": False}
    program = fx.symbolic_trace(chosen, concrete_args=concrete, example_inputs=by_name)
    assert said(program) == ["parts_1.dim() == 1 was True"]
    assert torch.equal(program(torch.ones(2), {"a": torch.ones(2)}, True), torch.full((2,), 2.0))


def test_a_size_that_a_recorded_call_takes_stays_free() -> None:
    def flat(x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        y = torch.reshape(x, (rows * columns, 1)) + torch.zeros(rows * columns, 1)
        z = torch.narrow(y, 0, 0, columns).expand(columns, rows)
        return z if columns > 1 else y

    program = fx.symbolic_trace(flat, example_inputs=(torch.ones(4, 3),))
    assert said(program) == ["len(x.shape) was 2", "x.shape[1] > 1 was True"]
    x = torch.rand(5, 6)
    assert torch.equal(program(x), flat(x))


def by_elements(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def by_an_element(x: torch.Tensor) -> torch.Tensor:
    for _ in range(int(x.max())):
        x = x + 1
    return x


def by_what_is_found(x: torch.Tensor) -> torch.Tensor:
    places = x.nonzero()
    return places if places.shape[0] > 2 else x


@pytest.mark.parametrize("function", [by_elements, by_an_element, by_what_is_found], ids=lambda one: one.__name__)
def test_elements_of_tensors_are_never_answered_for(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(TraceError, match=r"the example inputs do not determine it: .*elements") as info:
        fx.symbolic_trace(function, example_inputs=(torch.ones(3),))
    assert f"in {function.__name__}" in str(info.value)


def test_data_dependent_shapes_are_partly_known() -> None:
    def rows_found(x: torch.Tensor) -> torch.Tensor:
        places = x.nonzero()
        return places if places.shape[1] == 2 and places.dim() == 2 else x

    program = fx.symbolic_trace(rows_found, example_inputs=(torch.ones(3, 2),))
    assert torch.equal(program(torch.eye(3)), rows_found(torch.eye(3)))


def test_the_same_question_is_checked_once_unless_the_tensor_was_reshaped_in_place() -> None:
    def asked(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            if x.dim() == 2:
                x.add_(1)
        return x

    def reshaped(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if y.size(0) == 2:
            y.t_()
        return y * 2 if y.size(0) == 2 else y

    program = fx.symbolic_trace(asked, example_inputs=(torch.ones(2, 2),))
    assert said(program) == ["x.dim() == 2 was True"]
    assert len(program.graph.find_nodes(op="call_method", target="dim")) == 1
    program = fx.symbolic_trace(reshaped, example_inputs=(torch.ones(2, 2),))
    assert len(program.guards) == 2
    with pytest.raises(GuardError):
        program(torch.ones(2, 3))


def ways_to_keep(program: fx.GraphModule, folder: Path) -> dict[str, Any]:
    fx.save(program, folder / "program.fx")
    program.to_folder(folder / "kept_program")
    sys.path.insert(0, str(folder))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            imported = importlib.import_module("kept_program")
    finally:
        sys.path.remove(str(folder))
    return {
        "file": fx.load(folder / "program.fx"),
        "pickle": pickle.loads(pickle.dumps(program)),
        "deepcopy": copy.deepcopy(program),
        "folder": imported.FxModule(),
        "traced again": fx.symbolic_trace(program),
    }


def test_copies_and_files_keep_guards(tmp_path: Path) -> None:
    program = fx.symbolic_trace(Padded().eval(), example_inputs=(torch.ones(2, 3, 9, 9),))
    x = torch.rand(4, 3, 9, 9)
    for name, restored in ways_to_keep(program, tmp_path).items():
        assert torch.equal(restored(x), program(x)), name
        with pytest.raises(GuardError, match=r"test_example_inputs\.py"):
            restored(torch.rand(4, 3, 10, 10))
        if isinstance(restored, fx.GraphModule):
            assert list(map(str, restored.guards)) == list(map(str, program.guards)), name


def test_modes_that_the_program_sets_are_those_of_its_answers() -> None:
    def modes(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x @ weight
        z = x @ weight
        with torch.autocast("cpu", torch.bfloat16):
            low = x @ weight
            if low.dtype == torch.bfloat16 and not y.requires_grad and z.requires_grad:
                return low.float() + y + z
        return x

    x, weight = torch.ones(2, 2), torch.ones(2, 2, requires_grad=True)
    program = fx.symbolic_trace(modes, example_inputs=(x, weight))
    assert torch.equal(program(x, weight), modes(x, weight))
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_the_random_state_stays_as_it_was() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.dropout(x) + torch.rand_like(x)
        return y if y.dim() == 1 else x

    before = torch.get_rng_state()
    fx.symbolic_trace(noisy, example_inputs=(torch.ones(3),))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "examples, text",
    [
        (torch.ones(2), r"example_inputs are the inputs of a call, in a tuple or by name in a dict, not a Tensor\n"),
        ((), r"example_inputs do not fit the program: missing a required argument: 'x'\n  value  halves\(x: "),
        ((1, 2), r"example_inputs do not fit the program: too many positional arguments\n"),
        ({"y": 1}, r"example_inputs do not fit the program: missing a required argument: 'x'\n"),
    ],
    ids=["a tensor", "none", "too many", "another name"],
)
def test_inputs_that_do_not_fit_are_refused(examples: Any, text: str) -> None:
    with pytest.raises(TraceError, match=text):
        fx.symbolic_trace(halves, example_inputs=examples)


def test_a_program_that_changes_a_container_among_its_inputs_is_refused() -> None:
    def adds(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        batch["double"] = batch["x"] * 2
        return batch["double"] if batch["x"].dim() == 1 else batch["x"]

    with pytest.raises(TraceError, match="cannot change the dict batch, which is an input"):
        fx.symbolic_trace(adds, example_inputs=({"x": torch.ones(2)},))


def test_own_tracers_take_example_inputs_too() -> None:
    model = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Flatten())
    tracer = WithoutLeaves()
    program = fx.GraphModule(model, tracer.trace(model, example_inputs=(torch.ones(2, 6),)))
    x = torch.rand(3, 6)
    assert torch.equal(program(x), model(x))


def test_a_guide_leaves_nothing_behind() -> None:
    tracer, examples = fx.Tracer(), [torch.ones(4, 3)]
    reference = weakref.ref(examples[0])
    tracer.trace(halves, example_inputs=(examples.pop(),))
    gc.collect()
    assert reference() is None
    with pytest.raises(TraceError):
        tracer.trace(halves)


def test_guards_are_dropped_by_a_pass_with_that_option() -> None:
    program = fx.symbolic_trace(halves, example_inputs=(torch.ones(4, 3),))
    assert len(fx.passes.RemoveChecks()(copy.deepcopy(program)).guards) == 2
    without = fx.passes.RemoveChecks(guards=True)(copy.deepcopy(program))
    assert without.guards == ()
    assert torch.equal(without(torch.ones(4, 3)), program(torch.ones(4, 3)))
    without(torch.ones(1, 3))


@pytest.mark.parametrize(
    "function, is_said",
    [
        (lambda x: x if x.shape[0] > 2 else -x, True),
        (lambda x: next(iter(x)), True),
        (lambda x: x if x.dtype in {torch.float32} else -x, True),
        (lambda x: x if x.sum() > 0 else -x, False),
    ],
)
def test_a_refusal_names_example_inputs_where_they_would_say_it(function: Any, is_said: bool) -> None:
    with pytest.raises(TraceError) as refused:
        fx.symbolic_trace(function)
    assert ("capture with example_inputs" in str(refused.value)) is is_said


def test_values_that_the_program_asks_nothing_of_are_not_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[object] = []
    monkeypatch.setattr(ExampleValues, "of", lambda self, node: recorded.append(node))

    def program(x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = torch.relu(x) + 1
        return y if mask is None else y * mask

    fx.symbolic_trace(program, example_inputs=(torch.ones(2),))
    assert not recorded


class OfItsKind(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Any) -> Any:
        return x.to(self.weight.dtype) * self.weight if isinstance(self.weight, torch.Tensor) else x


@pytest.mark.thorough
def test_a_check_that_something_is_a_parameter_is_one_that_dynamo_follows() -> None:
    program = fx.symbolic_trace(OfItsKind(), example_inputs=(torch.ones(2, 3),))
    assert "check_kind(weight, 'Parameter'," in program.code
    compiled: Any = torch.compile(program, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(4, 3)), torch.ones(4, 3))


def _unpacked(x):
    first, second = x
    return first + second


def _unpacked_shape(x):
    count, width = x.shape
    return x.reshape(width, count)


def _unpacked_chunks(x):
    first, second = x.chunk(2)
    return first - second


def _unpacked_parts(x):
    (first, second), third = x
    return first + second + third.sum()


@pytest.mark.parametrize(
    "program, given, other",
    [
        (_unpacked, (2, 4), (3, 4)),
        (_unpacked_shape, (2, 4), (2, 4, 5)),
        (_unpacked_chunks, (4,), (1,)),
        (_unpacked_parts, (2, 2), (2, 3)),
    ],
)
def test_how_many_elements_are_unpacked_is_guarded(program, given, other):
    captured = fx.symbolic_trace(program, example_inputs=(torch.ones(given),))
    assert torch.equal(captured(torch.ones(given)), program(torch.ones(given)))
    with pytest.raises(fx.GuardError, match=r"captured (where len\(.* was 2|for 2 elements): .*test_example_inputs.py"):
        captured(torch.ones(other))


def test_values_with_a_fixed_number_of_elements_are_unpacked_without_a_guard():
    def program(x):
        values, places = x.max(dim=1)
        low, high = x.tensor_split(2)
        return values + places, low, high

    assert not fx.symbolic_trace(program, example_inputs=(torch.ones(2, 2),)).guards


def test_unpacking_fewer_elements_than_there_are_fails_as_in_eager_mode():
    with pytest.raises(ValueError, match="too many values to unpack"):
        fx.symbolic_trace(_unpacked, example_inputs=(torch.ones(3, 2),))
    with pytest.raises(fx.TraceError, match="cannot unpack a traced value"):
        fx.symbolic_trace(_unpacked, example_inputs=(torch.tensor(1.0),))


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x / numpy.sqrt(x.shape[1]),
        lambda x: x[: int(numpy.ceil(x.shape[0] / 2))],
        lambda x: x * float(numpy.array(x.shape).sum()),
        lambda x: x + numpy.maximum(x.size(1), 3),
    ],
)
def test_numpy_results_of_sizes_are_guarded(compute):
    x = torch.rand(2, 4)
    program = fx.symbolic_trace(compute, example_inputs=(x,))
    assert torch.equal(program(x), compute(x))
    with pytest.raises(fx.GuardError, match="captured where x"):
        program(torch.rand(5, 6))


@pytest.mark.parametrize("compute", [lambda x: numpy.sqrt(x), lambda x: x * numpy.sqrt(x.sum())])
def test_numpy_gets_no_elements_of_tensors(compute):
    with pytest.raises(fx.TraceError, match=r"(?s)cannot make a numpy array.*do not determine it: it is a tensor"):
        fx.symbolic_trace(compute, example_inputs=(torch.rand(2, 4),))


def test_a_class_that_example_inputs_have_answered_is_guarded() -> None:
    program = fx.symbolic_trace(lambda x, n: x * n if isinstance(n, int) else x, example_inputs=(torch.ones(2), 3))
    assert program(torch.ones(2), 2).tolist() == [2.0, 2.0]
    with pytest.raises(fx.GuardError, match=r"captured where n was an int"):
        program(torch.ones(2), 2.5)
