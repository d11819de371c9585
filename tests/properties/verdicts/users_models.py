"""Runs of pytest on models of users: what is innocent in them, and what is said once where something is wrong."""

from __future__ import annotations

from . import case
from .told import folder, says

_MODELS = """
import torch
from torch import nn

class Optional(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, n=2, m=3):
        return self.linear(x) * n + m

class Sized(nn.Module):
    def forward(self, x):
        return torch.relu(x), x.size()

def optional():
    return Optional(), torch.ones(3, 4)

def sized():
    return Sized(), torch.ones(3, 4)
"""
_FORKING = """
import os, threading, warnings

def fork(program=None):
    if os.fork() == 0:
        os._exit(0)

def in_a_thread(program):
    warnings.simplefilter("ignore")
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
"""
_QUICK = ("--fx-no-timing", "-k", "test_pass_keeps_its_contract")


def _enter(item: str, what: str, arguments: tuple[str, ...], *parts: str, never: tuple[str, ...] = ()) -> None:
    @case(item, what, "said")
    def _() -> str:
        with folder(models=_MODELS, forking=_FORKING) as user:
            return says(user.pytest(*arguments), *parts, never=never)


_enter(
    "optional inputs",
    "two inputs that are left at their defaults: nothing is wrong with the model",
    ("--fx-model", "models:optional", "--fx-pass", "remove-checks", "--fx-no-timing"),
    "13 passed, 2 skipped",
)
_enter(
    "sizes",
    "a model that returns x.size(), which TorchScript makes a list of",
    ("--fx-model", "models:sized", "--fx-pass", "remove-checks", "--fx-no-timing", "-rs"),
    "TorchScript does not run models:sized itself as it is",
    never=("failed", "wrong: structure"),
)
_enter(
    "the process",
    "a thread of a library that forks while a pass runs",
    ("--fx-model", "models:sized", "--fx-pass", "forking:in_a_thread", *_QUICK),
    "1 passed",
)
_enter(
    "the process",
    "a pass that forks, and leaves the copy behind",
    ("--fx-model", "models:sized", "--fx-pass", "forking:fork", *_QUICK),
    "law 'process untouched'",
    "1 failed",
)
