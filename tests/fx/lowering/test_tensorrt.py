"""TensorRT as a backend: the programs that it accepts, the engines built ahead of time, and its refusals."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from building import Calling, body
from torch import Tensor, nn

import fx
from fx.errors import LoweringError
from fx.lowering import Converter, EmulatedEngine, TensorRT
from fx.lowering.tensorrt import build, library
from fx.lowering.tensorrt.library import find_library
from fx.lowering.tensorrt.network import TensorRTNetwork
from fx.lowering.tensorrt.predicates import converters
from fx.quantize import Choice, QuantizationScheme, prepare, reference
from model_zoo import get_model

HAS_NONE = find_library() is None
pytestmark = pytest.mark.skipif(HAS_NONE, reason="neither tensorrt nor tensorrt_rtx is installed")
builds_ahead = pytest.mark.skipif(
    HAS_NONE or not hasattr(find_library(), "ComputeCapability"),
    reason="tensorrt builds for the GPU in the machine only",
)
AHEAD = TensorRT(targets=("8.6",))
EMULATED = TensorRT(emulate=True)


def capture(name: str) -> tuple[nn.Module, fx.GraphModule, tuple[Tensor, ...]]:
    module = get_model(name).build().eval()
    return module, fx.symbolic_trace(module), get_model(name).example_inputs(batch=2)


def assert_same(lowered: Any, module: Any, *inputs: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(lowered(*inputs), module(*inputs), rtol=1e-4, atol=1e-5)


def model() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(F.relu(self.conv(x)), 2)
        return self.fc(x.view(x.size(0), -1))

    return Calling(forward, conv=nn.Conv2d(3, 4, 3), fc=nn.Linear(16, 2)).eval()


def net() -> fx.GraphModule:
    return fx.symbolic_trace(model())


IMAGES = torch.randn(2, 3, 8, 8)


class Keeping(TensorRT):
    """The backend, which keeps its networks."""

    __slots__ = ()
    networks: ClassVar[list[TensorRTNetwork]] = []

    def network(self, region: fx.GraphModule) -> TensorRTNetwork:
        self.networks.append(TensorRT.network(self, region))
        return self.networks[-1]


def network_of(program: fx.GraphModule, **options: Any) -> TensorRTNetwork:
    fx.lower(program, Keeping(emulate=True, **options), (IMAGES,))
    return Keeping.networks.pop()


# What it takes.


@pytest.mark.parametrize(
    "name",
    [
        *("resnet50", "learning_to_paint_actor", "learning_to_paint_renderer", "deep_recommender"),
        *("transformer_encoder", "unet", "gpt2", "vit", "bert", "dlrm", "learning_to_paint_critic"),
    ],
)
def test_a_paper_model_is_one_engine_without_fallback(name: str) -> None:
    model = get_model(name)
    with torch.device("meta"):  # weights without elements
        program = fx.symbolic_trace(model.build().eval())
    inputs = tuple(value.to("meta") for value in model.example_inputs(batch=1))
    coverage = fx.lower(program, TensorRT(), inputs, dry_run=True)
    assert coverage.refused == ()
    assert len(coverage.parts) == 1


SMALL = "mlp resnet_tiny deep_recommender_small learning_to_paint_actor_small learning_to_paint_renderer_small"
SMALL += " transformer_encoder_small unet_small gpt2_small vit_small bert_small llama_small dlrm_small"
SMALL += " learning_to_paint_critic_small"


@pytest.mark.parametrize("name", SMALL.split())
def test_the_network_of_a_model_equals_the_model(name: str) -> None:
    module, program, inputs = capture(name)
    lowered = fx.lower(program, EMULATED, inputs)
    assert [type(child) for child in lowered.children() if isinstance(child, EmulatedEngine)] == [EmulatedEngine]
    assert_same(lowered, module, *inputs)


@pytest.mark.parametrize("name", "two_heads shared_convnet".split())
def test_operations_that_engines_cannot_hold_stay_in_python(name: str) -> None:
    module, program, inputs = capture(name)
    lowered = fx.lower(program, EMULATED, inputs)
    coverage = lowered.meta["lowering"]
    assert coverage.parts and coverage.refused
    assert_same(lowered, module, *inputs)


def test_the_network_of_resnet50_equals_the_model() -> None:
    module = get_model("resnet50").build().eval()
    images = torch.randn(1, 3, 64, 64)
    lowered = fx.lower(fx.symbolic_trace(module), EMULATED, (images,))
    assert len(lowered.meta["lowering"].parts) == 1
    with torch.no_grad():
        torch.testing.assert_close(lowered(images), module(images), rtol=1e-4, atol=2e-4)  # batch norms are folded


@pytest.mark.parametrize(
    "function, reason",
    [
        (lambda x: x.double() * 2, "is float64, which engines do not support"),
        (lambda x: x[x > 0], "the shape of `%getitem` is not known: give example_inputs"),
        (lambda x: x[(x[0, 0, 0] > 0).nonzero()[0]], "has no converter for `torch.nonzero`"),
        (lambda x: x[:, (x[0, :2, 0, 0] * 0).long()] * 2, "its index depends on the elements of `%"),
        (lambda x: torch.cumprod(x, 0), "tensorrt has no converter for `torch.cumprod`"),
        (lambda x: x.scatter(1, (x > 9).long()[:, :1], x) * 2, "its index and its new elements differ in size"),
        (lambda x: (x * 2).var((0, 1, 2, 3), correction=2000), "it is of too few elements"),
        (lambda x: x % 0.3 * 2, "it rounds"),
        (lambda x: torch.einsum("...ij->...ji", x) * 2, "its equation leaves out indices"),
        (lambda x: F.interpolate(x, scale_factor=1.3) * 2, "its factor does not give whole sizes"),
        (lambda x: x[None].argmax(0), "TensorRT sorts only along the last four dimensions"),
        (lambda x: F.max_pool2d(x, 2, 2, return_indices=True)[0], "its return_indices is True, not False"),
        (lambda x: F.adaptive_max_pool2d(x, 3), "its windows are of different sizes"),
        (lambda x: F.dropout(x, 0.5, training=True), "draws"),
        (lambda x: x.add_(1), "writes to `%x`"),
        (lambda x: x.view(-1), "as a view of memory that"),
        (lambda x: F.max_pool2d(x, 3, 3, 1, ceil_mode=True), "where PyTorch leaves it out"),
        (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), "its mode is 'reflect', not 'constant'"),
        (lambda x: x @ x[0, 0, 0], "is not a floating-point matrix"),
        (lambda x: (x > 0) == (x < 1), "holds truth values"),
        (lambda x: F.conv_transpose2d(x, torch.ones(3, 1, 2, 2), stride=2, output_padding=1), "it pads the result"),
        (lambda x: F.conv_transpose2d(x, torch.ones(3, 1, 2, 2), stride=2, dilation=2), "does not combine stride"),
        (lambda x: (x > 0) + (x < 1), "engines do not add truth values"),
    ],
)
def test_a_refusal_says_why(function: Any, reason: str) -> None:
    coverage = fx.lower(fx.symbolic_trace(function), TensorRT(), (torch.randn(2, 3, 8, 8),), dry_run=True)
    assert any(reason in str(placement.reason) for placement in coverage.refused), str(coverage)


def test_without_shapes_nothing_is_taken() -> None:
    coverage = fx.lower(net(), TensorRT(), dry_run=True)
    assert coverage.parts == ()
    assert "the shape of `%x` is not known: give example_inputs" in str(coverage)


def test_small_regions_stay_in_python() -> None:
    program = fx.symbolic_trace(lambda x: torch.cumprod(torch.relu(x), 0))
    coverage = fx.lower(program, TensorRT(), (IMAGES,), dry_run=True)
    assert "its region has 1 operation that the backend is faster for, and needs 3" in str(coverage)
    assert len(fx.lower(program, TensorRT(), (IMAGES,), dry_run=True, min_size=1).parts) == 1


# Sizes.


def test_operations_that_depend_on_a_varying_size_stay_in_python() -> None:
    program = net()
    lowered = fx.lower(
        program, TensorRT(emulate=True, ranges={"x": {0: (1, 5), 2: (4, 8), 3: (8, 12)}}), (IMAGES,), min_size=2
    )
    assert "adaptive_avg_pool2d: its windows depend on a size that varies" in str(lowered.meta["lowering"])
    for size in ((2, 3, 8, 8), (1, 3, 4, 12)):
        assert_same(lowered, program, torch.randn(size))


@pytest.mark.parametrize(
    "name, ranges, sizes",
    [
        ("resnet_tiny", {"x": {0: (1, 8)}}, [(1, 3, 32, 32), (8, 3, 32, 32)]),
        ("unet_small", {"x": {0: (1, 8), 2: (16, 32), 3: (8, 32)}}, [(3, 3, 32, 8)]),
        ("learning_to_paint_renderer_small", {"x": {0: (1, 8)}}, [(1, 10), (7, 10)]),
    ],
)
def test_a_model_runs_on_sizes_that_vary(name: str, ranges: Any, sizes: list[tuple[int, ...]]) -> None:
    module, program, inputs = capture(name)
    lowered = fx.lower(program, TensorRT(emulate=True, ranges=ranges), inputs)
    assert lowered.meta["lowering"].refused == ()
    for size in sizes:
        assert_same(lowered, module, torch.rand(size))


def test_batch_and_length_of_an_encoder_vary() -> None:
    module, program, (tokens,) = capture("transformer_encoder_small")
    lowered = fx.lower(program, TensorRT(emulate=True, ranges={"tokens": {0: (1, 8), 1: (2, 12)}}), (tokens,))
    assert lowered.meta["lowering"].refused == ()
    for batch, length in ((1, 2), (8, 12), (3, 7)):
        assert_same(lowered, module, torch.randint(1, 50, (batch, length)))


def test_steps_through_a_size_that_varies_stay_in_python() -> None:
    program = fx.symbolic_trace(lambda x: torch.tanh(torch.exp(torch.relu(x)))[::2] * 2 + 1)
    lowered = fx.lower(program, TensorRT(emulate=True, ranges={"x": {0: (1, 9)}}), (torch.randn(4, 3),))
    assert "operator.getitem: it takes steps through a size that varies" in str(lowered.meta["lowering"])
    x = torch.randn(7, 3)
    torch.testing.assert_close(lowered(x), program(x))


def test_ranges_can_be_dimensions_of_torch_export() -> None:
    batch = torch.export.Dim("batch", min=2, max=4)
    lowered = fx.lower(net(), TensorRT(emulate=True, ranges={"x": {0: batch}}), (IMAGES,))
    binding = lowered.tensorrt_0.inputs[0]
    assert (binding.least, binding.typical, binding.most) == ((2, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8))


@pytest.mark.parametrize(
    "ranges, message",
    [
        ({"y": {0: (1, 2)}}, "there is no input 'y' whose sizes could vary\n  why    the inputs are x"),
        ({"x": {0: (3, 4)}}, "the sizes of dimension 0 of the input 'x' exclude the example"),
        ({"x": {0: 3}}, "the sizes of dimension 0 of the input 'x' are not a range"),
        ({"x": {0: (0, 2)}}, "no size of dimension 0 of the input 'x' is in its range"),
        ({"x": {1: (3, 4)}}, "the program does not run on inputs at an end of their ranges"),
        ({"x": {7: (3, 4)}}, "the sizes of dimension 7 of the input 'x' exclude the example"),
    ],
)
def test_ranges_that_make_no_sense_are_refused(ranges: Any, message: str) -> None:
    with pytest.raises(LoweringError, match=re.escape(message)):
        fx.lower(net(), TensorRT(ranges=ranges), (IMAGES,), dry_run=True)


def test_sizes_that_both_sides_of_a_boundary_need_are_requested_on_both() -> None:
    def halves(x: Tensor) -> Tensor:
        y = torch.relu(x * 2)
        count = y.size(0) * 2
        z = torch.cumprod(y.view(count, -1), 1).repeat(count, 1)
        return torch.tanh(torch.exp(z * 2)).view(count * count, -1)

    x = torch.randn(4, 6)
    program = fx.symbolic_trace(halves)
    lowered = fx.lower(program, TensorRT(emulate=True, ranges={"x": {0: (2, 8)}}), (x,), min_size=2)
    assert [part.nodes for part in lowered.meta["lowering"].parts] == [5, 7]
    assert body(lowered) == [
        "tensorrt_0 = self.tensorrt_0(x)",
        "getitem = tensorrt_0[0]",
        "getitem_1 = tensorrt_0[1]",
        "cumprod = torch.cumprod(getitem, 1)",
        "size_1 = getitem_1.size(dim = 0)",
        "mul_4 = size_1 * 2",
        "repeat = cumprod.repeat(repeats = (mul_4, 1))",
        "tensorrt_1 = self.tensorrt_1(repeat, getitem_1)",
        "return tensorrt_1",
    ]
    for value in (x, torch.randn(7, 6)):
        torch.testing.assert_close(lowered(value), program(value))


# Types.


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["resnet_tiny", "transformer_encoder_small"])
def test_engines_can_compute_in_fewer_digits(name: str, precision: Any) -> None:
    module, program, inputs = capture(name)
    lowered = fx.lower(program, TensorRT(emulate=True, precision=precision), inputs)
    expected = module(*inputs)
    result = lowered(*inputs)
    assert result.dtype is torch.float32
    assert not torch.equal(result, expected)
    torch.testing.assert_close(result, expected, rtol=0.1, atol={"float16": 0.02, "bfloat16": 0.15}[precision])


def test_programs_in_half_precision_stay_so() -> None:
    module = model().half()
    images = IMAGES.half()
    lowered = fx.lower(fx.symbolic_trace(module), EMULATED, (images,))
    assert {output.dtype for output in lowered.tensorrt_0.outputs} == {torch.float16}
    with torch.no_grad():
        torch.testing.assert_close(lowered(images), module(images), rtol=1e-2, atol=1e-3)


def quantize(name: str, symmetric: bool) -> tuple[fx.GraphModule, tuple[Tensor, ...]]:
    _, program, inputs = capture(name)
    prepared = prepare(program, QuantizationScheme(Choice(symmetric=symmetric)), example_inputs=inputs)
    with torch.no_grad():
        prepared(*inputs)
        return reference(prepared), inputs


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantized_program_is_one_engine_of_int8() -> None:
    quantized, inputs = quantize("resnet_tiny", symmetric=True)
    lowered = fx.lower(quantized, EMULATED, inputs)
    assert lowered.meta["lowering"].refused == ()
    assert {"QUANTIZE", "DEQUANTIZE"} < {*lowered.tensorrt_0.kinds}
    torch.testing.assert_close(lowered(*inputs), quantized(*inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_whole_numbers_that_int8_has_not_stay_in_python() -> None:
    quantized, inputs = quantize("mlp", symmetric=False)
    coverage = fx.lower(quantized, TensorRT(), inputs, dry_run=True)
    assert "TensorRT stores integers about zero: quantize with symmetric=True" in str(coverage)
    with pytest.warns(fx.LoweringWarning, match="TensorRT stores integers about zero"):
        lowered = fx.lower(quantized, EMULATED, inputs)
    torch.testing.assert_close(lowered(*inputs), quantized(*inputs))


# Engines ahead of time.


@builds_ahead
@pytest.mark.parametrize(
    "name, options",
    [
        ("resnet50", {}),
        ("learning_to_paint_actor_small", {"ranges": {"x": {0: (1, 96)}}}),
        ("learning_to_paint_renderer_small", {"precision": "float16"}),
        ("transformer_encoder_small", {"ranges": {"tokens": {0: (1, 8), 1: (2, 12)}}, "precision": "bfloat16"}),
        ("deep_recommender_small", {}),
    ],
)
def test_a_model_is_built_into_an_engine_without_a_gpu(name: str, options: Any) -> None:
    model = get_model(name)
    inputs = (torch.randn(1, 3, 64, 64),) if name == "resnet50" else model.example_inputs(batch=2)
    lowered = fx.lower(
        fx.symbolic_trace(model.build().eval()), TensorRT(targets=("8.6", "8.9", "SM120"), **options), inputs
    )
    (part,) = lowered.meta["lowering"].parts
    engine = lowered.tensorrt_0.engine
    assert engine.targets == ("8.6", "8.9", "SM120")
    assert len(engine.plan) > 10_000
    assert part.note is not None
    assert engine.digest in part.note
    assert re.search(r"built in \d+\.\d\d s by tensorrt", part.note)
    assert part.note in str(lowered.meta["lowering"])


@builds_ahead
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantized_model_is_built() -> None:
    quantized, inputs = quantize("mlp", symmetric=True)
    lowered = fx.lower(quantized, AHEAD, inputs)
    assert len(lowered.tensorrt_0.engine.plan) > 10_000


@builds_ahead
def test_the_configuration_follows_the_options() -> None:
    trt, network = library.library(), network_of(net(), ranges={"x": {0: (1, 4)}})
    exact = build._configuration(network, ("8.6", "8.9"), 1 << 20, False)
    assert not exact.get_flag(trt.BuilderFlag.TF32)
    assert exact.get_memory_pool_limit(trt.MemoryPoolType.WORKSPACE) == 1 << 20
    assert [exact.get_compute_capability(number).name for number in range(2)] == ["SM86", "SM89"]
    assert exact.num_optimization_profiles == 1
    assert build._configuration(network, ("8.6",), None, True).get_flag(trt.BuilderFlag.TF32)


@builds_ahead
def test_an_engine_is_of_the_same_bytes_each_time() -> None:
    program = net()
    first, second = (fx.lower(program, AHEAD, (IMAGES,)).tensorrt_0.engine.digest for _ in range(2))
    assert first == second


@builds_ahead
def test_an_engine_that_cannot_run_here_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    lowered = fx.lower(net(), AHEAD, (IMAGES,))
    with pytest.raises(LoweringError) as caught:
        lowered(IMAGES)
    assert str(caught.value).startswith(
        "there is no GPU here to run the engine on\n"
        "  why    it was built ahead of time for 8.6\n"
        "  try    save the program, and load it on a machine with such a GPU"
    )


# When there is none.


def test_a_machine_without_a_gpu_needs_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(LoweringError) as caught:
        fx.lower(net(), "tensorrt", (IMAGES,))
    assert str(caught.value) == (
        "the backend 'tensorrt' is not available here\n"
        "  why    there is no GPU here; TensorRT(targets=…) builds ahead of time\n"
        "  try    dry_run=True shows what it would take, without the backend"
    )
    assert "there is no GPU here" in str(fx.lower(net(), "tensorrt", (IMAGES,), dry_run=True))


@builds_ahead
def test_a_gpu_that_the_library_does_not_know_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    why = TensorRT().why_unavailable()
    assert why is not None
    assert why.startswith("the GPU here has compute capability 7.0; it knows SM75, SM80")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 6))
    assert TensorRT().why_unavailable() is None


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fx.lowering.tensorrt.find_library", lambda: None)
    assert "pip install tensorrt_rtx" in str(TensorRT(targets=("8.6",)).why_unavailable())
    monkeypatch.setattr(library, "find_library", lambda: None)
    with pytest.raises(LoweringError, match="there is no TensorRT on this machine"):
        library.library()


def test_a_dry_run_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fx.lowering.tensorrt.find_library", lambda: None)
    monkeypatch.setattr(library, "find_library", lambda: None)
    coverage = fx.lower(net(), TensorRT(), (IMAGES,), dry_run=True)
    assert coverage.node_share == 1
    assert "neither the package tensorrt nor tensorrt_rtx can be imported" in coverage.notes[0]


@builds_ahead
@pytest.mark.parametrize("target", ["7.0", "9.0", "SM42"])
def test_targets_that_the_library_does_not_know_are_refused(target: str) -> None:
    with pytest.raises(LoweringError) as caught:
        fx.lower(net(), TensorRT(targets=(target,)), (IMAGES,))
    assert f"builds no engines for compute capability {target!r}\n  why    it knows SM75, " in str(caught.value)


# Faults.


@builds_ahead
def test_an_engine_that_fails_to_build_names_the_operation_and_the_backends_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without TF32 and tensor cores there is no product of float32 matrices for 7.5."""
    with pytest.raises(LoweringError) as caught:
        fx.lower(net(), TensorRT(targets=("7.5",)), (IMAGES,))
    message = str(caught.value)
    assert message.startswith("TensorRT cannot build the engine\n")
    assert "FP32 GEMM is not supported" in message
    assert "cudaError 35" not in message


