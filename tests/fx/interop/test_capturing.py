"""``fx.capture`` captures symbolically if it can, else through ``torch.export``, and records the way."""

# No postponed annotations: exporting reads them.

import functools
import importlib
import inspect
import logging
import operator
import pickle
import re
from typing import Any

import pytest
import torch
from packed_weights import pack
from torch import nn

import fx
from fx.errors import CaptureError, TraceError
from fx.interop import exporting
from fx.interop.capturing import first_way
from fx.interop.exporting import ExportedModel

X = torch.linspace(-1.0, 2.0, 12).reshape(3, 4)


class PerColumn(nn.Module):
    """Reads a size as a Python number, which a traced value is not; with state of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("hidden", torch.ones(4), persistent=False)
        self.plain = torch.full((4,), 2.0)

    def forward(self, x: Any, shift: float = 0.5) -> Any:
        for _ in range(int(x.shape[1])):
            x = x + shift
        x = self.norm(self.second(self.first(x))) * self.hidden * self.plain
        return x + torch.tensor([1.0, 2.0, 3.0, 4.0])


class PerSample(nn.Module):
    """Runs one step a sample: an exported program has a fixed number of samples."""

    def forward(self, x: Any) -> Any:
        for _ in range(int(x.shape[0])):
            x = x + 1
        return x


class InRows(nn.Module):
    """Takes three samples only."""

    def forward(self, x: Any) -> Any:
        return x.reshape(len(range(x.shape[1])) - 1, 4) * 2


class Branching(nn.Module):
    """Branches on values, which every way refuses."""

    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


def test_traceable_models_are_captured_symbolically_without_an_export(monkeypatch: Any) -> None:
    monkeypatch.setattr(exporting, "torch_export", None)
    program = fx.capture(nn.Sequential(nn.Linear(4, 4)), (X,))
    record = program.meta["capture"]
    assert (record.way, record.refusals, record.batch) == ("symbolic", (), None)
    assert [node.op for node in program.graph.nodes] == ["placeholder", "call_module", "output"]


def test_arguments_that_the_call_leaves_out_are_captured_as_their_defaults() -> None:
    class Optional(nn.Module):
        def forward(self, x: Any, shift: Any = None) -> Any:
            return x if shift is None else x + shift

    assert "add" not in fx.capture(Optional(), (X,)).code
    assert "add" in fx.capture(Optional(), (X,), {"shift": X}).code
    assert "add" not in fx.capture(Optional()).code, "nothing is known of the arguments"


def test_an_exported_model_has_its_batch_free() -> None:
    record = fx.capture(PerColumn().eval(), (X,), how="export").meta["capture"]
    assert (record.way, record.batch) == ("export", "free")


def test_a_model_that_asks_for_sizes_is_guided_by_its_example_inputs_and_guarded() -> None:
    model = PerColumn().eval()
    program = fx.capture(model, (X,))
    record = program.meta["capture"]
    assert (record.way, record.batch) == ("guided", None)
    with pytest.raises(fx.GuardError, match=r"x\.shape\[1\]\) was 4: "):
        program(torch.ones(2, 3))
    assert str(record.refusals[0]).startswith("symbolic: cannot use a traced value as an integer (")
    assert "range(int(x.shape[1]))" in record.refusals[0].where
    assert not program.training
    for samples in (1, 2, 5):
        x = X[:1].repeat(samples, 1)
        assert torch.equal(program(x), model(x))


def test_an_exported_program_shares_the_models_tensors_under_its_names() -> None:
    model = PerColumn()
    program = fx.capture(model, (X,), how="export")
    assert list(program.state_dict()) == list(model.state_dict())
    assert program.first.weight is program.second.weight is model.first.weight
    assert program.get_buffer("hidden") is model.hidden
    assert program.get_buffer("plain") is model.plain


def test_capturing_a_model_in_training_leaves_its_statistics_and_the_random_numbers_alone() -> None:
    model = PerColumn()
    torch.manual_seed(7)
    drawn = torch.get_rng_state()
    program = fx.capture(model, (X,), how="export")
    assert program.training and program.meta["capture"].batch == "free"
    assert model.norm.num_batches_tracked == 0 and torch.equal(model.norm.running_var, torch.ones(4))
    assert torch.equal(torch.get_rng_state(), drawn)


class Drawing(PerColumn):
    """Adds noise."""

    def forward(self, x: Any, shift: float = 0.5) -> Any:
        return super().forward(x, shift) + torch.rand_like(x)


def test_both_draw_the_same_numbers_and_no_device_that_has_no_tensor_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded: list[Any] = []
    original = torch.random.fork_rng
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices=None: (recorded.append(devices), original(devices))[1])
    program = fx.capture(Drawing().eval(), (X,), how="export")
    assert program.meta["capture"].batch == "free"
    assert recorded == [[], []]


def test_one_sample_is_exported_for_any_number() -> None:
    program = fx.capture(PerColumn().eval(), (X[:1],), how="export")
    assert program.meta["capture"].batch == "free"
    assert program(X).shape == (3, 4)


@pytest.mark.parametrize(
    "model, why",
    [
        (
            PerSample(),
            r"exported with it free, 4 samples raise AssertionError: .* must .*|the model's code.*depends on it",
        ),
        (InRows(), r"for 4 samples the model itself raises RuntimeError: shape.*|the model's code.*depends on it"),
    ],
    ids=["decided in the code", "the model's own"],
)
def test_a_batch_that_cannot_be_free_is_fixed_with_the_reason(model: nn.Module, why: str) -> None:
    program = fx.capture(model, (X,), how="export")
    batch = program.meta["capture"].batch
    assert re.fullmatch(f"fixed at 3: ({why})", batch)
    assert torch.equal(program(X), model(X))
    with pytest.raises(AssertionError, match=r"x must have the shape \(3, 4\)"):
        program(X[:2])


def test_arguments_by_name_and_of_any_structure_are_exported() -> None:
    class Structured(nn.Module):
        def forward(self, pair: Any, *, scale: Any, times: int = 2) -> Any:
            return {"sum": (pair["a"] + pair["b"][0]) * scale * len(range(pair["a"].shape[1])) * times}

    model, example = Structured(), ({"a": X, "b": [X]},)
    program = fx.capture(model, example, {"scale": torch.ones(4)}, how="export")
    assert program.meta["capture"].batch == "free"
    other = ({"a": X[:2], "b": [X[:2]]},)
    assert torch.equal(program(*other, scale=torch.ones(4))["sum"], model(*other, scale=torch.ones(4))["sum"])
    guided = fx.capture(model, example, {"scale": torch.ones(4)})
    assert guided.meta["capture"].way == "guided"
    assert torch.equal(guided(*other, scale=torch.ones(4))["sum"], model(*other, scale=torch.ones(4))["sum"])


def test_a_model_that_every_way_refuses_raises_one_error_with_each_cause_the_line_and_a_remedy() -> None:
    with pytest.raises(CaptureError) as caught:
        fx.capture(Branching(), (X,))
    first, where, *rest = str(caught.value).splitlines()
    assert first == "Branching cannot be captured, neither symbolically nor through torch.export"
    assert where.startswith("  where  ") and where.endswith("forward:  return x if x.sum() > 0 else -x")
    assert rest[:2] == [
        "  why    symbolic: symbolically traced variables cannot be used as inputs to control flow",
        "         export: GuardOnDataDependentSymNode: Could not guard on data-dependent expression Eq(u0, 1)",
    ]
    assert rest[2].startswith("  try    decide from a module attribute")
    assert rest[3].startswith("  or     choose between values with torch.where")
    assert isinstance(caught.value, TraceError)
    assert [refusal.way for refusal in caught.value.refusals] == ["symbolic", "export"]
    assert "TORCH_LOGS" in caught.value.refusals[1].message
    assert type(caught.value.__cause__).__name__ == "GuardOnDataDependentSymNode"


class Record:
    """A class that is registered with no library."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Cache(Record):
    """One that a model keeps for its next call."""


