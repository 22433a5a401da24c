"""The repository's own files in the site: decisions in a list, linked files each with a page."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)]*)?(\))")
_LANGUAGES = {".py": "python", ".yml": "yaml", ".yaml": "yaml", ".toml": "toml", ".sh": "bash"}
_SUMMARY = re.compile(r"^\*\*Decision\.\*\*\s+(.+?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)


def decisions_page(folder: Path) -> str:
    """List the decisions with the first sentence of each."""
    lines = [
        "# Decisions",
        "",
        "What somebody could want to undo, with the reason why it is so.",
        "",
        "| | decision |",
        "|---|---|",
    ]
    for path in sorted(folder.glob("[0-9]*.md")):
        text = path.read_text(encoding="utf-8")
        title = text.splitlines()[0].lstrip("# ")
        number, _, name = title.partition(". ")
        lines.append(f"| {number} | [{name or title}]({path.name}) |")
    return "\n".join(lines) + "\n"


def linked_files(docs: Path) -> list[Path]:
    """Find the files outside of docs that its pages link to."""
    found = set()
    for page in docs.rglob("*.md"):
        for match in _LINK.finditer(page.read_text(encoding="utf-8")):
            target = _target(match[2], page.relative_to(docs).as_posix())
            if target is not None:
                found.add(target)
    return sorted(found)


def page_of(path: Path) -> str:
    """Name the page that shows a file."""
    return f"files/{path.relative_to(ROOT).as_posix()}.md"


def show(path: Path) -> str:
    """Write the page of a file; of a folder, the list of what it holds."""
    name = path.relative_to(ROOT).as_posix()
    head = f"---\nsearch: {{exclude: true}}\n---\n# {name}\n\n"
    if path.is_dir():
        names = sorted(one.name for one in path.iterdir() if not one.name.startswith(("_", ".")))
        return head + "\n".join(f"- `{one}`" for one in names) + "\n"
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return head + text.partition("\n")[2]
    return f"{head}````{_LANGUAGES.get(path.suffix, 'text')}\n{text}````\n"


def relinked(markdown: str, page: str) -> str:
    """Point links to files of the repository at their pages."""

    def replaced(match: re.Match[str]) -> str:
        target = _target(match[2], page)
        if target is None:
            return match[0]
        link = posixpath.relpath(page_of(target), posixpath.dirname(page) or ".")
        return f"{match[1]}{link}{match[4]}"

    return _LINK.sub(replaced, markdown)


def _target(link: str, page: str) -> Path | None:
    """Give the file that a link of a page names, where it lies outside of docs."""
    if "://" in link or link.startswith(("mailto:", "/")):
        return None
    path = (ROOT / "docs" / page).parent / link
    path = Path(posixpath.normpath(path.as_posix()))
    inside = path.is_relative_to(ROOT / "docs") or not path.is_relative_to(ROOT)
    return None if inside or not path.exists() else path
