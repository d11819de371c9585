"""Find the layers that have to stay in float32 when a model goes to bfloat16: here the one that reads a year.

    pytest --fx-model keep_layers:demand --fx-advise bfloat16 --fx-contract 'approximate(30)'

prints a list of layers to keep, as an argument to paste. Between 1,024 and 2,048 bfloat16 has every eighth number only.
"""

import torch
from torch import Tensor, nn

from pytest_fx import InputSets, between


class Demand(nn.Module):
    """Demand by year and hour: a layer takes 2,005 off the year before anything else."""

    def __init__(self) -> None:
        super().__init__()
        self.calendar, self.hidden, self.demand = nn.Linear(2, 16), nn.Linear(16, 16), nn.Linear(16, 1)
        with torch.no_grad():
            self.calendar.weight[:, 0] /= 10
            self.calendar.bias -= 2005 * self.calendar.weight[:, 0]

    def forward(self, year_and_hour: Tensor) -> Tensor:
        return self.demand(torch.tanh(self.hidden(torch.tanh(self.calendar(year_and_hour)))))


def demand() -> tuple[nn.Module, InputSets]:
    """Return the model and 64 hours of these years."""
    torch.manual_seed(0)
    hours = torch.rand(64, 2) * torch.tensor([30.0, 24.0]) + torch.tensor([1990.0, 0.0])
    return Demand().eval(), InputSets([((hours,), {})], domain={0: between(0, 2025)})
