r"""Write text so that a terminal, a page or a chat shows it and obeys none of it.

Payloads, ids and keys hold what people send. An escape sequence in them could clear a screen or
forge a line of a report, and a bidirectional override could reverse how a line reads.
"""

from __future__ import annotations

import re

# C0 and DEL, C1, marks and overrides of direction, separators of lines, halves of surrogate pairs.
_DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_UNSEEN = re.compile(f"[\\0-\x1f\x7f-\x9f{_DIRECTIONS}\u2028\u2029\ufeff\ud800-\udfff]")
_UNSEEN_IN_LINES = re.compile(
    f"[\\0-\x09\x0b-\x1f\x7f-\x9f{_DIRECTIONS}\u2028\u2029\ufeff\ud800-\udfff]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str, *, lines: bool = False) -> str:
    r"""Escape control characters and overrides of direction: ``\n``, ``\x1b``, ``\u202e``.

    Args:
        text: What to show.
        lines: Whether it may have several lines.
    """
    return (_UNSEEN_IN_LINES if lines else _UNSEEN).sub(_escaped, text)


def visible_json(document: str) -> str:
    """Escape in a JSON document what is raw in its strings and a terminal would obey."""
    return _UNSEEN_IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _escaped(found: re.Match[str]) -> str:
    letter = found[0]
    if letter in _SHORT:
        return _SHORT[letter]
    return f"\\x{ord(letter):02x}" if letter < "\u0100" else f"\\u{ord(letter):04x}"