@pytest.mark.parametrize("kind, advice", [(Record, "register the class of the output"), (Cache, "use_cache=False")])
def test_the_error_for_an_unregistered_output_class_names_the_remedy(kind: type[Record], advice: str) -> None:
    class Recording(nn.Module):
        def forward(self, x: Any) -> Any:
            return kind(x + len(range(x.shape[1])))

    with pytest.raises(CaptureError) as caught:
        fx.capture(Recording(), (X,))
    assert advice in str(caught.value) and "<string>" not in str(caught.value)


class Settings:
    """Settings such as models of transformers have as their ``config``."""

    use_cache = True


class Caching(nn.Module):
    """Returns a cache for the next call unless its settings disable that."""

    def __init__(self, config: Settings) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: Any) -> Any:
        x = x + len(range(x.shape[1]))
        return (x, Cache(x)) if self.config.use_cache else (x,)


@pytest.mark.parametrize("how, way, batch", [("auto", "guided", None), ("export", "export", "free")])
def test_a_model_that_returns_a_cache_is_captured_without_and_keeps_its_settings(
    how: str, way: str, batch: Any
) -> None:
    settings = Settings()
    program = fx.capture(nn.Sequential(Caching(settings)), (X,), how=how)
    assert settings.use_cache is True and "use_cache" in vars(settings)
    (actual,) = program(X)
    assert torch.equal(actual, X + 4)
    record = program.meta["capture"]
    assert (record.way, record.batch) == (way, batch)
    assert record.note == "config.use_cache is off: it returns no cache"
    assert fx.capture(PerColumn(), (X,)).meta["capture"].note is None


