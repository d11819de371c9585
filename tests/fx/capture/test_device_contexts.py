"""Programs that enter ``torch.device`` while they are traced."""

import subprocess
import sys

SCRIPT = """
import torch, fx
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        with torch.device("cpu"):
            return x + torch.ones(2)

fx.symbolic_trace(Model())
with torch.device("meta"):
    print(torch.empty(1).device, nn.Linear(2, 2).weight.device)
"""


def test_a_device_is_the_default_after_a_program_was_traced_that_chose_one():
    done = subprocess.run([sys.executable, "-c", SCRIPT], check=False, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["meta", "meta"], done.stderr