@builds_ahead
def test_a_region_that_fails_to_build_can_stay_in_python() -> None:
    program = net()
    with pytest.warns(fx.LoweringWarning, match="not built, TensorRT cannot build the engine"):
        lowered = fx.lower(program, TensorRT(targets=("7.5",)), (IMAGES,), on_failure="eager")
    (part,) = lowered.meta["lowering"].parts
    assert "FP32 GEMM is not supported" in str(part.failure)
    assert_same(lowered, program, IMAGES)


@builds_ahead
def test_a_builder_that_runs_out_of_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    network = TensorRTNetwork
    initialize = network.__init__

    class Builder:
        def __init__(self, builder: Any) -> None:
            self._builder = builder

        def __getattr__(self, name: str) -> Any:
            return getattr(self._builder, name)

        def build_serialized_network(self, definition: Any, configuration: Any) -> Any:
            raise MemoryError("std::bad_alloc")

    def make(self: TensorRTNetwork, *args: Any) -> None:
        initialize(self, *args)
        self.builder = Builder(self.builder)

    monkeypatch.setattr(network, "__init__", make)
    with pytest.raises(LoweringError, match=r"TensorRT cannot build the engine\n  why    MemoryError: std::bad_alloc"):
        fx.lower(net(), AHEAD, (IMAGES,))


