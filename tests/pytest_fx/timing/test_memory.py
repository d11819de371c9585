"""pytest_fx.timing.memory: the most bytes that one call holds at a time."""

import torch
from torch import nn

from pytest_fx.timing.memory import peak_memory

KILOBYTE = torch.ones(250)  # 1000 bytes


def test_values_that_are_alive_at_the_same_time_add_up():
    assert peak_memory(lambda: KILOBYTE + 1) == 1000
    assert peak_memory(lambda: ((KILOBYTE + 1) + 1) + 1) == 2000

    def all_kept():
        return [KILOBYTE + 1, KILOBYTE + 2, KILOBYTE + 3]

    assert peak_memory(all_kept) == 3000


def test_parameters_inputs_and_views_are_not_counted():
    linear = nn.Linear(250, 250)
    assert peak_memory(lambda: KILOBYTE.view(10, 25).t()) == 0
    assert peak_memory(lambda: (KILOBYTE + 1).view(10, 25)) == 1000
    assert peak_memory(lambda: linear(KILOBYTE.view(1, 250))) == 1000
    assert peak_memory(lambda: KILOBYTE.mul_(1)) == 0


def test_a_program_that_frees_early_has_the_lower_peak():
    chain = nn.Sequential(*(nn.ReLU() for _ in range(10)))

    def keeping():
        values = [KILOBYTE]
        for module in chain:
            values.append(module(values[-1]))
        return values[-1]

    assert peak_memory(lambda: chain(KILOBYTE)) == 2000
    assert peak_memory(keeping) == 10_000


def test_no_gradients_are_recorded_and_nothing_stays_watched():
    linear = nn.Linear(4, 4)
    recorded = []
    peak_memory(lambda: recorded.append(linear(torch.ones(1, 4))))
    assert not recorded[0].requires_grad
    recorded.clear()
    assert peak_memory(lambda: None) == 0
