"""What MkDocs is told while it builds the site: its pages, their links, what it may not load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import reference
import repository
from elsewhere import fetched_from_elsewhere
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_WRITTEN = {
    "reference/commands.md": reference.commands_page,
    "reference/pipeline-keys.md": reference.pipeline_page,
    "reference/environment-keys.md": reference.environment_page,
    "reference/expectations.md": reference.suite_page,
    "reference/tables.md": reference.tables_page,
    "reference/errors.md": reference.errors_page,
}
_ADRS = "adr/index.md"
_REST = "How to"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave out of the menu what is not there, and put in what nobody placed."""
    docs = Path(config.docs_dir)
    pages = {
        str(path.relative_to(docs))
        for path in docs.rglob("*.md")
        if not path.is_relative_to(docs / "_site")
    }
    decisions = sorted(page for page in pages if page.startswith("adr/"))
    nav = _kept(config.nav or [], {*pages, *_WRITTEN, _ADRS})
    placed = set(_paths(nav))
    rest = sorted(pages - placed - set(decisions))
    for section in nav:
        if _REST in section:
            section[_REST] += rest
        if "Decisions" in section:
            section["Decisions"] += decisions
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are written from the code."""
    for path, write in _WRITTEN.items():
        files.append(File.generated(config, path, content=write()))
    docs = Path(config.docs_dir)
    files.append(File.generated(config, _ADRS, content=repository.decisions_page(docs / "adr")))
    for path in repository.linked_files(docs):
        files.append(
            File.generated(config, repository.page_of(path), content=repository.show(path))
        )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository into links to the pages that show them."""
    if page.is_homepage:
        # One page: its menu would repeat its name, and take the room of its picture.
        page.meta.setdefault("hide", ["navigation"])
    return repository.relinked(markdown, page.file.src_uri)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that would load something from elsewhere.

    Raises:
        PluginError: A page does.
    """
    site = Path(config.site_dir)
    found = [
        f"{path.relative_to(site)}: {what}"
        for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")])
        for what in fetched_from_elsewhere(path.read_text(encoding="utf-8"))
    ]
    if found:
        raise PluginError("the site would load from elsewhere:\n" + "\n".join(found[:20]))


def _kept(nav: list[Any], known: set[str]) -> list[Any]:
    kept: list[Any] = []
    for item in nav:
        if isinstance(item, str):
            kept += [item] if item in known else []
            continue
        ((name, value),) = item.items()
        if isinstance(value, str):
            kept += [item] if value in known else []
        elif inner := _kept(value, known):
            kept.append({name: inner})
    return kept


def _paths(nav: list[Any]) -> Iterator[str]:
    for item in nav:
        if isinstance(item, str):
            yield item
        else:
            for value in item.values():
                yield from [value] if isinstance(value, str) else _paths(value)