def test_a_cache_that_a_graph_can_hold_is_returned() -> None:
    class Keeping(nn.Module):
        config = Settings()

        def forward(self, x: Any) -> Any:
            return (x + 1, {"key": x}) if self.config.use_cache else (x + 1,)

    program = fx.capture(Keeping(), (X,))
    assert len(program(X)) == 2 and program.meta["capture"].note is None


def by_settings(forward: Any) -> Any:
    """Use the settings for arguments that a call omits, as transformers does."""

    @functools.wraps(forward)
    def decided(self: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(self, *args, **{"use_cache": self.config.use_cache, **kwargs})

    return decided


class Deciding(nn.Module):
    config = Settings()

    @by_settings
    def forward(self, x: Any, *, use_cache: Any = None) -> Any:
        return (x + 1, Cache(x)) if use_cache else (x + 1,)


def test_a_cache_that_a_decorator_asks_for_is_not_missed_without_a_word() -> None:
    program = fx.capture(Deciding(), (X,))
    assert len(program(X)) == 1 and len(Deciding()(X)) == 2
    assert program.meta["capture"].note == "config.use_cache is off: it returns no cache"


def test_exporting_prints_and_logs_nothing(capsys: Any) -> None:
    records: list[Any] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in ("torch", "torch.__trace", "torch.fx")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with pytest.raises(CaptureError):
            fx.capture(Branching(), (X,))
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert capsys.readouterr() == ("", "") and not records


@pytest.mark.parametrize(
    "model, args, why",
    [
        (PerColumn(), (), "export: torch.export needs example inputs"),
        (lambda x: range(x), (X,), "export: torch.export takes modules, and no functions"),
    ],
    ids=["no inputs", "a function"],
)
def test_the_error_for_an_unexportable_model_names_the_cause(model: Any, args: Any, why: str) -> None:
    with pytest.raises(CaptureError, match=why):
        fx.capture(model, args)


def test_one_way_alone_is_tried_where_it_is_requested() -> None:
    assert fx.capture(nn.Linear(4, 4), (X,), how="export").meta["capture"].way == "export"
    with pytest.raises(TraceError, match=r"^cannot use a traced value as an integer"):
        fx.capture(PerColumn(), (X,), how="symbolic")
    with pytest.raises(TraceError, match=r"'how' of capture is 'auto' or .* or 'export', not 'exported'"):
        fx.capture(PerColumn(), (X,), how="exported")
    with pytest.raises(TraceError, match="'args' of capture is a tuple, not a Tensor"):
        fx.capture(PerColumn(), X)  # type: ignore[arg-type]


def test_programs_of_one_export_have_the_tensors_of_the_copy_that_they_are_for() -> None:
    model = PerColumn().eval()
    exported = ExportedModel(model, (X,), {})
    other = PerColumn().eval()
    program, again = exported.program_for(other), exported.program_for(other)
    assert torch.equal(program(X), other(X)) and not torch.equal(program(X), model(X))
    assert program.first.weight is again.second.weight is other.first.weight
    assert program.graph is not again.graph and program.code == again.code
    assert program.get_buffer("lifted_tensor_0") is not again.get_buffer("lifted_tensor_0")


def test_the_record_of_the_capture_stays_in_copies_and_pickles() -> None:
    program = fx.capture(PerColumn(), (X,))
    assert pickle.loads(pickle.dumps(program)).meta["capture"] == program.meta["capture"]


def test_the_modules_of_the_room_that_has_its_name_are_found_all_the_same() -> None:
    assert importlib.import_module("fx.capture.tracer").Tracer is fx.Tracer


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * y + len(range(x.shape[1]))


def test_a_tensor_that_is_given_twice_represents_two_inputs() -> None:
    model, twice = Scaled().eval(), torch.randn(3, 4)
    program = fx.capture(model, (twice, twice))
    x, y = torch.randn(5, 4), torch.randn(5, 4)
    assert torch.allclose(program(x, y), model(x, y))


def test_an_input_that_is_a_parameter_of_the_model_represents_others() -> None:
    model = Scaled().eval()
    program = fx.capture(model, (torch.randn(4, 4), model.linear.weight))
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    assert torch.allclose(program(x, y), model(x, y))


@pytest.mark.parametrize(
    "model, args, kwargs, message",
    [
        ("model", (X,), {}, "'model' of capture is a Module or a function, not a str"),
        (nn.Linear(4, 4), (X,), ["input"], "'kwargs' of capture is a Mapping or None, not a list"),
        (Scaled(), (X,), {}, "Scaled does not take its example inputs: missing a required argument: 'y'"),
        (Scaled(), (X, X), {"z": X}, "Scaled does not take its example inputs: got an unexpected keyword argument 'z'"),
    ],
    ids=["no model", "no names", "too few", "another name"],
)
def test_a_call_that_does_not_fit_is_refused_before_anything_is_tried(
    model: Any, args: Any, kwargs: Any, message: str
) -> None:
    with pytest.raises(TraceError, match=f"^{message}") as caught:
        fx.capture(model, args, kwargs)
    assert not isinstance(caught.value, CaptureError)
    if isinstance(model, Scaled):
        where = r"\n  where  \S*test_capturing.py:\d+, in forward"
        pattern = where + r"\n  value  Scaled.forward\(x: .*\n  try    give the arguments of"
        assert re.search(pattern, str(caught.value))


def test_a_way_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(TraceError, match=r"^there is no way 'exported' to capture Scaled"):
        first_way({"symbolic": lambda: None}, "exported", "Scaled")  # type: ignore[dict-item, return-value]


class Anchored(nn.Module):
    """Caches anchors for the last shape in a class attribute, and recomputes them for another one."""

    shape: Any = None
    anchors = torch.empty(0)

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 1)

    def forward(self, x: Any) -> Any:
        x = self.conv(x)
        if self.shape != x.shape[2:]:
            self.anchors = torch.arange(x.shape[3], dtype=x.dtype) + 0.5
            type(self).anchors, type(self).shape = self.anchors, x.shape[2:]
        return x + type(self).anchors


