"""Test a pass on a model whose parts are on several devices.

``pytest --fx-model two_devices:ranker --fx-pass fuse-conv-bn`` in this folder leaves each part where it is. With a GPU,
the table is on the CPU and the tower is on the GPU, as large recommenders are placed. Without one, a second tower whose
weights are not loaded is on the device ``meta``.
"""

import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Ranker(nn.Module):
    """A table on the CPU, and a tower on the device that computes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, 8)
        self.tower = nn.Sequential(nn.Conv1d(8, 8, 3), nn.BatchNorm1d(8), nn.ReLU()).to(DEVICE)
        self.not_loaded = nn.Linear(8, 8, device="meta")

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return self.tower(self.table(items).transpose(1, 2).to(DEVICE)).mean(-1)


def ranker() -> tuple[nn.Module, torch.Tensor]:
    """Return the model and example inputs."""
    torch.manual_seed(0)
    return Ranker().eval(), torch.randint(1000, (4, 6))
