"""Passes that test the harness: wrong ones as engineers write them, and right ones.

Each wrong pass is a row with a program that shows the fault, the laws that catch it, and words of the message.

Most are found on random programs, too. Kinds of mistakes have files: ``operands``, ``shapes``, ``uses``, ``effects``,
``values``, ``interface``, ``state``, ``plumbing``, ``fusions``, ``algebra``, ``planning`` and ``rare``; ``correct`` and
``correct_by_api`` hold the passes without one, ``arguments``, ``options`` and ``formula_rows`` some of either. For
others the witness is the only evidence. Passes in ``single_laws`` and ``single_laws_of_outputs`` break one law each.
The harness once misjudged ``on_models``, ``folding``, ``training``, ``made_elsewhere`` and ``fooling``. A run of
pytest catches ``in_files``: its passes are in files of a user, ``users/``. Passes of blind rounds are
in ``rounds/``, a package of their own: rows without a program, which ``make catalogue`` alone tries. Those of one round
are passes on ATen, with programs beside them.
"""

from importlib import import_module

import torch

from .rows import RIGHT, WRONG, Right, Wrong, of_theme

__all__ = ["RIGHT", "WRONG", "Right", "Wrong", "of_theme"]

_THEMES = (
    "algebra arguments correct correct_by_api effects folding fooling formula_rows fusions in_files interface "
    "made_elsewhere on_models operands options planning plumbing rare shapes single_laws single_laws_of_outputs state "
    "training uses values"
)
with torch.random.fork_rng(devices=()):  # layers of witnesses have the same weights in each run
    torch.manual_seed(0)
    for _theme in _THEMES.split():  # they enter their rows
        import_module(f"{__name__}.{_theme}")
