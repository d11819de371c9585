"""fx.lowering.onednn.packed_weights: kernels get the layouts that they want, under any number of threads."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fx
from fx.graph_module import GraphModule
from fx.lowering.onednn import OneDNN
from fx.lowering.onednn.modules import FusedConvolution, FusedLayer
from fx.lowering.onednn.packed_weights import PackedWeights, _is_same_layout
from pytest_fx.harness.evaluation import threads

pytestmark = pytest.mark.skipif(OneDNN().why_unavailable() is not None, reason=f"oneDNN: {OneDNN().why_unavailable()}")

SIZE = torch.Size((1, 256, 14, 14))


NETS: dict[str, tuple[Callable[[], nn.Module], torch.Size]] = {
    # with AVX-512, oneDNN wants another layout under 2 threads than under 1
    "convolution": (lambda: nn.Conv2d(256, 1024, 1), SIZE),
    "linear": (lambda: nn.Linear(2048, 512), torch.Size((8, 2048))),
}


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the layers whose kernel got another layout than it wants."""
    results: list[str] = []
    find = PackedWeights.find

    def check(self: PackedWeights, size: torch.Size, pack: Any) -> Tensor:
        packed = find(self, size, pack)
        if not _is_same_layout(packed, pack(self._weight.detach(), size)):
            results.append(f"{tuple(self._weight.shape)} for {tuple(size)} under {torch.get_num_threads()}")
        return packed

    monkeypatch.setattr(PackedWeights, "find", check)
    return results


def lowered_net(x: Tensor, kind: str = "convolution") -> tuple[nn.Module, GraphModule]:
    net = nn.Sequential(NETS[kind][0](), nn.ReLU())
    lowered = fx.lower(fx.symbolic_trace(net), "onednn", (x,))
    assert sum(isinstance(layer, FusedLayer) for layer in lowered.modules()) == 1
    return net, lowered


WAYS: dict[str, Callable[[GraphModule], GraphModule]] = {
    "itself": lambda program: program,
    "a copy": copy.deepcopy,
    "a pickle": lambda program: pickle.loads(pickle.dumps(program)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("made_under", [1, 2])
@pytest.mark.parametrize("kind", NETS)
def test_no_number_of_threads_makes_kernels_convert_weights(
    kind: str, made_under: int, way: str, conversions: list[str]
) -> None:
    x = torch.randn(NETS[kind][1])
    with threads(made_under):
        net, lowered = lowered_net(x, kind)
    for number in (1, 2, 1, 2):
        lowered = WAYS[way](lowered)
        with threads(number), torch.no_grad():
            torch.testing.assert_close(lowered(x), net(x), rtol=1e-4, atol=1e-5)
    assert conversions == []


def test_each_thread_that_calls_gets_the_layouts_for_its_own_number(conversions: list[str]) -> None:
    x = torch.randn(SIZE)
    net, lowered = lowered_net(x)
    with torch.no_grad():
        expected = net(x)
    wrong: list[float] = []

    def work(number: int) -> None:
        with threads(number), torch.no_grad():
            wrong.extend(number for _ in range(5) if not torch.allclose(lowered(x), expected, rtol=1e-4, atol=1e-5))

    with ThreadPoolExecutor(5) as callers:
        list(callers.map(work, (1, 2, 3, 1, 2)))
    assert wrong == [] and conversions == []


def test_a_size_that_comes_again_gets_a_layout_of_its_own(conversions: list[str]) -> None:
    x, other = torch.randn(SIZE), torch.randn(3, 256, 9, 9)
    net, lowered = lowered_net(x)
    with torch.no_grad():
        torch.testing.assert_close(lowered(other), net(other), rtol=1e-4, atol=1e-5)
        conversions.clear()  # which the first call may have needed
        for value in (other, x, other, x):
            torch.testing.assert_close(lowered(value), net(value), rtol=1e-4, atol=1e-5)
    assert conversions == []


# The same with layouts that differ on every machine.


class Packing:
    """Packs by recording the request, and reports a layout that depends on its ``kind``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: Callable[[int, torch.Size], int]) -> None:
        self.made: list[tuple[int, int]] = []
        monkeypatch.setattr("fx.lowering.onednn.packed_weights._is_same_layout", torch.equal)
        self._kind = kind

    def __call__(self, weight: Tensor, size: torch.Size) -> Tensor:
        self.made.append((torch.get_num_threads(), size[0]))
        return weight.new_full((1,), self._kind(torch.get_num_threads(), size))


def test_layouts_that_are_the_same_share_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    packing, packed = Packing(monkeypatch, lambda threads, size: threads > 2), PackedWeights(torch.zeros(3))
    results: list[Tensor] = []
    for number in (1, 2, 3, 1, 4):
        with threads(number):
            results.append(packed.find(SIZE, packing))
    assert results[0] is results[1] is results[3] and results[2] is results[4] and len(packed._copies) == 2
    assert packing.made == [(1, 1), (2, 1), (3, 1), (4, 1)]


def test_the_copies_for_the_last_two_numbers_of_threads_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    packing, packed = Packing(monkeypatch, lambda threads, size: threads), PackedWeights(torch.zeros(3))
    for number in (1, 2, 1, 3, 1, 3, 2):
        with threads(number):
            assert packed.find(SIZE, packing).tolist() == [number]
        assert len(packed._copies) <= 2
    assert [number for number, _ in packing.made] == [1, 2, 3, 2]


def test_sizes_that_come_once_are_not_packed_for_and_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    packing, packed = Packing(monkeypatch, lambda threads, size: size[0] % 7), PackedWeights(torch.zeros(3))
    for batch in range(1, 200):
        packed.find(torch.Size((batch, 2)), packing)
    assert [size for _, size in packing.made] == [1] and len(packed._uses) <= 32
    for batch in (200, 201, 200, 201, 200, 201):
        assert packed.find(torch.Size((batch, 2)), packing) is not None
    assert [size for _, size in packing.made] == [1, 200, 201] and len(packed._copies) == 2


def test_a_weight_that_was_written_to_is_packed_again_for_every_number_of_threads() -> None:
    layer = FusedConvolution(torch.randn(8, 4, 3, 3), None, (1, 1), (0, 0), (1, 1), 1)
    x = torch.randn(2, 4, 64, 64)
    for factor in (1, 2):
        layer.weight.mul_(factor)
        for number in (1, 2):
            with threads(number):
                torch.testing.assert_close(layer(x), layer._plain(x, None), rtol=1e-4, atol=1e-5)
    assert pickle.loads(pickle.dumps(layer))._packed is None and copy.copy(layer)._packed is None
