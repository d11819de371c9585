"""The table of forms, and the form of a pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fx.interop import AdaptedPass
from fx.interop.pass_library import form_of
from pytest_fx.forms.aten import ATEN
from pytest_fx.forms.backend import BACKEND
from pytest_fx.forms.compiler import COMPILER
from pytest_fx.forms.export_pass import EXPORT_PASS
from pytest_fx.forms.exported_program import EXPORTED_PROGRAM
from pytest_fx.forms.form import Form, FormedPass
from pytest_fx.forms.graph import GRAPH
from pytest_fx.forms.joint import JOINT, JOINT_PARTITIONER
from pytest_fx.forms.module import MODULE
from pytest_fx.forms.partitioner import PARTITIONER
from pytest_fx.forms.pattern_matcher import PATTERN_MATCHER
from pytest_fx.forms.quantizer import QUANTIZER
from pytest_fx.forms.recognition import first_annotation, required, takes_module

TABLE: tuple[Form, ...] = (
    JOINT_PARTITIONER,
    PATTERN_MATCHER,
    QUANTIZER,
    PARTITIONER,
    EXPORT_PASS,
    EXPORTED_PROGRAM,
    GRAPH,
    ATEN,
    BACKEND,
    COMPILER,
    MODULE,
    JOINT,
)
"""All forms whose passes get a program from torch. The first that recognizes a pass is its form."""
TO_TRY = (ATEN, EXPORTED_PROGRAM, GRAPH)
"""Forms to try for a pass without evidence of its form that fails on programs of ours."""


@dataclass(frozen=True, slots=True)
class CapturedForm:
    """A form whose passes get a program that this library captured."""

    name: str
    """The name for ``--fx-form``."""
    takes: str
    """The input and the result of a pass, in words."""


CAPTURED = (
    CapturedForm("fx", "a program of this library, fx.GraphModule, and returns one, or nothing"),
    CapturedForm("torch.fx", "a torch.fx.GraphModule of symbolic tracing, and returns one, or nothing"),
    CapturedForm("functional", "either of these, exported and written in functions and methods of torch"),
)
"""The forms of passes on captured programs."""


def recognized(pass_: Any) -> Form | None:
    """Return the first form of the table that recognizes a pass; None if none does, or it takes a captured program."""
    return next((form for form in TABLE if form.recognizes(pass_)), None)


def is_guessed(pass_: FormedPass) -> bool:
    """Return whether the form of a pass was inferred from the names in its code, since it has no annotation."""
    return pass_.form is ATEN and first_annotation(pass_.pass_) is None


def is_unclear(pass_: Any) -> bool:
    """Return whether a pass for ``torch.fx`` may be for ATen: it takes graph modules, and names no operation."""
    return takes_module(pass_) and required(pass_) <= 1 and form_of(pass_) is None


def form_called(name: str) -> Form | None:
    """Return the form called ``name``; None for a form of captured programs."""
    return next((form for form in TABLE if form.name == name), None)


def form_name(pass_: Any) -> str:
    """Return the name of a loaded pass's form.

    >>> form_name(lambda graph_module: graph_module)
    'fx'
    """
    if isinstance(pass_, FormedPass):
        return pass_.form.name
    return "torch.fx" if isinstance(pass_, AdaptedPass) else "fx"


def form_names() -> list[str]:
    """Return the names of all forms."""
    return [form.name for form in (*CAPTURED, *TABLE)]
