"""Scales and zero points are constants of the code, and part of the state all the same."""

from __future__ import annotations

import copy
import importlib
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.errors import QuantizationError
from fx.interop import from_torch, to_torch
from fx.passes import Canonicalize, FoldConstants
from fx.passes.split_module import split_module
from fx.quantize import Choice, QuantizationScheme, convert, dequantize, prepare, prepare_qat, reference
from tests.fx.quantize.step_check import calibrated

KEYS = [f"calibration.{name}" for name in ("scales", "zero_points", "program")]


class Net(nn.Module):
    """Layers, a sum, a join, a mean, zeros around integers, a table and a product of values."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3)
        self.third, self.fourth, self.last = nn.Conv2d(8, 8, 1), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = F.relu6(self.norm(self.first(x)))
        padded = F.pad(self.second(x), (1, 1, 1, 1))
        joined = torch.cat([x + self.third(padded), padded], 1)
        means = torch.sigmoid(self.fourth(joined.mean((2, 3))[:, :8] * 0.5))
        return self.last(means) + self.last(means.minimum(means * 0.5))


def model(seed):
    torch.manual_seed(seed)
    return Net().eval()


@pytest.fixture
def data():
    torch.manual_seed(0)
    return torch.randn(16, 3, 8, 8)


@pytest.fixture(params=[convert, reference])
def pair(request, data):
    """A program, and one with other weights and calibration data."""
    return [
        request.param(calibrated(model(seed), inputs))
        for seed, inputs in ((1, data), (2, torch.rand(8, 3, 8, 8) * 0.3 - 0.1))
    ]


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * 2


def saved(program, folder):
    fx.save(program, folder / "program.fx")
    return fx.load(folder / "program.fx")


def split(program):
    count = iter(range(1000))
    return split_module(program, None, lambda node: int(next(count) > 12))


def in_folder(program, folder):
    program.to_folder(folder / folder.name, "Program")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        return importlib.import_module(folder.name).Program()


FORMS = {
    "itself": lambda program, folder: program,
    "a copy": lambda program, folder: copy.deepcopy(program),
    "a pickle": lambda program, folder: pickle.loads(pickle.dumps(program)),
    "a file": saved,
    "a capture": lambda program, folder: fx.symbolic_trace(program),
    "around it": lambda program, folder: Wrapped(program),
    "its canonical form": lambda program, folder: Canonicalize()(program),
    "its parts": lambda program, folder: split(program),
    "through torch.fx": lambda program, folder: from_torch(to_torch(program)),
}


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_a_state_takes_its_scales_and_zero_points_along(form, pair, data, tmp_path):
    source, target = (FORMS[form](program, tmp_path) for program in pair)
    expected = source(data)
    assert not torch.allclose(target(data), expected, atol=0.1)
    assert str(target.load_state_dict(source.state_dict())) == "<All keys matched successfully>"
    assert torch.equal(target(data), expected)
    assert all(torch.equal(value, target.state_dict()[name]) for name, value in source.state_dict().items())


@torch.no_grad()
def test_a_state_is_saved_by_torch_and_by_safetensors(pair, data):
    from_bytes = pytest.importorskip("safetensors.torch")
    source, target = pair
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    for state in (torch.load(file, weights_only=True), from_bytes.load(from_bytes.save(source.state_dict()))):
        again = copy.deepcopy(target)
        again.load_state_dict(state, assign=True)
        assert torch.equal(again(data), source(data))
        assert torch.equal(pickle.loads(pickle.dumps(again))(data), source(data))


@torch.no_grad()
def test_a_program_that_was_trained_takes_the_state_of_another(data):
    trained = [prepare_qat(fx.symbolic_trace(model(seed))).train() for seed in (1, 2)]
    for program, inputs in zip(trained, (data, data * 0.1), strict=True):
        program(inputs)
    source, target = (convert(program.eval()) for program in trained)
    target.load_state_dict(source.state_dict())
    assert torch.equal(target(data), source(data))


def test_the_state_of_another_program_is_refused_and_changes_nothing(pair, data):
    _, program = pair
    sequence = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3))
    before, code = copy.deepcopy(program.state_dict()), program.code
    with pytest.raises(QuantizationError, match="the state is that of another quantized program") as error:
        program.load_state_dict({**before, **convert(calibrated(sequence, data)).state_dict()}, strict=False)
    assert "calibration.program" in str(error.value) and "try" in str(error.value)
    assert program.code == code
    assert all(torch.equal(value, program.state_dict()[name]) for name, value in before.items())


def test_another_constant_is_another_program(data):
    programs = [
        convert(calibrated(nn.Sequential(nn.Conv2d(3, 3, 3, stride=stride, padding=1), nn.Hardtanh(-1, high)), data))
        for stride, high in ((1, 1.0), (2, 1.0), (1, 2.0))
    ]
    for target in programs[1:]:
        with pytest.raises(QuantizationError, match="another quantized program"):
            programs[0].load_state_dict(target.state_dict())


@torch.no_grad()
def test_weights_that_were_folded_belong_to_the_program_and_not_to_its_state(data):
    fold = FoldConstants(freeze=True)
    target, same, others = (fold(reference(calibrated(model(seed), data))) for seed in (1, 1, 2))
    assert str(target.load_state_dict(same.state_dict())) == "<All keys matched successfully>"
    with pytest.raises(QuantizationError, match="another quantized program"):
        target.load_state_dict(others.state_dict())


def test_a_state_without_scales_lacks_keys(pair):
    source, target = pair
    state = {name: value for name, value in source.state_dict().items() if name not in KEYS}
    with pytest.raises(RuntimeError, match=r'Missing key.*"calibration\.scales"'):
        target.load_state_dict(state)
    assert target.load_state_dict(state, strict=False).missing_keys == KEYS


@pytest.mark.parametrize(
    "name, value",
    [
        ("scales", lambda scales: scales[1:]),
        ("scales", lambda scales: -scales),
        ("scales", lambda scales: scales * float("nan")),
        ("zero_points", lambda zeros: zeros + 256),
    ],
)
def test_a_damaged_state_is_refused(name, value, pair):
    source, target = pair
    state = source.state_dict()
    state[f"calibration.{name}"] = value(state[f"calibration.{name}"])
    with pytest.raises(QuantizationError, match="scales are positive, and zero points are integers of 0 to 255"):
        target.load_state_dict(state)


FIXED = {"a package": in_folder, "a program of torch.fx": lambda program, folder: to_torch(program)}


@pytest.mark.parametrize("form", FIXED)
@torch.no_grad()
def test_code_that_does_not_change_refuses_other_scales(form, pair, data, tmp_path):
    source, target = pair
    fixed = copy.deepcopy(FIXED[form](source, tmp_path))
    for _ in range(2):
        fixed.load_state_dict(source.state_dict())
        source.load_state_dict(fixed.state_dict())
        assert torch.equal(fixed(data), source(data))
    with pytest.raises(QuantizationError, match="other scales and zero points than the code of this module"):
        fixed.load_state_dict(target.state_dict())
    target.load_state_dict(fixed.state_dict())
    assert torch.equal(target(data), source(data))
    assert set(KEYS) < fx.symbolic_trace(fixed).state_dict().keys()


@torch.no_grad()
def test_a_capture_around_a_program_has_its_state_under_its_names(pair, data, tmp_path):
    source, target = (fx.symbolic_trace(Wrapped(program)) for program in pair)
    assert set(source.state_dict()) == set(Wrapped(pair[0]).state_dict())
    for form in (lambda program: program, Canonicalize(), copy.deepcopy, lambda program: saved(program, tmp_path)):
        program = form(source)
        assert str(program.load_state_dict(Wrapped(pair[0]).state_dict())) == "<All keys matched successfully>"
        with pytest.raises(QuantizationError, match="other scales and zero points than the code"):
            program.load_state_dict(target.state_dict())
    around = Wrapped(pair[1])
    around.load_state_dict(source.state_dict())
    assert torch.equal(around(data), source(data))


def test_numbers_that_a_model_itself_is_written_with_are_no_state():
    class Given(nn.Module):
        def forward(self, x):
            return dequantize(x, 0.5, 3)

    assert list(fx.symbolic_trace(Given()).state_dict()) == []


def test_a_program_without_scales_has_none_in_its_state(data):
    scheme = QuantizationScheme(Choice("dynamic"))
    program = convert(prepare(fx.symbolic_trace(nn.Sequential(nn.Flatten(), nn.Linear(192, 4))), scheme, (data,)))
    assert list(program.state_dict()) == ["1.weight", "1.weight_scale", "1.bias"]


@torch.no_grad()
def test_torch_compile_uses_a_loaded_state(data):
    source, target = (convert(calibrated(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), data * s)) for s in (1, 0.1))
    compiled = torch.compile(target, backend="eager")
    assert not torch.allclose(compiled(data), source(data), atol=0.1)
    target.load_state_dict(source.state_dict())
    assert torch.allclose(compiled(data), source(data), atol=1e-5)
