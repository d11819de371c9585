"""Intended differences of fx from torch.fx, row by row; ``docs/differences.md`` explains each topic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """Comparisons of the corpus that must *not* come out equal."""

    program: str
    """The program's name."""
    aspects: frozenset[str]
    """The aspects that differ: nodes, names, print, code, state, dead code, retrace, transformer."""
    topic: str
    """The heading of ``docs/differences.md`` that gives the reason."""


def _row(program: str, aspects: str, topic: str) -> Difference:
    return Difference(program, frozenset(aspects.split(", ")), topic)


DIFFERENCES: tuple[Difference, ...] = (
    _row("annotated_with_strings", "nodes, print, code, dead code, retrace, transformer", "Annotations"),
    _row("KeywordSignature", "nodes, print, code, dead code, retrace, transformer", "Annotations"),
    _row("annotated_with_anything", "code, retrace, transformer", "Annotations"),
    _row("annotated", "transformer", "Annotations"),
    _row("annotated_containers", "transformer", "Annotations"),
    _row("defaults", "code, retrace, transformer", "Signatures"),
    _row("keyword_only", "code, retrace, transformer", "Signatures"),
    _row("every_kind_of_parameter", "code, retrace, transformer", "Signatures"),
    _row("nested_arguments", "nodes, print, code, dead code, retrace, transformer", "Arguments"),
    _row("containers_of_other_classes", "nodes, names, print, code, dead code, retrace, transformer", "Arguments"),
    _row("index_of_constant", "transformer", "Transformer"),
    _row("wrapped_calls", "transformer", "Transformer"),
    _row("wrapped_with_nested_arguments", "transformer", "Transformer"),
    _row("wrapped_builtin", "transformer", "Transformer"),
    _row("enumerations", "transformer", "Transformer"),
    _row("enumerations", "code, retrace", "Generated code"),
    _row("dataclass_arguments", "transformer", "Transformer"),
    _row("other_containers", "transformer", "Transformer"),
    _row("mathematics", "transformer", "Transformer"),
    _row("specialized_none", "nodes, names, print, code, dead code, transformer", "Generated code"),
    _row("indexing_by_values", "print", "Printing"),
    _row("in_place_methods", "dead code", "Dead code"),
    _row("augmented", "nodes, print, code, dead code, retrace, transformer", "What is captured"),
    _row("ParameterAndBuffer", "state", "State"),
    _row("ModuleFlags", "nodes, names, print, code, dead code, retrace, transformer", "Modes"),
    _row("no_input", "state", "State"),
    _row("wrapped_without_traced_arguments", "state", "State"),
    _row("PlainTensorAttribute", "state", "State"),
    _row("Shared", "state", "State"),
    _row("CalledTwice", "state", "State"),
    _row("matrix_product", "state", "State"),
    _row("index_of_constant", "state", "State"),
    _row("constants_on_either_side", "state", "State"),
    _row("unnamed_constants", "state", "State"),
    _row("factories", "state", "State"),
    _row("convolution_functionals", "state", "State"),
)


def is_intended(program: str, aspect: str) -> bool:
    """Return whether the table says that this comparison differs."""
    return any(row.program == program and aspect in row.aspects for row in DIFFERENCES)


def assert_equal_unless_intended(ours: object, theirs: object, program: str, aspect: str) -> None:
    """Compare, and hold the table to its word: a listed difference that is gone fails too."""
    if is_intended(program, aspect):
        assert ours != theirs, f"{program} no longer differs in {aspect}: drop it from the table of differences"
    else:
        assert ours == theirs
