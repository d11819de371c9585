"""What ``make docs`` does with the pages: the README is the first one, names of pages become links, and a page for each
package lists what is public in it, from its docstrings.
"""

import re
from pathlib import Path
from typing import Any

from griffe import Extension
from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parents[1]
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
    for figure in sorted((_ROOT / "results").glob("*.svg")):
        files.append(File.generated(config, f"results/{figure.name}", content=figure.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Make a link of each page that is named, and plain text of links to results, but for their figures."""
    markdown = markdown.replace("](docs/report.png)", "](report.png)").replace("](../results/", "](results/")
    markdown = re.sub(r"(?<!!)\[([^\]]+)\]\((results/[^)]+)\)", r"\1 (`\2`)", markdown)
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [re.sub(r"`docs/([a-z_]+\.md)`", r"[\1](\1)", part) for part in parts[::2]]
    return "".join(parts)


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
