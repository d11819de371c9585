"""Save the answers of a model on one machine, and compare another machine, release or GPU with them.

``python examples/saved_answers.py save answers.safetensors`` on the first machine,
``python examples/saved_answers.py compare answers.safetensors`` on the second. The same by pytest:

    pytest --fx-model saved_answers:decoder --fx-save-answers answers.safetensors --fx-layer "steps.*"
    pytest --fx-model saved_answers:decoder --fx-reference answers.safetensors
"""

import sys

import torch
from torch import nn

from pytest_fx import assert_equal_to_answers, save_answers


class Decoder(nn.Module):
    """A model that no tracer captures: the number of its steps depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = torch.tanh(step(x))
            if x.abs().mean() < 0.05:
                break
        return x


def decoder() -> tuple[nn.Module, torch.Tensor]:
    """Return the model, whose weights come from a seed, and example inputs."""
    torch.manual_seed(0)
    return Decoder().eval(), torch.randn(16, 8)


def main(what: str, path: str) -> None:
    """Save answers to a file, or compare with those in it."""
    model, inputs = decoder()
    if what == "save":
        save_answers(model, inputs, path, layers=["steps.*"])
        print(f"saved in {path}")
    else:
        comparison = assert_equal_to_answers(model, inputs, path)
        print(f"the same: largest error {comparison.largest_error():.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
