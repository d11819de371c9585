"""Engines of TensorRT on a GPU: the numbers are those of PyTorch, and the host does not wait."""

import copy
import pickle

import pytest
import torch

import fx
from fx.lowering import EngineCache, TensorRT
from model_zoo import get_model

why = TensorRT().why_unavailable()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why is not None, reason=f"TensorRT: {why}")]


def lowered(name, batch=2, **options):
    model = get_model(name)
    module = model.build().eval().cuda()
    inputs = tuple(value.cuda() for value in model.example_inputs(batch=batch))
    return module, fx.lower(fx.symbolic_trace(module), TensorRT(**options), inputs), inputs


@pytest.mark.parametrize(
    "name",
    [
        *("resnet50", "learning_to_paint_actor", "learning_to_paint_renderer", "deep_recommender"),
        *("transformer_encoder", "unet_small", "dlrm_small"),
    ],
)
@torch.no_grad()
def test_engines_equal_the_model(name):
    module, program, inputs = lowered(name)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.testing.assert_close(program(*inputs), module(*inputs), rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_an_engine_in_half_precision_is_near():
    module, program, inputs = lowered("resnet_tiny", precision="float16")
    torch.testing.assert_close(program(*inputs), module(*inputs), rtol=0.05, atol=0.02)


@torch.no_grad()
def test_an_engine_takes_batches_in_its_range():
    module, program, _ = lowered("resnet_tiny", ranges={"x": {0: (1, 8)}})
    for batch in (1, 5, 8):
        images = torch.randn(batch, 3, 32, 32, device="cuda")
        torch.testing.assert_close(program(images), module(images), rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_engines_run_on_several_streams_and_copies():
    module, program, inputs = lowered("resnet_tiny")
    expected = module(*inputs)
    programs = [program, copy.deepcopy(program), pickle.loads(pickle.dumps(program))]
    results = []
    for candidate in programs * 3:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results.append(candidate(*inputs))
    torch.cuda.synchronize()
    for result in results:
        torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_a_call_does_not_wait_for_the_device():
    _, program, inputs = lowered("resnet50", batch=32)
    program(*inputs)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        program(*inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@torch.no_grad()
def test_a_call_is_captured_in_a_cuda_graph():
    module, program, inputs = lowered("resnet_tiny")
    program(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = program(*inputs)
    inputs[0].normal_()
    graph.replay()
    torch.testing.assert_close(result, module(*inputs), rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_an_engine_from_the_cache_runs(tmp_path):
    for _ in range(2):
        module, program, inputs = lowered("resnet_tiny", cache=EngineCache(tmp_path))
        torch.testing.assert_close(program(*inputs), module(*inputs), rtol=1e-3, atol=1e-4)
    assert len(list(tmp_path.iterdir())) == 1
