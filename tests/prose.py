"""Count sentences and names that a reader has to read twice, and fail if there are more than before: in ``make lint``.

A candidate is found by a pattern, so a good sentence may be among them. CONTRIBUTING shows better sentences. The
subjects of commits are held to a length, too.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LIMITS = ROOT / "tests" / "prose_limits.json"
LONGEST_SENTENCE = 32
"""Words."""
LONGEST_SUBJECT = 72
"""Characters."""
COMMITS = 20
"""The newest commits whose subjects are measured."""

KINDS = {
    "headless": "a docstring begins with a relative clause: name the thing, or say what the function does",
    "clauses": "a sentence has two relative clauses or more: make two sentences",
    "coined": "a word has a sense that only this project knows: use the word of the field",
    "long": f"a sentence has more than {LONGEST_SENTENCE} words",
    "vague": "a variable is called by a participle or `one`: name its value",
}

_HEADLESS = re.compile(
    r"(What|Whatever|Whether|Why|How|Where|Which|Whose|Who|When)\b"
    r"|((Of|By|In|Return|Note|Say|Tell) what|Returns? where)\b"
)
_CLAUSE = re.compile(
    r"\b(of|by|in|from|to|with|on|at|for) (which|whose|what|whom)\b"
    r"|\b(what|that|those|such) (is|are|was|were|it|they|has|have|had) \w+"
    r"|\bis what\b|\b(that|those) of\b|\bso (does|do|is|are) \w+|\bnone of (it|them)\b|\bof its own\b"
    r"|\bsuch a?n? ?\w* as\b|\bas it (is|was)\b",
    re.IGNORECASE,
)
_COINED = re.compile(
    r"\b(told|tells? of|hangs? on|stands? (for|behind)|comes? in by|ways? in|asked for (its|their)|says? so|shown by"
    r"|held against|(is|are) had|looked at for|lets? go of|gives? way|(made|measured) anew|(taken|put) back"
    r"|out of the way|goes without)\b",
    re.IGNORECASE,
)
_VAGUE = frozenset("found one said told shown given asked known made taken kept seen meant left held".split())
_PARAGRAPHS = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=\s*\*{0,2}\w+: )")
_ITEM = re.compile(r"\s*([-*]|\d+\.) ")
_DIRECTIVE = re.compile(r"#\s*(type|pyright|noqa|fmt|ruff)\b")


class Text(NamedTuple):
    """Prose of a file."""

    line: int
    """Its first line, from 1 on."""
    kind: str
    """``"docstring"``, ``"field"``, ``"comment"`` or ``"documentation"``."""
    text: str


class Candidate(NamedTuple):
    """A sentence or a name that may have to be read twice."""

    path: Path
    line: int
    kind: str
    """A key of :data:`KINDS`."""
    words: str


def candidates_of(path: Path, source: str) -> Iterator[Candidate]:
    """Return the candidates in the source of a Python file, or in a page of Markdown."""
    if path.suffix == ".py":
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in _VAGUE:
                yield Candidate(path, node.lineno, "vague", node.id)
        texts = [*_docstrings(tree), *_comments(source)]
    else:
        texts = list(_paragraphs(source))
    for line, kind, text in texts:
        start = " ".join(text.split())
        # A field may be true or false: "Whether the pass writes to its inputs."
        allowed = kind == "field" and start.startswith("Whether ")
        if kind in ("docstring", "field") and _HEADLESS.match(start) and not allowed:
            yield Candidate(path, line, "headless", start)
        for sentence in _sentences(text):
            if len(_CLAUSE.findall(sentence)) > 1:
                yield Candidate(path, line, "clauses", sentence)
            if _COINED.search(sentence):
                yield Candidate(path, line, "coined", sentence)
            if len(sentence.split()) > LONGEST_SENTENCE:
                yield Candidate(path, line, "long", sentence)


def _docstrings(tree: ast.Module) -> Iterator[Text]:
    """Return the docstrings, and the strings under fields, up to their first example or table."""
    for node in ast.walk(tree):
        documents = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        body = getattr(node, "body", None)
        for position, statement in enumerate(body if isinstance(body, list) else ()):
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                kind = "docstring" if documents and position == 0 else "field"
                yield Text(statement.lineno, kind, re.split(r"\n\s*(?:>>>|::|\|)", value.value)[0])


def _comments(source: str) -> Iterator[Text]:
    """Return the comments; lines of comments that follow each other are one."""
    lines: list[str] = []
    first = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _DIRECTIVE.match(token.string):
            continue
        row = token.start[0]
        if lines and row != first + len(lines):
            yield Text(first, "comment", " ".join(lines))
            lines = []
        first = row if not lines else first
        lines.append(token.string.lstrip("# "))
    if lines:
        yield Text(first, "comment", " ".join(lines))


def _paragraphs(page: str) -> Iterator[Text]:
    """Return the paragraphs, items of lists and cells of tables of a page of Markdown, without code and headings."""
    lines: list[str] = []
    first = 1
    in_code = False
    for number, line in enumerate([*page.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        in_code ^= fence
        ends = fence or in_code or line.startswith(("    ", "#", "|")) or not line.strip()
        if lines and (ends or _ITEM.match(line)):
            yield Text(first, "documentation", " ".join(lines))
            lines = []
        if line.startswith("|") and not in_code:
            yield from (Text(number, "documentation", cell) for cell in line.strip("|").split("|"))
        elif not ends:
            first = number if not lines else first
            lines.append(line)


def _sentences(text: str) -> Iterator[str]:
    """Return the sentences of more than two words; code in a sentence counts as one word."""
    for paragraph in _PARAGRAPHS.split(re.sub(r"``[^`]*``|`[^`]*`", "X", text)):
        for sentence in re.split(r"(?<=[.;:!?])\s+(?=[A-Z`\"(])", " ".join(paragraph.split())):
            if len(sentence.split()) > 2:
                yield sentence.strip()


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def project_files() -> list[Path]:
    """Return the files that people read: Python and Markdown, without programs of the corpus and written results."""
    paths = [Path(name) for name in _git("ls-files", "*.py", "*.md").splitlines()]
    skipped = (Path("tests/fx/corpus"), Path("results"))
    return [path for path in paths if (ROOT / path).exists() and not any(folder in path.parents for folder in skipped)]


def changed_lines(revision: str) -> dict[Path, set[int]]:
    """Return the numbers of the lines of each file that were added or changed since a commit."""
    lines: dict[Path, set[int]] = {}
    path = Path()
    for line in _git("diff", "--unified=0", revision, "--", "*.py", "*.md").splitlines():
        if line.startswith("+++ b/"):
            path = Path(line[6:])
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            lines.setdefault(path, set()).update(range(first, first + count))
    return lines


def long_subjects() -> list[str]:
    """Return the subjects over the length among the newest commits."""
    subjects = _git("log", "--no-merges", "--format=%s", f"-{COMMITS}").splitlines()
    return [subject for subject in subjects if len(subject) > LONGEST_SUBJECT]


def main() -> int:
    """Compare the project with its limits; 1 if a figure is above its limit or a subject is too long."""
    parser = argparse.ArgumentParser(prog="python tests/prose.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="list each candidate")
    parser.add_argument("--since", metavar="REV", help="list the candidates in lines changed since this commit")
    parser.add_argument("--lower", action="store_true", help="write today's figures as limits, where they are lower")
    options = parser.parse_args()
    candidates = [
        candidate for path in project_files() for candidate in candidates_of(path, (ROOT / path).read_text("utf-8"))
    ]
    limits: dict[str, int] = json.loads(LIMITS.read_text("utf-8"))
    counts = {kind: sum(candidate.kind == kind for candidate in candidates) for kind in KINDS}
    changed = changed_lines(options.since) if options.since else {}
    for path, line, kind, words in candidates:
        if options.list or line in changed.get(path, ()):
            print(f"{path}:{line}: {kind}: {words[:150]}")
    too_long = long_subjects()
    for subject in too_long:
        print(f"the subject of a commit has {len(subject)} characters, {LONGEST_SUBJECT} at most: {subject}")
    above = [kind for kind in KINDS if counts[kind] > limits[kind]]
    for kind, advice in KINDS.items():
        print(f"{kind}: {counts[kind]} (at most {limits[kind]})" + (f": {advice}" if kind in above else ""))
    if above:
        print("list the new ones with --since REV, where REV is the commit that you began from")
    if options.lower:
        lower = {kind: min(counts[kind], limits[kind]) for kind in KINDS}
        LIMITS.write_text(json.dumps(lower, indent=2) + "\n", "utf-8")
    return int(bool(above or too_long))


if __name__ == "__main__":
    sys.exit(main())
