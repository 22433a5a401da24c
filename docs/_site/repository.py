"""The repository's own files in the site: decisions in a list, linked files each with a page."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)]*)?(\))")
_LANGUAGES = {
    ".py": "python",
    ".md": "markdown",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".toml": "toml",
    ".sh": "bash",
}


def decisions_page(folder: Path) -> str:
    """List the decisions, each by its title."""
    lines = [
        "# Decisions",
        "",
        "Design decisions with reasons, alternatives and measurements.",
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
    """Name the page that shows a file; MkDocs passes over names that begin with a dot."""
    parts = [re.sub(r"^\.", "dot-", part) for part in path.relative_to(ROOT).parts]
    return f"files/{'/'.join(parts)}.md"


def show(path: Path) -> str:
    """Write the page of a file; of a folder, the list of what it holds."""
    name = path.relative_to(ROOT).as_posix()
    head = f"---\nsearch: {{exclude: true}}\n---\n# {name}\n\n"
    if path.is_dir():
        names = sorted(one.name for one in path.iterdir() if not one.name.startswith(("_", ".")))
        return head + "\n".join(f"- `{one}`" for one in names) + "\n"
    try:
        text = path.read_text(encoding="utf-8").rstrip("\n")
    except UnicodeDecodeError:
        return f"{head}{path.stat().st_size:,} bytes that are no text.\n"
    # Markdown too: its links lead from the place where it lies.
    return f"{head}`````{_LANGUAGES.get(path.suffix, 'text')}\n{text}\n`````\n"


def relinked(markdown: str, page: str) -> str:
    """Point links to files of the repository at their pages."""

    def replaced(match: re.Match[str]) -> str:
        path = _resolved(match[2], page)
        if path is None or not path.exists():
            return match[0]
        if path.is_relative_to(DOCS):
            # Out of docs and in again is a way that only the repository has.
            link, anchor = path.relative_to(DOCS).as_posix(), match[3] or ""
        else:
            link, anchor = page_of(path), ""
        there = posixpath.relpath(link, posixpath.dirname(page) or ".")
        return f"{match[1]}{there}{anchor}{match[4]}"

    return _LINK.sub(replaced, markdown)


def _target(link: str, page: str) -> Path | None:
    """Give the file that a link of a page names, where it lies outside of docs."""
    path = _resolved(link, page)
    return None if path is None or path.is_relative_to(DOCS) or not path.exists() else path


def _resolved(link: str, page: str) -> Path | None:
    """Follow a link in the repository; None where it leads out of it."""
    if "://" in link or link.startswith(("mailto:", "/")):
        return None
    path = Path(posixpath.normpath(((DOCS / page).parent / link).as_posix()))
    return path if path.is_relative_to(ROOT) else None
