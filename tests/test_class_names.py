"""Each class has a unique name: messages, reprs and searches name it without its module."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
TWICE = {
    "PassManager": "torch.fx has both, in modules of these names",
    "Block": "GPT-2's and the vision transformer's authors call theirs so; one of model_zoo.blocks is public",
    "Coverage": "of lowering it is public; the other one is the search's",
    "Figure": "of drawings it is public; a number of a device has the other one",
    "Stage": "of pipelines over processes it is public; the other one is a part of a simulated deployment",
    "Operand": "of a kernel, and of a drawn operation",
    "Mismatch": "of comparisons of outputs, and of those that a pass makes",
    "Outcome": "of an observed call, and of a mutant",
    "Place": "of what a capture puts back, and of what a pass compares",
}
"""Names that two classes share, and why."""


def test_no_two_classes_have_the_same_name_except_listed_ones():
    places = defaultdict(list)
    for package in ("fx", "model_zoo", "pytest_fx"):
        for path in (ROOT / package).rglob("*.py"):
            for statement in ast.parse(path.read_text("utf-8")).body:
                if isinstance(statement, ast.ClassDef):
                    places[statement.name].append(f"{path.relative_to(ROOT)}:{statement.lineno}")
    shared = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert shared.keys() == TWICE.keys(), shared