@torch.library.custom_op("tests_tensorrt::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def twice_more(x: Tensor) -> Tensor:
    return torch.ops.tests_tensorrt.twice(torch.exp(torch.relu(x)))


@pytest.fixture
def custom(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Registers a converter for ``twice`` for one test."""
    target = torch.ops.tests_tensorrt.twice

    def register(build_it: Any) -> None:
        converters.replace(Converter(target, build_it))

    yield register
    converters.remove(target)


def test_a_user_adds_a_converter(custom: Any) -> None:
    kind = library.library().ElementWiseOperation.SUM
    custom(lambda network, x: network.add("elementwise", x, x, kind))
    x = torch.randn(2, 3)
    lowered = fx.lower(fx.symbolic_trace(twice_more), EMULATED, (x,))
    assert lowered.tensorrt_0.kinds == ["ACTIVATION", "UNARY", "ELEMENTWISE"]
    torch.testing.assert_close(lowered(x), twice_more(x))


def test_an_error_of_the_library_is_quoted(custom: Any) -> None:
    custom(lambda network, x: network.add("pooling_nd", x, library.library().PoolingType.MAX, (0, 0)))
    with pytest.raises(LoweringError) as caught:
        fx.lower(fx.symbolic_trace(twice_more), EMULATED, (torch.ones(2, 3, 4, 4),))
    message = str(caught.value)
    assert message.startswith("the converter of tensorrt for `%twice` failed\n")
    assert "add_pooling_nd refuses it: " in message
    assert "Parameter check failed" in message


def test_a_layer_without_a_shape_is_an_error_in_the_librarys_words(custom: Any) -> None:
    custom(lambda network, x: network.add("concatenation", [x, network.tensor(torch.ones(2, 5))], axis=0))
    with pytest.raises(LoweringError) as caught:
        fx.lower(fx.symbolic_trace(twice_more), EMULATED, (torch.ones(2, 3),))
    assert "must have the same dimensions" in str(caught.value)


def test_words_of_the_library_lead_to_the_operation() -> None:
    network = network_of(net())
    node = network.node_of("Error Code 10: could not find any implementation for node <fc:2>")
    assert node is not None and node.name == "fc"
    assert network.node_of("nothing known") is None


@builds_ahead
def test_the_failure_of_a_layer_has_the_users_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.Log, "words", lambda self: "no implementation for <conv>")
    with pytest.raises(LoweringError) as caught:
        fx.lower(net(), TensorRT(targets=("7.5",)), (IMAGES,))
    assert f"where  {__file__}:" in str(caught.value)
    assert "value  %conv = call_function[" in str(caught.value)
    assert "why    no implementation for <conv>" in str(caught.value)
