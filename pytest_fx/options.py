"""What the user asks for on the command line. Imports no torch: pytest reads this at every start."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import pytest

WARMUP_ROUNDS = 3
"""Pairs of calls made before any is measured."""


@dataclass(frozen=True, slots=True)
class Options:
    """The plugin's command-line options."""

    models: tuple[str, ...]
    """Models to verify: names of the zoo, or ``package.module:factory``."""
    passes: tuple[str, ...]
    """Passes to apply: registered names, or ``package.module:callable``. Empty: every registered pass that applies."""
    batch: int
    """Samples in the example inputs of a model that can make any number of them."""
    threads: int
    """Threads that PyTorch computes with while answers are compared and times are taken."""
    rounds: int
    """Pairs of eager and transformed calls that a timing takes."""

    @property
    def used(self) -> bool:
        """Whether anything was asked for, so that loading torch is worth its seconds."""
        return bool(self.models or self.passes)


OPTIONS = pytest.StashKey[Options]()
"""Where a :class:`pytest.Config` keeps the options."""


def add_options(parser: pytest.Parser) -> None:
    """Declare the options to pytest."""
    group = parser.getgroup("fx", "verify and time transforms of PyTorch programs")
    group.addoption(
        "--fx-model",
        action="append",
        default=[],
        metavar="NAME",
        help="Verify this model: a name of the zoo, or package.module:factory. A factory takes no arguments and "
        "returns an nn.Module, a pair (nn.Module, example inputs) or a ZooModel. Repeatable. Without file arguments "
        "the built-in suite runs, and nothing else.",
    )
    group.addoption(
        "--fx-pass",
        action="append",
        default=[],
        metavar="NAME",
        help="Apply this pass: a registered name, or package.module:callable. Repeatable. "
        "Default: every registered pass that changes the model.",
    )
    group.addoption(
        "--fx-batch",
        type=_positive,
        default=1,
        metavar="N",
        help="Samples in a zoo model's example inputs (default: 1).",
    )
    group.addoption(
        "--fx-threads",
        type=_positive,
        default=1,
        metavar="N",
        help="Threads that PyTorch computes with while answers are compared and times are taken (default: 1).",
    )
    group.addoption(
        "--fx-rounds",
        type=_positive,
        default=30,
        metavar="N",
        help="Pairs of eager and transformed calls that a timing takes (default: 30).",
    )


def read_options(config: pytest.Config) -> Options:
    """Return what was given on the command line of ``config``, each name once."""
    given: argparse.Namespace = config.option
    models: list[str] = given.fx_model
    passes: list[str] = given.fx_pass
    return Options(
        models=tuple(dict.fromkeys(models)),
        passes=tuple(dict.fromkeys(passes)),
        batch=given.fx_batch,
        threads=given.fx_threads,
        rounds=given.fx_rounds,
    )


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, not {text!r}")
    return number
