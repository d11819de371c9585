"""``--fx-hunt``: campaigns against compilers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

WRONG = """
    import torch
    from torch import nn

    class NoTanh(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module
        def forward(self, *args, **kwargs):
            tanh, torch.tanh = torch.tanh, torch.sin
            try:
                return self.module(*args, **kwargs)
            finally:
                torch.tanh = tanh

    def compiler(module: nn.Module, args: tuple, kwargs: dict):
        return NoTanh(module)

    def refusing(module: nn.Module, args: tuple, kwargs: dict):
        raise NotImplementedError("no operation is supported")
"""


def _records(path: Path, name: str) -> list[dict]:
    text = (path / ".pytest_fx" / "hunts" / name / "journal.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_a_hunt_counts_refusals_and_continues_behind_its_last_batch(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(mine=WRONG)
    arguments = ("--fx-hunt", "mine:refusing", "--fx-minutes", "0.02")
    result = pytester.runpytest(*arguments)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*refusing: * programs*refused*", "*0 new faults*"])
    first = [record["batch"] for record in _records(pytester.path, "mine_refusing")]
    assert first[0] == 0
    pytester.runpytest(*arguments)
    both = _records(pytester.path, "mine_refusing")
    assert [record["batch"] for record in both] == list(range(len(both)))
    assert all(record["refused"] for record in both if record["programs"])
    assert len(both) > len(first)


def test_minutes_without_a_hunt_have_no_effect(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest("--fx-minutes", "1", "--fx-check", "remove-dead-code")
    assert result.ret != 0
    result.stderr.fnmatch_lines(["*--fx-minutes has no effect*"])