@pytest.mark.parametrize("is_warm", [False, True])
def test_a_model_that_keeps_anchors_for_a_shape_in_its_class_is_exported(is_warm: bool) -> None:
    Anchored.shape, Anchored.anchors = None, torch.empty(0)
    model, x = Anchored(), torch.rand(2, 1, 3, 5)
    if is_warm:
        model(x)
    before = Anchored.shape, Anchored.anchors, vars(model).get("anchors")
    program = fx.capture(model, (x,), how="export")
    assert all(map(operator.is_, (Anchored.shape, Anchored.anchors, vars(model).get("anchors")), before))
    assert torch.equal(program(x), model(x))
    assert type(Anchored.anchors) is torch.Tensor


class OtherWhenExported(nn.Module):
    def forward(self, x: Any) -> Any:
        if torch.compiler.is_compiling():
            return x * 2
        return x * 3 if int(x.shape[0]) else x


@pytest.mark.parametrize("args", [(X,), (X[:1],), (torch.tensor(2.0),)], ids=["rows", "row", "number"])
def test_an_exported_program_that_differs_from_eager_is_refused(args: Any) -> None:
    class Other(OtherWhenExported):
        def forward(self, x: Any) -> Any:
            return super().forward(x) if x.dim() else (x * 2 if torch.compiler.is_compiling() else x * 3)

    with pytest.raises(CaptureError) as info:
        fx.capture(Other(), args, how="export")
    [refusal] = info.value.refusals
    assert refusal.cause == "torch.export captures another program from Other than eager runs"
    assert "the example inputs get other outputs" in refusal.message


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(2, 16))
        self.position = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept[:, self.position : self.position + 2] = x
        self.position += 2
        return self.kept[:, : self.position].sum(1)


