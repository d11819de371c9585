"""Check models in the form that they ship in, and see where a converted model differs inside.

``python examples/converted_model.py`` converts a model to OpenVINO in three ways: right, in half precision, and with
another activation. It prints the verdicts. ``pip install openvino`` first.
"""

import openvino
import torch
from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder
from torch import nn

from pytest_fx import LawViolation, assert_equal_to_eager


class Classifier(nn.Module):
    """A small classifier of images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        features = nn.functional.gelu(self.norm(self.conv(images)))
        logits = self.head(features.mean((2, 3)))
        return {"logits": logits, "probabilities": logits.softmax(-1)}


def classifier() -> tuple[nn.Module, torch.Tensor]:
    """Return the model and example inputs; ``--fx-model`` accepts this function, too."""
    torch.manual_seed(0)
    return Classifier().eval(), torch.randn(2, 3, 8, 8)


def to_openvino(module: nn.Module) -> openvino.Model:
    """Convert a module: a transform in the form that ``--fx-pass`` accepts."""
    batch = {0: torch.export.Dim.AUTO}
    exported = torch.export.export(module, (classifier()[1],), dynamic_shapes=(batch,))
    program = TorchFXPythonDecoder.from_exported_program(exported.run_decompositions())
    frontend = FrontEndManager().load_by_framework("pytorch")
    return frontend.convert(frontend.load(program))


def to_openvino_roughly(module: nn.Module) -> openvino.CompiledModel:
    """Convert a module, and compile it in the precision that OpenVINO takes by itself: bfloat16 on some processors."""
    return openvino.Core().compile_model(to_openvino(module), "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})


class OtherActivation(Classifier):
    """The same model as someone else has written it."""

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        features = nn.functional.silu(self.norm(self.conv(images)))
        logits = self.head(features.mean((2, 3)))
        return {"logits": logits, "probabilities": logits.softmax(-1)}


def another_model() -> openvino.Model:
    """Return a file's content of a model that is almost the same."""
    model, _ = classifier()
    other = OtherActivation().eval()
    other.load_state_dict(model.state_dict())
    return to_openvino(other)


if __name__ == "__main__":
    model, images = classifier()
    for converted in (to_openvino, to_openvino_roughly, another_model()):
        try:
            comparison = assert_equal_to_eager(model, converted, images)
            print(f"right: largest error {comparison.largest_error():.1e}\n")
        except LawViolation as violation:
            print(f"{violation}\n")
