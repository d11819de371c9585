"""The form ``pattern-matcher``: Inductor's ``PatternMatcherPass``, a set of patterns with replacements."""

from __future__ import annotations

import importlib
from typing import Any

from pytest_fx.forms.exported_source import ExportedSource, Level
from pytest_fx.forms.form import Form, FormResult, Snapshot, result_of_exported, with_names_of_graph
from pytest_fx.forms.recognition import PATTERN_MATCHERS
from pytest_fx.named_objects import is_one_of


class _NoPatterns:
    """An empty set of patterns. It is created at its use, because the import takes seconds."""

    def apply(self, graph: Any) -> int:
        matcher: Any = importlib.import_module("torch._inductor.pattern_matcher")
        return matcher.PatternMatcherPass().apply(graph)


def _apply(pass_: Any, source: ExportedSource, level: Level) -> FormResult:
    """Apply the patterns to the graph and sort it topologically, as Inductor does."""
    sort: Any = importlib.import_module("torch._inductor.pattern_matcher").stable_topological_sort
    exported = source.exported(level)
    before = Snapshot.of(exported)
    pass_.apply(exported.graph)
    sort(exported.graph)
    return result_of_exported(with_names_of_graph(exported), before)


PATTERN_MATCHER = Form(
    "pattern-matcher",
    "patterns.apply(graph) with the graph of a decomposed program: a torch._inductor PatternMatcherPass itself",
    lambda pass_: is_one_of(pass_, *PATTERN_MATCHERS),
    _apply,
    _NoPatterns(),
    ("inductor", "decomposed", "exported"),
    "exported",  # Inductor's graphs never write in place
    laws=("form well formed", "form signature", "form round trips"),
    may_change=("gradients",),
)
"""Inductor's sets of patterns."""