def test_a_model_whose_next_call_does_something_else_is_not_exported() -> None:
    with pytest.raises(CaptureError) as info:
        fx.capture(Positions(), (torch.ones(2, 2),))
    assert "depends on what an earlier call of it left in 'position'" in str(info.value)
    with pytest.raises(CaptureError) as info:
        fx.capture(Positions(), (torch.ones(2, 2),), how="export")
    assert "torch.export captures another program from Positions than eager runs" in str(info.value)


def by_key(batch: Any) -> Any:
    try:
        return batch["x"] * batch["mask"]
    except KeyError:
        return batch["x"]


def one_or_two(x: Any, mask: Any) -> Any:
    match (x, mask):
        case (_, None):
            return x
        case _:
            return x * mask


@pytest.mark.parametrize("program, args", [(by_key, ({"x": torch.ones(2)},)), (one_or_two, (torch.ones(2), None))])
def test_a_symbolic_program_that_its_own_examples_break_is_not_taken(program: Any, args: Any) -> None:
    captured = fx.capture(program, args)
    assert captured.meta["capture"].way == "guided"
    assert torch.equal(captured(*args), program(*args))


class FromLibrary(nn.Module):
    def forward(self, x: Any) -> Any:
        return inspect.signature(x).bind()


def test_the_line_is_the_users_and_not_one_of_pythons_library() -> None:
    with pytest.raises(CaptureError) as caught:
        fx.capture(FromLibrary(), (X,), how="export")
    assert "test_capturing.py" in caught.value.refusals[0].where and "inspect.py" not in str(caught.value)


@pytest.mark.parametrize("form", ["functional", "aten"])
def test_a_model_with_weights_of_a_subclass_is_exported(form: Any) -> None:
    model, x = pack(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()), torch.randn(3, 4)
    program = fx.capture(model, (x,), how="export", form=form)
    assert torch.equal(program(x), model(x))
    assert program.get_parameter("0.weight") is model[0].weight


@pytest.mark.parametrize(
    "how, message",
    [
        ("guided", "Branching cannot be captured by tracing with its example inputs"),
        ("export", "Branching cannot be captured through torch.export"),
    ],
)
def test_an_error_names_the_only_way_that_was_tried(how, message):
    with pytest.raises(CaptureError) as failure:
        fx.capture(Branching(), (torch.ones(2),), how=how)
    assert str(failure.value).splitlines()[0] == message
