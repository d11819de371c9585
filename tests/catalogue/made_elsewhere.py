"""Programs that no pass made of a capture, in float32 alone: functions of a model that return another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.subject import Subject

from .rows import Case, right, wrong

_BOUND = "the bound in float32"


def convolutions(count: int, channels: int) -> list[nn.Module]:
    """Convolutions of images, each with a batch norm whose variance is small, and a ReLU."""
    layers: list[nn.Module] = []
    for inputs in (3, *[channels] * (count - 1)):
        norm = nn.BatchNorm2d(channels)
        norm.running_var.uniform_(0.01, 0.1)
        norm.running_mean.normal_()
        layers += [nn.Conv2d(inputs, channels, 3, padding=1), norm, nn.ReLU()]
    return layers


def deep() -> Case:
    torch.manual_seed(0)
    module = nn.Sequential(*convolutions(3, 8), nn.Flatten(), nn.Linear(8 * 64, 40)).eval()
    return Case(module, (torch.randn(2, 3, 8, 8),), torch.float32)


def _changed(change: Callable[[Any], Any], name: str, says: str) -> Any:
    def make(module: nn.Module) -> nn.Module:
        with torch.no_grad():
            change(module)
        return module

    make.__name__, make.__doc__ = name, f"A program made elsewhere, {says}."
    return make


def _fold_without_eps(module: Any) -> None:
    conv, norm = module[0], module[1]
    factor = norm.weight / norm.running_var.sqrt()
    conv.weight.mul_(factor.view(-1, 1, 1, 1))
    conv.bias.sub_(norm.running_mean).mul_(factor).add_(norm.bias)
    module[1] = nn.Identity()


def _halve_once(module: Any) -> None:
    module[3].register_forward_pre_hook(lambda layer, given: (given[0].bfloat16().float(),))


def _fold_all(module: Any) -> None:
    for place in (0, 3, 6):
        module[place] = nn.utils.fuse_conv_bn_eval(module[place], module[place + 1])
        module[place + 1] = nn.Identity()


for _change, _name, _says in (
    (lambda made: [parameter.mul_(1.001) for parameter in made[-1].parameters()], "scaled", "with outputs times 1.001"),
    (lambda made: setattr(made[1], "eps", 1e-3), "with_another_eps", "with another eps in one batch norm"),
    (_fold_without_eps, "folded_without_eps", "with a batch norm folded without its eps"),
    (_halve_once, "rounded_once", "with one value rounded to bfloat16 on its way"),
):
    wrong(_BOUND, "contract", on=deep, programs=0, made_elsewhere=True)(_changed(_change, _name, _says))
for _change, _name, _says in (
    (lambda made: made.to(memory_format=torch.channels_last), "in_channels_last", "in channels last"),
    (_fold_all, "all_folded", "with its batch norms folded"),
):
    right(deep, kind=_BOUND, programs=0, made_elsewhere=True)(_changed(_change, _name, _says))


class Detector(nn.Module):
    """Boxes behind a threshold that one score meets but for rounding; eager's own is on one side or the other."""

    def forward(self, boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        chosen = (scores * 3.0 / 3.0 - 0.5).mul(1e6).round().ge(0)
        return torch.where(chosen[:, None], boxes, torch.zeros_like(boxes))


class OtherDetector(nn.Module):
    def __init__(self, is_wrong: bool) -> None:
        super().__init__()
        self.is_wrong = is_wrong

    def forward(self, boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        chosen = torch.where((scores - 0.5).mul(1e6).round().ge(0)[:, None], boxes, torch.zeros_like(boxes))
        return torch.cat([chosen[:9], chosen[9:10] + 187.0, chosen[10:]]) if self.is_wrong else chosen


class Boxes(Case):
    """Boxes that are elsewhere in each set of inputs, with the same scores."""

    def subject(self) -> Subject:
        boxes, scores = self.inputs
        return Subject("detector", self.module, lambda number: Arguments((boxes + number, scores)))


def detection() -> Case:
    generator = torch.Generator().manual_seed(0)
    boxes, scores = torch.rand(64, 4, generator=generator) * 600, torch.rand(64, generator=generator)
    scores[5] = 0.5
    return Boxes(Detector(), (boxes, scores))


@wrong(_BOUND, "contract", on=detection, programs=0, made_elsewhere=True)
def another_box(module: nn.Module) -> nn.Module:
    """A box of its own is wrong, beside one that rounding decides."""
    return OtherDetector(is_wrong=True)


@right(detection, kind=_BOUND, programs=0, made_elsewhere=True)
def box_that_rounding_decides(module: nn.Module) -> nn.Module:
    """One box that rounding decides."""
    return OtherDetector(is_wrong=False)
