"""Runs of pytest on models of users: harmless parts of them, and faults that are reported once."""

from __future__ import annotations

import models_of_users  # pyright: ignore[reportMissingImports]

from . import case
from .reported import folder, says

_BROKEN = """
import torch

SIZE = torch.zeros(3).view(7)
"""
_QUICK = ("--fx-no-timing", "-k", "test_pass_keeps_its_contract")


def _enter(item: str, what: str, arguments: tuple[str, ...], *parts: str, never: tuple[str, ...] = ()) -> None:
    @case(item, what, "said")
    def _() -> str:
        with folder(models=models_of_users.MODELS, forking=models_of_users.FORKING, broken=_BROKEN) as user:
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
_enter(
    "example inputs",
    "of a shape that the model rejects: one error with the line, the shape and torch's words",
    ("--fx-model", "models:shape"),
    "models:shape cannot be called with its own example inputs",
    "models.py:11, in forward: return self.linear(x) * n + m",
    "[0] float32 (3, 5)",
    "mat1 and mat2 shapes cannot be multiplied",
    " skipped, 1 error",
)
_enter(
    "example inputs",
    "under a name that forward does not have: the names that it has",
    ("--fx-model", "models:key"),
    "models.py:10, in Optional.forward(x, n=2, m=3)",
    "forward has no parameter 'y'; it has x, n, m",
    " skipped, 1 error",
)
_enter(
    "example inputs",
    "none: the run fails once, with how they are given",
    ("--fx-model", "models:bare", "--fx-pass", "remove-dead-code"),
    "models:bare has no example inputs",
    "let its factory return a pair: (module, inputs)",
    "1 failed, 3 passed",
)
_enter("names", "a dot in place of the colon", ("--fx-model", "models.shape"), "did you mean 'models:shape'?")
_enter("names", "the same of a pass", (*("--fx-model", "mlp", "--fx-pass"), "forking.fork"), "mean 'forking:fork'?")
_enter(
    "names",
    "a module that is not found, and nothing like it: where it was looked for, and nothing that is not there",
    ("--fx-model", "pkg.nowhere:shape"),
    "where searched in /",
    "No module named 'pkg'",
    never=("did you mean", "pkgutil"),
)
_enter(
    "factories",
    "a module that raises when it is imported is reported with the user's line",
    ("--fx-model", "broken:pair"),
    "broken.py:4, in <module>: SIZE = torch.zeros(3).view(7)",
    "shape '[7]' is invalid",
    never=("Traceback",),
)
