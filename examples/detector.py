"""Judge a detector output by output: ``pytest examples/detector.py --fx-model detector:model``.

Inputs are drawn from their domain. The detector returns boxes, scores and labels of proposals, and features, of which
padded ones mean nothing. Its program in bfloat16 is near enough for each of them by a contract of its own. No single
contract fits all of them.
"""

import copy

import torch
from torch import Tensor, nn

from fx.passes import approximate
from pytest_fx import InputSets, between, flipped, masked, matched_boxes, right_padded

PROPOSALS, CLASSES = 12, 3


class Detector(nn.Module):
    """Boxes, scores and labels of proposals from their features."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.boxes, self.scores = nn.Linear(16, 4), nn.Linear(16, CLASSES)

    def forward(self, features: Tensor, mask: Tensor) -> dict[str, Tensor]:
        corner, size = self.boxes(features).sigmoid().split(2, -1)
        scores = self.scores(features).softmax(-1)
        return {
            "boxes": torch.cat([corner, corner + size + 0.1], -1),
            "scores": scores,
            "labels": scores.argmax(-1),
            "features": torch.where(mask[..., None] != 0, features, -1.0),
        }


class InHalfPrecision(nn.Module):
    """The detector with linear layers in bfloat16, and with another number for padded features."""

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        self.detector = copy.deepcopy(detector).bfloat16()

    def forward(self, features: Tensor, mask: Tensor) -> dict[str, Tensor]:
        outputs = self.detector(features.bfloat16(), mask)
        outputs = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in outputs.items()}
        return {**outputs, "features": torch.where(mask[..., None] != 0, outputs["features"], 7.0)}


def model():
    """Return the detector with inputs of two sizes: features from 0 to 1, and masks of ones and then zeros."""
    shapes = [{"features": (count, PROPOSALS, 16), "mask": (count, PROPOSALS)} for count in (4, 7)]
    return Detector(), InputSets(shapes, domain={"features": between(0, 1), "mask": right_padded()})


CONTRACT = {
    "boxes": matched_boxes(overlap=0.97),
    "scores": approximate(sqnr_db=30),
    "labels": flipped(0.05),
    "features": masked(approximate(sqnr_db=30), "mask"),
}


def test_the_detector_in_half_precision(fx_model, fx_equal):
    fx_equal(InHalfPrecision(fx_model.fresh()), contract=CONTRACT)
