"""The table of forms, and the form of a pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fx.interop import AdaptedPass
from pytest_fx.forms.aten import ATEN
from pytest_fx.forms.backend import BACKEND
from pytest_fx.forms.export_pass import EXPORT_PASS
from pytest_fx.forms.exported_program import EXPORTED_PROGRAM
from pytest_fx.forms.form import Form, FormedPass
from pytest_fx.forms.graph import GRAPH
from pytest_fx.forms.module import MODULE
from pytest_fx.forms.partitioner import PARTITIONER
from pytest_fx.forms.pattern_matcher import PATTERN_MATCHER
from pytest_fx.forms.quantizer import QUANTIZER
from pytest_fx.forms.recognition import first_annotation

TABLE: tuple[Form, ...] = (
    PATTERN_MATCHER,
    QUANTIZER,
    PARTITIONER,
    EXPORT_PASS,
    EXPORTED_PROGRAM,
    GRAPH,
    ATEN,
    BACKEND,
    MODULE,
)
"""All forms in which a pass is given a program of torch: the first that recognizes a pass is its own."""
TO_TRY = (ATEN, EXPORTED_PROGRAM, GRAPH)
"""Forms to try with a pass of which nothing shows the form, and which does not take a program of ours."""


@dataclass(frozen=True, slots=True)
class CapturedForm:
    """A form in which a pass is given what this library captured."""

    name: str
    """What ``--fx-form`` calls it."""
    takes: str
    """What the pass is given, and what it returns, in words."""


CAPTURED = (
    CapturedForm("fx", "a program of this library, fx.GraphModule, and returns one, or nothing"),
    CapturedForm("torch.fx", "a torch.fx.GraphModule of symbolic tracing, and returns one, or nothing"),
    CapturedForm("functional", "either of these, exported and written in functions and methods of torch"),
)
"""The forms of passes on what this library captures."""


def recognized(pass_: Any) -> Form | None:
    """Return the form of the table that a pass shows; None where it shows none, or takes a captured program."""
    return next((form for form in TABLE if form.recognizes(pass_)), None)


def is_guessed(pass_: FormedPass) -> bool:
    """Return whether the form of a pass is that of what it mentions, and it does not say what it takes."""
    return pass_.form is ATEN and first_annotation(pass_.pass_) is None


def form_called(name: str) -> Form | None:
    """Return the form of a name; None for one of captured programs."""
    return next((form for form in TABLE if form.name == name), None)


def form_name(pass_: Any) -> str:
    """Return what the form of a loaded pass is called.

    >>> form_name(lambda graph_module: graph_module)
    'fx'
    """
    if isinstance(pass_, FormedPass):
        return pass_.form.name
    return "torch.fx" if isinstance(pass_, AdaptedPass) else "fx"


def form_names() -> list[str]:
    """Return the names of all forms."""
    return [form.name for form in (*CAPTURED, *TABLE)]
