"""Programs that were made elsewhere: other sizes of inputs, buffers after a call, and gradients."""

import copy

import pytest
import torch
from torch import nn

import fx
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.harness.variants import other_sizes, with_other_size
from pytest_fx.laws import affordable, broken_laws, choose_laws


class Attention(nn.Module):
    """Takes sequences of any length, with a mask of two equal sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.calls.add_(x.detach().abs().mean())
        y = self.inner(x)
        return (y @ y.transpose(1, 2) + mask).softmax(-1) @ y


class Truncated(Attention):
    """Made for sequences of eight."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.cat([super().forward(x[:, :8], mask[:8, :8]), torch.zeros_like(x[:, 8:])], 1)


class Refusing(Attention):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if len(mask) != 8:
            raise ValueError("made for eight")
        return super().forward(x, mask)


class Uncounted(Attention):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        before = self.calls.clone()
        y = super().forward(x, mask)
        self.calls.copy_(before)
        return y


class CountedTwice(Attention):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.calls.add_(x.detach().abs().mean())
        return super().forward(x, mask)


class Detached(Attention):
    """Computes the same numbers, and other gradients."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.calls.add_(x.detach().abs().mean())
        y = self.inner(x)
        return (y @ y.detach().transpose(1, 2) + mask).softmax(-1) @ y


class WithoutGradients(Attention):
    @torch.no_grad()
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return super().forward(x, mask)


class Wrapped(nn.Module):
    """Has other names."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.attention(x, mask)


def subject() -> Subject:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    x, mask = torch.randn(2, 8, 4, generator=generator), torch.randn(8, 8, generator=generator)
    return Subject("attention", Attention(), Arguments((x, mask)).for_input_set)


def laws_broken_by(make) -> list[str]:
    judged = subject()
    program = make() if isinstance(make, type) else make(judged)
    if isinstance(make, type):
        inner = program.attention if isinstance(program, Wrapped) else program
        inner.load_state_dict(judged.fresh().state_dict())
    pass_run = PassRun.given(judged, program.eval())
    return [law.law for law in broken_laws(affordable(choose_laws(), pass_run), pass_run)]


@pytest.mark.parametrize(
    "make, laws",
    [
        (Truncated, ["other sizes"]),
        (Uncounted, ["state"]),
        (CountedTwice, ["state"]),
        (Detached, ["gradients"]),
    ],
)
def test_a_wrong_program_breaks_the_law(make, laws):
    assert laws_broken_by(make) == laws


@pytest.mark.parametrize("make", [Attention, Refusing, WithoutGradients, Wrapped, Subject.capture, Subject.fresh])
def test_a_right_program_breaks_none(make):
    assert laws_broken_by(make) == []


def test_a_program_with_other_initial_buffers_breaks_no_law():
    judged = subject()
    program = judged.fresh()
    program(*judged.arguments().copies().args)
    pass_run = PassRun.given(judged, program)
    assert not broken_laws(affordable(choose_laws(), pass_run), pass_run)


def test_a_program_that_a_pass_made_before_may_have_folded_parameters():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
            self.norm.running_mean += 0.3

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.norm(self.conv(x)))

    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    judged = Subject("block", Block(), lambda number: Arguments((images * (1 - number / 100),)))
    program = fx.passes.FuseConvBN()(copy.deepcopy(judged.capture()))
    pass_run = PassRun.given(judged, program)
    assert not broken_laws(affordable(choose_laws(), pass_run), pass_run)


def test_sizes_change_along_a_dimension_and_in_every_other_place():
    arguments = Arguments((torch.arange(16).reshape(2, 8),), {"mask": torch.ones(8, 8)})
    assert other_sizes(arguments, longer=False) == [
        "inputs of size 4 in dimension 1 of input[0]",
        "inputs of size 4 in dimension 1 of input['mask']",
        "inputs of size 4 in dimension 1",
        "inputs of size 4 in place of 8",
    ]
    alone = with_other_size(arguments, "inputs of size 4 in dimension 1 of input['mask']")
    assert [list(tensor.shape) for tensor in alone.tensors] == [[2, 8], [8, 4]]
    along = with_other_size(arguments, "inputs of size 4 in dimension 1")
    assert [list(tensor.shape) for tensor in along.tensors] == [[2, 4], [8, 4]]
    everywhere = with_other_size(arguments, "inputs of size 16 in place of 8")
    assert [list(tensor.shape) for tensor in everywhere.tensors] == [[2, 16], [16, 16]]
    assert everywhere.tensors[0][0].tolist() == [*range(8), *range(8)]
    assert other_sizes(Arguments((torch.ones(6),))) == [
        "inputs of size 3 in dimension 0",
        "inputs of size 12 in dimension 0",
    ]
    assert other_sizes(Arguments((torch.tensor(1.0), 3))) == []
