"""Write the page as HTML; everything that comes from a table is escaped."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tidelake.folders import Folder
from tidelake.ops.alerts.sight import lasting
from tidelake.ops.page import drawing, words
from tidelake.ops.page.facts import Facts
from tidelake.ops.page.verdict import verdict_of
from tidelake.typed import Typed, first_command
from tidelake.visible import visible

_STATIC = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@dataclass(frozen=True)
class Document:
    """What is sent.

    Attributes:
        body: Its bytes.
        kind: Its media type.
        tag: Changes with the body.
    """

    body: bytes
    kind: str
    tag: str

    @staticmethod
    def of(text: str, kind: str = "text/html; charset=utf-8") -> Document:
        """Encode a text."""
        body = text.encode("utf-8", errors="replace")
        return Document(body, kind, f'"{hashlib.sha256(body).hexdigest()[:24]}"')


@functools.cache
def static() -> Mapping[str, Document]:
    """Give the files that every page needs, by name."""
    folder = files("tidelake.ops.page") / "static"
    return {
        name: Document.of((folder / name).read_text(encoding="utf-8"), kind)
        for name, kind in _STATIC.items()
    }


class Renderer:
    """Writes pages for one place."""

    def __init__(self, names: Sequence[str], root: Folder, typed: Typed) -> None:
        """Load the templates.

        Args:
            names: All pipelines, for the navigation.
            root: Where the tables are.
            typed: Completes commands.
        """
        self._environment = Environment(
            loader=PackageLoader("tidelake.ops.page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_shown,
        )
        self._environment.filters.update(
            number=words.number,
            brief=words.brief,
            lasting=lasting,
            instant=words.instant,
            per=words.per,
            plain=words.plain,
            glance=words.glance,
            some=words.some,
        )
        self._environment.globals.update(
            draw=drawing,
            typed=typed,
            names=tuple(names),
            root=str(root),
            verdict_of=verdict_of,
            first_command=first_command,
        )

        # Now, and not while the first reader waits.
        for template in self._environment.list_templates():
            self._environment.get_template(template)

    def pipeline(self, facts: Facts) -> Document:
        """Write the page of a pipeline."""
        return self._written("pipeline.html", facts=facts, verdict=verdict_of([facts]))

    def overview(self, all_facts: Sequence[Facts]) -> Document:
        """Write the page of all pipelines."""
        return self._written("overview.html", all_facts=all_facts, verdict=verdict_of(all_facts))

    def unknown(self) -> Document:
        """Write the page for an address that there is none for."""
        return self._written("unknown.html")

    def _written(self, template: str, **known: Any) -> Document:
        return Document.of(self._environment.get_template(template).render(**known))


def _shown(value: Any) -> Any:
    """Escape what a browser would obey in a text; markup is ours."""
    return visible(value, lines=True) if type(value) is str else value
