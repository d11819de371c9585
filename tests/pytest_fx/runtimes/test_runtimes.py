"""Converted models are loaded, called as the original is, and judged by the laws that need no graph."""

import warnings
from pathlib import Path

import pytest
import torch
from converted_models import Head, RoughHead, exported_model, head, imported, inputs, onnx_model, openvino_model
from torch import nn

from fx.passes import approximate
from pytest_fx import ConversionError, LawViolation, assert_equal_to_eager
from pytest_fx.errors import CoarseVerdict
from pytest_fx.harness.structure import leaves
from pytest_fx.runtimes import TABLE, ConvertedProgram, Port, Session, loaded, runtime_of


@pytest.fixture
def onnx_file(tmp_path):
    """The path of an ONNX file of the head."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    path = tmp_path / "head.onnx"
    onnx.save(onnx_model(head()), path)
    return path


def test_each_runtime_says_what_it_takes_and_recognizes_its_files():
    for runtime in TABLE:
        assert runtime.takes
        for suffix in runtime.suffixes:
            assert runtime_of(f"models/net{suffix}") is runtime and runtime_of(Path(f"net{suffix}")) is runtime
    for other in ("fuse-conv-bn", "mine.passes:fuse", nn.ReLU(), torch.relu, 3):
        assert runtime_of(other) is None


def test_an_onnx_file_is_judged_in_each_form_that_it_has(onnx_file):
    import onnx
    import onnxruntime

    model = onnx.load(onnx_file)
    session = onnxruntime.InferenceSession(onnx_file, providers=["CPUExecutionProvider"])
    for form in (onnx_file, str(onnx_file), onnx_file.read_bytes(), model, session):
        comparison = assert_equal_to_eager(head(), form, inputs())
        assert 0 < comparison.largest_error() < 1e-6


def test_inputs_are_matched_by_name_in_any_order_and_else_by_position(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    x, scale = inputs()
    assert_equal_to_eager(head(), onnx_model(head()), {"scale": scale, "x": x})
    assert_equal_to_eager(head(), onnx_model(head(), names=("input.1", "input.2")), (x, scale))
    program = loaded(onnx_model(head(), names=("scale", "x")))  # as wrongly named as can be
    with pytest.raises(ConversionError, match=r"scale float32 .*, 6.*, and the model is called with float32 .5, 1"):
        assert_equal_to_eager(head(), program, (x, scale))


def test_a_rounded_onnx_model_breaks_the_contract_and_the_line_is_told():
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    with pytest.raises(LawViolation) as raised:
        assert_equal_to_eager(head(RoughHead), onnx_model(head()), inputs())
    lines = str(raised.value).splitlines()
    assert lines[0] == "law 'contract': ModelProto changes what RoughHead computes"
    place = lines.index("where ModelProto differs inside, by 4 of its values:")
    assert lines[place + 1].startswith("  right    %first") and "hidden = " in lines[place + 2]
    assert lines[place + 3].startswith("  differs  %hardtanh") and "hardtanh(self.first(x))" in lines[place + 4]
    assert lines[-1] == "  in it    from 'hidden' on, of the operation Tanh"


def test_an_openvino_model_is_judged_in_memory_and_as_a_file(tmp_path):
    openvino = pytest.importorskip("openvino")
    model = openvino_model(head())
    assert_equal_to_eager(head(), model, inputs())
    openvino.save_model(model, tmp_path / "head.xml", compress_to_fp16=False)
    assert_equal_to_eager(head(), tmp_path / "head.xml", inputs())
    exact = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    assert_equal_to_eager(head(), exact, inputs())


def test_an_openvino_model_that_computes_roughly_is_wrong_and_one_may_promise_less():
    openvino = pytest.importorskip("openvino")
    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("OpenVINO computes in float32 on a processor without bfloat16")
    rough = openvino.Core().compile_model(openvino_model(head()), "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})
    with pytest.raises(LawViolation, match=r"changes what Head computes[\s\S]*OpenVINO shows no values inside of"):
        assert_equal_to_eager(head(), rough, inputs())
    assert_equal_to_eager(head(), rough, inputs(), contract=approximate(sqnr_db=30))


def test_where_an_openvino_model_differs_is_told_by_the_users_line():
    pytest.importorskip("openvino")
    with pytest.raises(LawViolation, match=r"differs  %tanh[\s\S]*in Head.forward:  hidden = torch.tanh"):
        assert_equal_to_eager(head(), openvino_model(head(RoughHead)), inputs())


def test_an_exported_program_is_judged_in_memory_and_as_a_file(tmp_path):
    exported = torch.export.export(head(), inputs())
    assert_equal_to_eager(head(), exported, inputs())
    torch.export.save(exported, tmp_path / "head.pt2")
    assert_equal_to_eager(head(), tmp_path / "head.pt2", inputs())
    with pytest.raises(LawViolation, match="law 'contract'"):
        assert_equal_to_eager(head(RoughHead), tmp_path / "head.pt2", inputs())


def test_a_scripted_module_is_judged_in_memory_and_as_a_file(tmp_path):
    layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(layers)
        torch.jit.save(scripted, tmp_path / "layers.pt")
    assert_equal_to_eager(layers, scripted, torch.randn(3, 4))
    assert_equal_to_eager(layers, tmp_path / "layers.pt", torch.randn(3, 4))
    with pytest.raises(LawViolation, match="law 'contract'"):
        assert_equal_to_eager(nn.Sequential(layers[0], nn.ReLU()).eval(), tmp_path / "layers.pt", torch.randn(3, 4))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_transform_may_script_the_module_that_it_is_given():
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    assert_equal_to_eager(layers, torch.jit.script, torch.randn(2, 3, 8, 8))


def test_a_compiled_module_and_any_other_module_are_called_as_they_are():
    assert_equal_to_eager(head(), torch.compile(head(), backend="eager"), inputs())
    assert_equal_to_eager(head(), head(), inputs(), contract="exact")


def test_a_transform_may_return_any_form(tmp_path):
    pytest.importorskip("openvino")

    def to_openvino(module: nn.Module):
        return openvino_model(module)

    def to_exported(module: nn.Module):
        return exported_model(module)

    for transform in (to_openvino, to_exported):
        assert_equal_to_eager(head(), transform, inputs())


def test_a_transform_for_one_size_says_so_and_a_given_program_need_not():
    def to_five_samples(module: nn.Module):
        return torch.export.export(module, inputs())

    with pytest.raises(LawViolation, match="law 'batch sizes': to-five-samples makes Head on inputs of batch size 1 r"):
        assert_equal_to_eager(head(), to_five_samples, inputs())
    assert_equal_to_eager(head(), to_five_samples, inputs(), changes=("sizes",))
    assert_equal_to_eager(head(), to_five_samples(head()), inputs())  # given, it may be made for five


class TorchSession(Session):
    """A runtime that computes with torch, and shows no values inside."""

    runtime, name = "torch", "rough"

    def __init__(self, module):
        self._module = module
        self.inputs = tuple(Port((name,), torch.float32, None) for name in ("x", "scale"))
        self.outputs = tuple(Port((str(index),), torch.float32, None) for index, _ in enumerate(self.run(inputs())))

    def run(self, inputs):
        return [leaf for _, leaf in leaves(self._module(*inputs)) if leaf is not None]


def test_a_transform_to_a_runtime_that_shows_nothing_is_located_by_cuts():
    def roughly(module: nn.Module):
        exported = exported_model(module)
        for node in exported.graph.find_nodes(op="call_function", target=torch.ops.aten.tanh.default):
            node.target = torch.ops.aten.hardtanh.default
        exported.graph_module.recompile()
        return ConvertedProgram(TorchSession(exported.module()))

    with pytest.raises(LawViolation) as raised:
        assert_equal_to_eager(head(), roughly, inputs())
    *_, what, node, line = str(raised.value).splitlines()
    assert what == "roughly is right on the model up to this node, and wrong with it (3 parts tried):"
    assert node.startswith("  node   %tanh = ") and line.endswith("hidden = torch.tanh(self.first(x))")


@pytest.mark.thorough
def test_a_transform_to_a_compiled_openvino_model_is_located_by_cuts():
    openvino = pytest.importorskip("openvino")

    def roughly(module: nn.Module):
        exported = torch.export.export(module, inputs())
        for node in exported.graph.find_nodes(op="call_function", target=torch.ops.aten.tanh.default):
            node.target = torch.ops.aten.hardtanh.default
        exported.graph_module.recompile()
        return openvino.Core().compile_model(imported(exported), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    with pytest.raises(LawViolation, match=r"right on the model up to this node, and wrong with it \(\d") as raised:
        assert_equal_to_eager(head(), roughly, inputs())
    assert "  node   %tanh = " in str(raised.value) and "hidden = torch.tanh(self.first(x))" in str(raised.value)


def test_laws_on_gradients_and_memory_do_not_apply_to_another_runtime():
    pytest.importorskip("openvino")
    from pytest_fx.harness.evaluation import Arguments
    from pytest_fx.harness.pass_run import PassRun
    from pytest_fx.harness.subject import Subject
    from pytest_fx.laws import laws_not_asked

    subject = Subject("head", head(), lambda input_set: Arguments(inputs()))
    reasons = laws_not_asked(PassRun.given(subject, loaded(openvino_model(head()))))
    assert reasons["gradients"] == "its runtime computes no gradients"
    assert reasons["aliasing"] == "its runtime has memory of its own"


def test_a_file_of_another_model_is_told_by_its_inputs_or_outputs(onnx_file):
    with pytest.raises(ConversionError, match=r"head.onnx is not converted from this model, or for other inputs") as it:
        assert_equal_to_eager(nn.Linear(6, 3), onnx_file, torch.ones(5, 6))
    assert "it takes x float32 [?, 6], scale float32 [?, 1], and the model is called with 1 tensor(s)" in str(it.value)

    class OneOutput(Head):
        def forward(self, x, scale):
            return super().forward(x, scale)["logits"]

    with pytest.raises(ConversionError, match=r"it returns logits float32 .*, hidden .*, and the model 1 value"):
        assert_equal_to_eager(head(OneOutput), onnx_file, inputs())
    with pytest.raises(ConversionError, match=r"it takes x float32 .*, and the model is called with float64 \[5, 6\]"):
        assert_equal_to_eager(head().double(), onnx_file, tuple(value.double() for value in inputs()))


@pytest.mark.parametrize(
    "name, package, runtime",
    [
        ("net.onnx", "onnxruntime", "ONNX Runtime"),
        ("net.xml", "openvino", "OpenVINO"),
        ("net.pt2", "torch", "torch.export"),
        ("net.pt", "torch", "TorchScript"),
    ],
)
def test_a_file_of_another_kind_is_refused_in_one_sentence(tmp_path, name, package, runtime):
    pytest.importorskip(package)
    (tmp_path / name).write_bytes(b"not a model at all")
    with pytest.raises(ConversionError, match=rf"^{runtime} cannot read {name}\n  why "):
        loaded(tmp_path / name)


def save_onnx(path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    weights = {"save_as_external_data": True, "location": "weights", "size_threshold": 0}
    onnx.save(onnx_model(head()), path, **(weights if path.name == "apart.onnx" else {}))


def save_openvino(path):
    pytest.importorskip("openvino").save_model(openvino_model(head()), path, compress_to_fp16=False)


def save_exported(path):
    torch.export.save(exported_model(head()), path)


@pytest.mark.parametrize(
    "save, name, cut",
    [
        (save_onnx, "net.onnx", "net.onnx"),
        (save_onnx, "apart.onnx", "weights"),
        (save_openvino, "net.xml", "net.xml"),
        (save_openvino, "net.xml", "net.bin"),
        (save_exported, "net.pt2", "net.pt2"),
    ],
)
@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_truncated_file_is_refused_in_one_sentence(tmp_path, save, name, cut, share):
    save(tmp_path / name)
    whole = (tmp_path / cut).read_bytes()
    (tmp_path / cut).write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(
        ConversionError, match=rf"cannot read {name}\n  why .*\n  try    the file may be cut off, or of an"
    ):
        assert_equal_to_eager(head(), tmp_path / name, inputs())


def test_a_missing_file_and_a_missing_runtime_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ConversionError, match=r"there is no file .*net.onnx\n  why    a name with .onnx is that of a"):
        loaded(tmp_path / "net.onnx")
    (tmp_path / "net.engine").write_bytes(b"")
    monkeypatch.setattr("pytest_fx.runtimes.tensorrt_session.find_library", lambda: None)
    with pytest.raises(ConversionError, match=r"TensorRT cannot be used here\n  why    neither the package tensorrt "):
        loaded(tmp_path / "net.engine")
    (tmp_path / "net.onnx").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(ConversionError, match=r"ONNX Runtime cannot be used here[\s\S]*pip install onnxruntime"):
        loaded(tmp_path / "net.onnx")
    with pytest.raises(ConversionError, match="no runtime takes 3"):
        loaded(3)


def test_a_program_that_takes_none_of_the_inputs_is_not_judged():
    class Refusing(nn.Module):
        def forward(self, x, scale):
            raise ValueError("never")

    with pytest.raises((LawViolation, CoarseVerdict)):
        assert_equal_to_eager(head(), Refusing(), inputs())


def test_a_loaded_session_alone_returns_a_tensor_or_a_tuple(onnx_file):
    program = loaded(onnx_file)
    assert isinstance(program, ConvertedProgram)
    logits, hidden = program(*inputs())
    assert logits.shape == (5, 3) and hidden.shape == (5, 8)
    with pytest.raises(ConversionError, match=r"head.onnx does not take these inputs: it takes x float32"):
        program(*(value.half() for value in inputs()))
