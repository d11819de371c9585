"""Stack traces are read for the user's line."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from fx.interop.node_notes import location_of

TORCH = os.path.join(os.path.dirname(torch.__file__), "nn", "functional.py")

IN_TORCH = f'''Traceback (most recent call last):
  File "model.py", line 3, in forward
    return self.layer(x)
  File "layer.py", line 12, in forward
    return F.relu(x)
  File "{TORCH}", line 99, in relu
    return torch.relu(input)
'''


@pytest.mark.parametrize(
    "trace, expected",
    [
        ('  File "a.py", line 7, in forward\n    return x + 1\n', ("a.py", 7, "forward", "return x + 1")),
        ('File "a.py", line 7, in f.<locals>.g\n    y = x', ("a.py", 7, "f.<locals>.g", "y = x")),
        (IN_TORCH, ("layer.py", 12, "forward", "return F.relu(x)")),
        (f'File "{TORCH}", line 99, in relu', (TORCH, 99, "relu", "")),
        ('File "a.py", line 1, in f\nFile "b.py", line 2, in g\n', ("b.py", 2, "g", "")),
        (
            'File "a.py", line 1, in f\n    g(x)\nFile "<eval_with_key>.3", line 2, in forward\n',
            ("a.py", 1, "f", "g(x)"),
        ),
        ('File "<eval_with_key>.3", line 2, in forward\n    add = x + 1\n', None),
        ("no frames here", None),
        ("", None),
    ],
)
def test_the_innermost_line_of_the_user_is_found(trace: str, expected: Any) -> None:
    location = location_of(trace)
    found = None if location is None else (location.file, location.line, location.function, location.text)
    assert found == expected
