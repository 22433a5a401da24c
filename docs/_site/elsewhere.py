"""What a browser would fetch by itself from another place; a link is followed by a person."""

from __future__ import annotations

import re

_LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'> ]+"
    r"|<link\b(?![^>]*\brel=[\"']?canonical)[^>]*\bhref=[\"']?(?:https?:)?//[^\"'> ]+"
    r"|url\([\"']?(?:https?:)?//[^)]+"
    r"|@import\s+[\"'](?:https?:)?//"
)


def fetched_from_elsewhere(text: str) -> list[str]:
    """List what a page or a style sheet would load from another host."""
    return [match[0][:120] for match in _LOADED.finditer(text)]
