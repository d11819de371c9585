"""Passes of blind rounds, as their authors wrote them, in files by round.

``python -m catalogue`` tries them beside the others, with the defaults of ``check_pass``. They have no witness: their
authors' own programs served to check the round before it was run.
"""

from importlib import import_module
from pathlib import Path

from ..rows import ROUNDS

__all__ = ["ROUNDS"]

for _file in sorted(Path(__file__).parent.rglob("[a-z]*.py")):  # they enter their rows
    parts = _file.relative_to(Path(__file__).parent).with_suffix("").parts
    import_module(".".join((__name__, *parts)))
