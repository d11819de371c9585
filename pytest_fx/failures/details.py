"""Everything that is known about a failure, in a file beside the test that reproduces it: more than fits a screen."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fx.pipelines.pipeline import PassPipeline
from pytest_fx.failures.failure import Failure
from pytest_fx.failures.localization import Localization, NodeError
from pytest_fx.forms import FormedPass
from pytest_fx.records.records import describe_machine

LONGEST = 150
"""Characters that a node may have in a message: about two lines of a terminal of 80 columns."""


def describe_failure(failure: Failure, story: str, compared: list[tuple[str, Localization]]) -> str:
    """Return the text of the file, in Markdown.

    Args:
        failure: the failure to describe.
        story: the findings, as the terminal shows them.
        compared: for each comparison of all nodes: its title, which names the dtypes, and its result.
    """
    sections = [f"# {failure.first_line}", _block(f"{failure.error}\n{story}")]
    if failure.test:
        sections.append(
            f"Found by `{failure.test}`. Errors are against eager in float64, or bit by bit if that is meant."
        )
    for title, localization in compared:
        sections += [f"## Error of each node, {title}", _block(format_errors(localization.errors))]
    sections += [text for title, text in _programs(failure) for text in (f"## {title}", text)]
    sections += ["## Versions", _block(json.dumps(describe_machine(), indent=2, default=str))]
    return "\n\n".join(sections) + "\n"


def format_errors(errors: tuple[NodeError, ...]) -> str:
    """Return a table of the error that each node adds to that of its inputs, in the order of the program.

    A ``*`` marks the nodes that add more than the limit.
    """
    rows = [("", "added here", "ulp", "by inputs", "rounding", "original", "node")]
    for error in errors:
        added = "another kind" if error.mismatch is not None else f"{error.made:.2g}"
        own = "-" if error.eager is None else f"{error.eager:.2g}"
        ulps = "-" if error.ulps is None else f"{error.ulps:.3g}"
        mark = "*" if error.wrong else ""
        rows.append((mark, added, ulps, f"{error.inherited:.2g}", own, error.original, error.node))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join([*map(str.rjust, row[:5], widths[:5]), row[5].ljust(widths[5]), row[6]]) for row in rows)


def shortened(text: str) -> str:
    """Return ``text`` as the terminal shows it, line by line.

    Paths are relative to the working directory. A node longer than :data:`LONGEST`, such as one with many arguments,
    is cut; the file has it in full. Sentences, and messages of torch, which may end with a hint, are not cut.
    """
    return "\n".join(map(_cut, text.replace(f"{Path.cwd()}{os.sep}", "").split("\n")))


def _cut(line: str) -> str:
    is_node = line.lstrip().startswith("%")
    return f"{line[: LONGEST - 2]} …" if is_node and len(line) > LONGEST else line


def _programs(failure: Failure) -> Iterator[tuple[str, str]]:
    """Yield the program before and after the pass as code, and the report of a pipeline, as far as they exist."""
    pass_ = failure.pass_
    if isinstance(pass_, FormedPass):
        yield from _formed_programs(failure)
        return
    before = partial(failure.subject.capture, leaves=failure.leaves, pass_=pass_)
    yield "The program before the pass", _block(before().code.strip(), "python")
    pass_run = failure.applied()
    raised = pass_run.error or pass_run.refusal or pass_run.too_long
    if pass_run.after is None:
        why = type(pass_run.result if raised is None else raised).__name__
        yield "The program after the pass", f"There is none: {why}."
    else:
        yield "The program after the pass", _block(pass_run.written.strip(), "python")
    if isinstance(pass_, PassPipeline):
        try:
            report = str(pass_.run(before()))
        except Exception as error:
            report = f"{type(error).__name__}: {error}"
        yield "What the pipeline did", _block(report)


def _formed_programs(failure: Failure) -> Iterator[tuple[str, str]]:
    pass_run = failure.applied()
    for when, run in (("before", pass_run.with_nothing_changed()), ("after", pass_run)):
        program = run.graph_program
        code = "It has no graph." if program is None else _block(program.code.strip(), "python")
        yield f"The program {when} the pass", code


def _block(text: str, language: str = "text") -> str:
    return f"```{language}\n{text}\n```"
