"""What ``make docs`` does with the pages: the README is the first one, names of pages become links, and a page for each
package lists what is public in it, from its docstrings.
"""

import html
import re
from pathlib import Path
from typing import Any

from griffe import Extension
from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parents[1]
_STYLE = ".md-typeset pre > code { white-space: pre-wrap; overflow-wrap: anywhere; }\n"
"""Lines of code are wrapped where the window is narrower than they are."""
_REFERENCE = {
    "reference_plugin.md": (
        "The plugin, by its docstrings",
        (
            *(
                "pytest_fx",
                "pytest_fx.fixtures",
                "pytest_fx.hooks",
                "pytest_fx.report.columns",
                "pytest_fx.report.rows",
            ),
            *("pytest_fx.laws", "pytest_fx.errors", "model_zoo"),
        ),
    ),
    "reference_library.md": (
        "The library, by its docstrings",
        ("fx", "fx.passes", "fx.quantize", "fx.lowering", "fx.analysis", "fx.simulation", "fx.drawing", "fx.interop"),
    ),
}
"""Pages on what is public: their titles, and the modules."""
_NAMED_PAGE = re.compile(r"`docs/([a-z_]+\.md)`|\[[a-z_]+\.md\]\(([a-z_]+\.md)\)")
"""A page by its name."""
_CODE_WITH_BAR = re.compile(r"`([^`\n]*\\\|[^`\n]*)`")
"""Code in a cell of a table that has a bar."""
_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):`~?([^`]+)`")
"""A name in a docstring."""
_SESSION = re.compile(r"^( *)>>> .*(?:\n(?! *$).+)*", re.MULTILINE)
"""Lines of a session with Python in a docstring, with what it prints."""


def on_files(files: Files, config: Any) -> Files:
    """Add the README as the first page, the pages from docstrings, and the figures of results."""
    files.append(File.generated(config, "index.md", content=(_ROOT / "README.md").read_text(encoding="utf-8")))
    for name, (title, modules) in _REFERENCE.items():
        parts = [f"# {title}", *(f"::: {module}" for module in modules)]
        files.append(File.generated(config, name, content="\n\n".join(parts)))
    files.append(File.generated(config, "narrow.css", content=_STYLE))
    for figure in sorted((_ROOT / "results").glob("*.svg")):
        files.append(File.generated(config, f"results/{figure.name}", content=figure.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Make a link of each page that is named, and plain text of links to results, but for their figures.

    Links have the titles of the pages.
    """
    markdown = markdown.replace("](docs/report.png)", "](report.png)").replace("](../results/", "](results/")
    markdown = re.sub(r"(?<!!)\[([^\]]+)\]\((results/[^)]+)\)", r"\1 (`\2`)", markdown)
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [_CODE_WITH_BAR.sub(_in_html, _NAMED_PAGE.sub(_link, part)) for part in parts[::2]]
    return "".join(parts)


def _link(named: re.Match[str]) -> str:
    """Return a link with the title of a page."""
    name = named[1] or named[2]
    title = (_ROOT / "docs" / name).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    return f"[{title.partition(':')[0]}]({name})"


def _in_html(code: re.Match[str]) -> str:
    """Return code of a table's cell as HTML: Markdown keeps the backslash before a bar in it."""
    return f"<code>{html.escape(code[1], quote=False).replace(chr(92) + '|', '&#124;')}</code>"


class Docstrings(Extension):
    """Writes names, code and sessions in docstrings, which are made for Sphinx, as other pages have them."""

    def on_object(self, *, obj: Any, **given: Any) -> None:
        """Change the docstring of an object that was found."""
        if obj.docstring is not None and "```pycon" not in obj.docstring.value:
            text = _ROLE.sub(r"`\1`", obj.docstring.value).replace("::\n\n", ":\n\n")
            obj.docstring.value = _SESSION.sub(r"\1```pycon\n\g<0>\n\1```", text)

    def on_package(self, *, pkg: Any, **given: Any) -> None:
        """Change that of a package, too."""
        self.on_object(obj=pkg)
