"""Files as users have them: each is copied into a user's folder, and imports nothing from here.

``faults`` has faults that engineers make, each with a model that it gets right all but once; ``documented`` has
transforms as the documentation of torch.fx shows them; ``mine``, ``other`` and ``theirs`` have passes on small models,
``asked`` for options of a run.
"""

from pathlib import Path


def text_of(name: str) -> str:
    """The text of one of the files."""
    return Path(__file__).with_name(f"{name}.py").read_text("utf-8")
