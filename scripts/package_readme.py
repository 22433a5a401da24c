"""Hatchling's metadata hook: the README as a package index can show it.

An index shows Markdown without the files around it, so links and pictures of the repository would
lead nowhere there, and it draws no diagrams.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_DIAGRAM = re.compile(r"^```mermaid\n.*?^```\n\n?", re.DOTALL | re.MULTILINE)
_PICTURE = re.compile(r"^!\[[^]]*\]\([^)]*\)\n\n?", re.MULTILINE)
_LINK = re.compile(r"\[([^]]+)\]\((?!https?://|#)([^)]+)\)")


def standalone(text: str) -> str:
    """Return a README without diagrams and pictures, its links to files replaced by their text."""
    text = _PICTURE.sub("", _DIAGRAM.sub("", text))
    return _LINK.sub(lambda link: link[1], text)


class PackageReadme(MetadataHookInterface):
    """Sets the field ``readme``, which ``pyproject.toml`` lists under ``dynamic``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": standalone(text)}
