"""What ``make docs`` does with the pages: the README is the first one, and names of pages become links."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: Any) -> Files:
    """Add the README as the first page."""
    files.append(File.generated(config, "index.md", content=(_ROOT / "README.md").read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Make a link of each page that is named, and plain text of links to results, which are not part of the site."""
    markdown = re.sub(r"\[([^\]]+)\]\((?:\.\./)?(results/[^)]+)\)", r"\1 (`\2`)", markdown)
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [re.sub(r"`docs/([a-z_]+\.md)`", r"[\1](\1)", part) for part in parts[::2]]
    return "".join(parts)
